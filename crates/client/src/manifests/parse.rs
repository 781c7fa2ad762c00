//! Parses manifests.
//!
//! In: a file's name (for its format) and its bytes. Out: the objects of the resources in a set, and those that are
//! rejected, each with its line. Pure, never panics, and returns one object at a time. An object in a document of its
//! own is read twice: first only its `apiVersion` and `kind`, which determine the type of the rest and whether the
//! object is skipped (for most objects a search in the text is enough), then all of it.

use super::document::{Document, documents};
use super::index::Key;
use super::kind::{ObjectClass, TypeMeta, WrongType};
use super::set::{InvalidName, Member, Parsed, Read, ResourceSet};
use crate::Rejected;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer};
use serde_json::Value;
use serde_path_to_error::Track;
use std::collections::HashMap;
use std::marker::PhantomData;

/// Why a document cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParseError {
    /// The line, counted from 1, if it is known.
    pub(super) line: Option<u64>,
    /// The cause.
    pub(super) reason: String,
}

impl From<ParseError> for Rejected {
    fn from(ParseError { line, reason }: ParseError) -> Self {
        Rejected { line, reason, ..Rejected::default() }
    }
}

/// Parses a whole file, each object as `Apply`. `file_name` determines the format: JSON if it ends in `.json`, else
/// YAML.
///
/// Namespaces are filled in; names are valid; no object occurs twice. Objects of resources that are not in the set are
/// left out. Rejected objects are returned with their line; without a name, if that cannot be read.
pub fn parse<S: ResourceSet<E>, E>(file_name: &str, bytes: &[u8]) -> (Vec<E>, Vec<Rejected>) {
    let members = S::members();
    let (mut objects, mut all_rejected) = (Vec::new(), Vec::new());
    parse_each::<S, E>(file_name, bytes, &mut |read| match read {
        Ok(parsed) => objects.extend((members[parsed.member].apply)(&parsed.protobuf).ok()),
        Err(rejected) => all_rejected.push(*rejected),
    });
    (objects, all_rejected)
}

/// Parses a whole file, one object at a time.
pub(super) fn parse_each<S: ResourceSet<E>, E>(
    file_name: &str,
    bytes: &[u8],
    each: &mut dyn FnMut(Result<Parsed, Box<Rejected>>),
) {
    let mut parser = Parser::<S, E> { members: S::members(), lines: HashMap::new(), each, set: PhantomData };
    for document in documents(file_name, bytes) {
        match document {
            Ok(document) => parser.document(&document),
            Err(error) => parser.reject(error.into()),
        }
    }
}

/// An object before it is read.
enum RawObject<'a> {
    /// A document of its own.
    Document(&'a Document<'a>),
    /// An item of a List, which begins in this line.
    Item(u64, &'a Value),
}

impl RawObject<'_> {
    /// The line in which it begins.
    fn line(&self) -> u64 {
        match self {
            RawObject::Document(document) => document.line(),
            RawObject::Item(line, _) => *line,
        }
    }

    fn read<S: ResourceSet<E>, E>(&self, member: usize) -> Result<Read, ParseError> {
        match self {
            RawObject::Document(document) => document.read(One::<S, E> { member, set: PhantomData }),
            RawObject::Item(line, value) => S::read(member, *value)
                .map_err(|error| ParseError { line: Some(*line), reason: error.to_string() }),
        }
    }

    /// Its namespace and name, whether the rest is valid or not; empty if they cannot be read.
    fn metadata(&self) -> NameOnly {
        let object = match self {
            RawObject::Document(document) => document.read(PhantomData::<MetadataOnly>).ok(),
            RawObject::Item(_, value) => MetadataOnly::deserialize(*value).ok(),
        };
        object.and_then(|object| object.metadata).unwrap_or_default()
    }

    /// The field whose value is not valid, such as `spec.ports[0].port`; empty if that is the object as a whole.
    fn field_at_fault<S: ResourceSet<E>, E>(&self, member: usize) -> String {
        let mut track = Track::new();
        let valid = match self {
            RawObject::Document(document) => {
                document.read(Tracked::<S, E> { member, track: &mut track, set: PhantomData }).is_ok()
            }
            RawObject::Item(_, value) => {
                S::read(member, serde_path_to_error::Deserializer::new(*value, &mut track)).is_ok()
            }
        };
        let path = track.path();
        if valid || path.iter().len() == 0 { String::new() } else { path.to_string() }
    }
}

/// An object of which only the name is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct MetadataOnly {
    metadata: Option<NameOnly>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NameOnly {
    namespace: String,
    name: String,
}

/// Reads the objects of one file.
struct Parser<'a, S, E> {
    members: Vec<Member<E>>,
    /// The lines of the objects that have been read.
    lines: HashMap<Key, u64>,
    each: &'a mut dyn FnMut(Result<Parsed, Box<Rejected>>),
    set: PhantomData<S>,
}

