//! Parses manifests.
//!
//! In: a file's name (for its format) and its bytes. Out: the objects of the resources in a set, or an error with its
//! line. Pure, never panics, and returns one object at a time. Every object is read twice: first only its `apiVersion`
//! and `kind`, which determine the type of the rest and whether the object is skipped (for most objects a search in the
//! text is enough), then all of it.

use super::document::{Document, documents};
use super::index::Key;
use super::set::{Member, Parsed, Read, ResourceSet};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// Why a file cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ParseError {
    /// The line, counted from 1, if it is known.
    pub line: Option<u64>,
    /// The cause.
    pub reason: String,
}

/// Parses a whole file, each object as `Apply`. `file_name` determines the format: JSON if it ends in `.json`, else
/// YAML.
///
/// Namespaces are filled in; names are valid; no object occurs twice. Objects of resources that are not in the set are
/// left out.
pub fn parse<S: ResourceSet<E>, E>(file_name: &str, bytes: &[u8]) -> Result<Vec<E>, ParseError> {
    let members = S::members();
    let mut objects = Vec::new();
    parse_each::<S, E>(file_name, bytes, &mut |parsed| {
        objects.extend((members[parsed.member].apply)(&parsed.protobuf).ok());
    })?;
    Ok(objects)
}

/// Parses a whole file, one object at a time. Objects that were passed to `each` before an error must not be used.
pub(super) fn parse_each<S: ResourceSet<E>, E>(
    file_name: &str,
    bytes: &[u8],
    each: &mut dyn FnMut(Parsed),
) -> Result<(), ParseError> {
    let members = S::members();
    let mut seen = HashMap::new();
    for document in documents(file_name, bytes)? {
        let line = document.line();
        let mut failure = None;
        read_document::<S, E>(&document, &members, &mut |read| {
            if failure.is_some() {
                return;
            }
            match read.and_then(|parsed| unique(&mut seen, parsed, line)) {
                Ok(parsed) => each(parsed),
                Err(reason) => failure = Some(reason),
            }
        })?;
        if let Some(reason) = failure {
            return Err(ParseError { line: Some(line), reason });
        }
    }
    Ok(())
}

/// `apiVersion` and `kind`, which determine the type of the rest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TypeMeta {
    api_version: String,
    kind: String,
}

/// The types of the items of a list.
#[derive(Deserialize)]
struct ItemTypes {
    #[serde(default)]
    items: Option<Vec<Option<TypeMeta>>>,
}

/// How an object is parsed, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectClass {
    /// An object of the member with this index.
    Member(usize),
    /// A list of objects.
    List,
    /// An object of another resource, which is skipped.
    Other,
}

impl TypeMeta {
    fn classify<E>(&self, members: &[Member<E>]) -> Result<ObjectClass, String> {
        let TypeMeta { api_version, kind } = self;
        if kind.is_empty() {
            return Err("it has no kind; is it a Kubernetes object?".into());
        }
        let of_kind = |kind: &str| members.iter().position(|member| member.resource.kind() == kind);
        let core = ["v1".to_owned()];
        let (known, versions) = match (of_kind(kind), kind.strip_suffix("List")) {
            (Some(index), _) => (ObjectClass::Member(index), &members[index].versions[..]),
            (None, Some("")) => (ObjectClass::List, &core[..]),
            (None, Some(item)) => match of_kind(item) {
                Some(index) => (ObjectClass::List, &members[index].versions[..]),
                None => return Ok(ObjectClass::Other),
            },
            (None, None) => return Ok(ObjectClass::Other),
        };
        if versions.contains(api_version) {
            return Ok(known);
        }
        // Other groups may have kinds of the same name, such as Knative's Service.
        let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
        if !api_version.is_empty() && versions.iter().all(|version| group(version) != group(api_version)) {
            return Ok(ObjectClass::Other);
        }
        Err(format!("{kind} has apiVersion {api_version:?}; it must be {}", versions.join(" or ")))
    }
}