impl<S: ResourceSet<E>, E> Parser<'_, S, E> {
    fn document(&mut self, document: &Document<'_>) {
        let found = document.find_type_meta().map(|(api_version, kind)| TypeMeta { api_version, kind });
        let is_member =
            |type_meta: &TypeMeta| matches!(type_meta.classify(&self.members), Ok(ObjectClass::Member(_)));
        let type_meta = match found.filter(is_member) {
            Some(type_meta) => type_meta,
            None => match document.read(PhantomData::<Option<TypeMeta>>) {
                Ok(Some(type_meta)) => type_meta,
                Ok(None) => return,
                Err(error) => return self.reject(error.into()),
            },
        };
        self.object(&RawObject::Document(document), &type_meta);
    }

    fn object(&mut self, object: &RawObject<'_>, type_meta: &TypeMeta) {
        match (type_meta.classify(&self.members), object) {
            (Ok(ObjectClass::Member(member)), _) => match object.read::<S, E>(member) {
                Ok(Ok(parsed)) => self.accept(parsed, object.line()),
                Ok(Err(InvalidName { field, reason })) => self.reject(Rejected {
                    resource: Some(self.members[member].resource),
                    line: Some(object.line()),
                    field: field.into(),
                    reason,
                    ..Rejected::default()
                }),
                Err(ParseError { line, reason }) => {
                    let named = self.name(member, object);
                    // Without a name, the object can probably not be parsed at all.
                    let known = !named.name.is_empty();
                    let field = if known { object.field_at_fault::<S, E>(member) } else { String::new() };
                    self.reject(Rejected { line, field, reason, ..named });
                }
            },
            (Ok(ObjectClass::Other), _) => {
                let TypeMeta { api_version, kind } = type_meta;
                tracing::debug!(kind, api_version, "skipped an object of another kind");
            }
            (Ok(ObjectClass::List), RawObject::Document(document)) => self.list(document, type_meta),
            (Ok(ObjectClass::List), RawObject::Item(line, _)) => {
                let reason = "a List must not contain a List".into();
                self.reject(Rejected { line: Some(*line), reason, ..Rejected::default() });
            }
            (Err(WrongType { member, field, reason }), _) => {
                let named = member.map(|member| self.name(member, object));
                let (line, field) = (Some(object.line()), field.to_owned());
                self.reject(Rejected { line, field, reason, ..named.unwrap_or_default() });
            }
        }
    }

    fn list(&mut self, document: &Document<'_>, list: &TypeMeta) {
        let of_items = list.of_items();
        let read = document.read_items(&mut |line, item| match item
            .and_then(|item| Ok((Option::<TypeMeta>::deserialize(&item)?, item)))
        {
            Ok((None, _)) => {}
            Ok((Some(type_meta), item)) => {
                let type_meta = if type_meta.kind.is_empty() { &of_items } else { &type_meta };
                self.object(&RawObject::Item(line, &item), type_meta);
            }
            Err(error) => {
                self.reject(ParseError { line: Some(line), reason: error.to_string() }.into());
            }
        });
        if let Err(error) = read {
            self.reject(error.into());
        }
    }

    /// Passes an object on, unless it is in the file twice. `kubectl apply` would silently use the last one.
    fn accept(&mut self, parsed: Parsed, line: u64) {
        if let Some(first) = self.lines.get(&parsed.key) {
            let Key { resource, namespace, name } = parsed.key;
            let reason = format!("it is ignored, because it is in the file twice, first in line {first}");
            let line = Some(line);
            return self.reject(Rejected {
                resource: Some(resource),
                namespace,
                name,
                line,
                reason,
                ..Rejected::default()
            });
        }
        self.lines.insert(parsed.key.clone(), line);
        (self.each)(Ok(parsed));
    }

    fn reject(&mut self, rejected: Rejected) {
        (self.each)(Err(Box::new(rejected)));
    }

    /// A rejection with the name of this object, as far as it has one.
    fn name(&self, member: usize, object: &RawObject<'_>) -> Rejected {
        let member = &self.members[member];
        let resource = Some(member.resource);
        let NameOnly { namespace, name } = object.metadata();
        match member.key(&namespace, &name) {
            Ok(Key { namespace, name, .. }) => Rejected { resource, namespace, name, ..Rejected::default() },
            Err(_) => Rejected { resource, ..Rejected::default() },
        }
    }
}

/// Deserializes one object of a known member.
struct One<S, E> {
    member: usize,
    set: PhantomData<(S, E)>,
}

impl<'de, S: ResourceSet<E>, E> DeserializeSeed<'de> for One<S, E> {
    type Value = Read;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Read, D::Error> {
        S::read(self.member, deserializer)
    }
}

/// The same, and records the path to the field that is being read.
struct Tracked<'a, S, E> {
    member: usize,
    track: &'a mut Track,
    set: PhantomData<(S, E)>,
}

impl<'de, S: ResourceSet<E>, E> DeserializeSeed<'de> for Tracked<'_, S, E> {
    type Value = Read;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Read, D::Error> {
        S::read(self.member, serde_path_to_error::Deserializer::new(deserializer, self.track))
    }
}

#[cfg(test)]
mod tests;