fn read_document<S: ResourceSet<E>, E>(
    document: &Document<'_>,
    members: &[Member<E>],
    each: &mut dyn FnMut(Read),
) -> Result<(), ParseError> {
    let found = document.find_type_meta().map(|(api_version, kind)| TypeMeta { api_version, kind });
    let type_meta =
        match found.filter(|type_meta| matches!(type_meta.classify(members), Ok(ObjectClass::Member(_)))) {
            Some(type_meta) => type_meta,
            None => match document.read(PhantomData::<Option<TypeMeta>>)? {
                Some(type_meta) => type_meta,
                None => return Ok(()),
            },
        };
    let here = |reason| ParseError { line: Some(document.line()), reason };
    match type_meta.classify(members).map_err(here)? {
        ObjectClass::Member(member) => document.read(One::<S, E> { member, each, set: PhantomData }),
        ObjectClass::Other => {
            tracing::debug!(
                kind = type_meta.kind,
                api_version = type_meta.api_version,
                "skipped an object of another kind"
            );
            Ok(())
        }
        ObjectClass::List => {
            // The items of a ServiceList need not have apiVersion and kind.
            let item = TypeMeta {
                kind: type_meta.kind.strip_suffix("List").unwrap_or_default().to_owned(),
                api_version: type_meta.api_version,
            };
            let items = document.read(PhantomData::<ItemTypes>)?.items.unwrap_or_default();
            let classify = |type_meta: Option<TypeMeta>| match type_meta {
                Some(type_meta) if type_meta.kind.is_empty() => item.classify(members),
                Some(type_meta) => type_meta.classify(members),
                None => Ok(ObjectClass::Other),
            };
            let classes = items.into_iter().map(classify).collect::<Result<Vec<_>, _>>().map_err(here)?;
            if classes.contains(&ObjectClass::List) {
                return Err(here("a List must not contain a List".into()));
            }
            document.read(Items::<S, E> { classes: &classes, each, set: PhantomData })
        }
    }
}

/// Rejects an object that is in the file twice. `kubectl apply` would silently use the last one.
fn unique(seen: &mut HashMap<Key, u64>, parsed: Parsed, line: u64) -> Result<Parsed, String> {
    let Key { resource, namespace, name } = &parsed.key;
    match seen.insert(parsed.key.clone(), line) {
        None => Ok(parsed),
        Some(first) if namespace.is_empty() => {
            Err(format!("{resource} {name} is in the file twice, first in line {first}"))
        }
        Some(first) => {
            Err(format!("{resource} {namespace}/{name} is in the file twice, first in line {first}"))
        }
    }
}

/// Deserializes one object of a known member.
struct One<'a, S, E> {
    member: usize,
    each: &'a mut dyn FnMut(Read),
    set: PhantomData<(S, E)>,
}

impl<'de, S: ResourceSet<E>, E> DeserializeSeed<'de> for One<'_, S, E> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        (self.each)(S::read(self.member, deserializer)?);
        Ok(())
    }
}

/// Deserializes the items of a list whose classes are known.
struct Items<'a, S, E> {
    classes: &'a [ObjectClass],
    each: &'a mut dyn FnMut(Read),
    set: PhantomData<(S, E)>,
}

impl<'de, S: ResourceSet<E>, E> DeserializeSeed<'de> for Items<'_, S, E> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: ResourceSet<E>, E> Visitor<'de> for Items<'_, S, E> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a List")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" && !self.classes.is_empty() {
                let (classes, each) = (self.classes, &mut *self.each);
                map.next_value_seed(Sequence::<S, E> { classes, each, set: PhantomData })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Sequence<'a, S, E> {
    classes: &'a [ObjectClass],
    each: &'a mut dyn FnMut(Read),
    set: PhantomData<(S, E)>,
}

impl<'de, S: ResourceSet<E>, E> DeserializeSeed<'de> for Sequence<'_, S, E> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: ResourceSet<E>, E> Visitor<'de> for Sequence<'_, S, E> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for class in self.classes {
            let item = match class {
                ObjectClass::Member(member) => {
                    let (member, each) = (*member, &mut *self.each);
                    items.next_element_seed(One::<S, E> { member, each, set: PhantomData })?
                }
                ObjectClass::List | ObjectClass::Other => items.next_element::<IgnoredAny>()?.map(drop),
            };
            item.ok_or_else(|| de::Error::custom("the list has fewer items than in the first reading"))?;
        }
        match items.next_element::<IgnoredAny>()? {
            None => Ok(()),
            Some(_) => Err(de::Error::custom("the list has more items than in the first reading")),
        }
    }
}

#[cfg(test)]
mod tests;
