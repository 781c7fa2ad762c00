//! The text of a manifest to objects.
//!
//! In: a file's name (for its format) and its bytes. Out: the objects of the resources in a set, or the line and the
//! reason why there are none. Pure, never panics, and hands out one object at a time. Every object is looked at twice:
//! first only its `kind`, since the type of the rest depends on it and other kinds are skipped (for most a glance at the
//! text is enough), then all of it.

use super::document::{Document, documents};
use super::index::Key;
use super::set::{Member, Parsed, Read, ResourceSet};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ParseError {
    /// The line, counted from 1, if it is known.
    pub line: Option<u64>,
    /// The mistake there.
    pub reason: String,
}

/// Reads a whole file, each object as `Apply`. `file_name` tells the format: JSON if it ends in `.json`, YAML otherwise.
///
/// Namespaces are filled in; names are valid; no object occurs twice. Objects of resources outside of the set are left
/// out.
pub fn parse<S: ResourceSet<E>, E>(file_name: &str, bytes: &[u8]) -> Result<Vec<E>, ParseError> {
    let members = S::members();
    let mut objects = Vec::new();
    parse_each::<S, E>(file_name, bytes, &mut |parsed| {
        objects.extend((members[parsed.member].apply)(&parsed.protobuf).ok());
    })?;
    Ok(objects)
}

/// Reads a whole file, one object at a time. Objects handed out before an error was found are not to be used.
pub(super) fn parse_each<S: ResourceSet<E>, E>(
    file_name: &str,
    bytes: &[u8],
    each: &mut dyn FnMut(Parsed),
) -> Result<(), ParseError> {
    let members = S::members();
    let mut seen = HashMap::new();
    for document in documents(file_name, bytes)? {
        let line = document.line();
        let mut wrong = None;
        read_document::<S, E>(&document, &members, &mut |read| {
            if wrong.is_some() {
                return;
            }
            match read.and_then(|parsed| unique(&mut seen, parsed, line)) {
                Ok(parsed) => each(parsed),
                Err(reason) => wrong = Some(reason),
            }
        })?;
        if let Some(reason) = wrong {
            return Err(ParseError { line: Some(line), reason });
        }
    }
    Ok(())
}

/// `apiVersion` and `kind`, which say the type of the rest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Head {
    api_version: String,
    kind: String,
}

/// The same for the items of a list.
#[derive(Deserialize)]
struct Heads {
    #[serde(default)]
    items: Option<Vec<Option<Head>>>,
}

/// What a head announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    /// An object of the member with this index.
    Known(usize),
    List,
    Other,
}

impl Head {
    fn announces<E>(&self, members: &[Member<E>]) -> Result<Announced, String> {
        let Head { api_version, kind } = self;
        if kind.is_empty() {
            return Err("it has no kind: is it a Kubernetes object?".into());
        }
        let of_kind = |kind: &str| members.iter().position(|member| member.resource.kind() == kind);
        let core = ["v1".to_owned()];
        let (known, versions) = match (of_kind(kind), kind.strip_suffix("List")) {
            (Some(index), _) => (Announced::Known(index), &members[index].versions[..]),
            (None, Some("")) => (Announced::List, &core[..]),
            (None, Some(item)) => match of_kind(item) {
                Some(index) => (Announced::List, &members[index].versions[..]),
                None => return Ok(Announced::Other),
            },
            (None, None) => return Ok(Announced::Other),
        };
        if versions.contains(api_version) {
            return Ok(known);
        }
        // Other groups may have kinds of the same name, such as Knative's Service.
        let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
        if !api_version.is_empty() && versions.iter().all(|version| group(version) != group(api_version)) {
            return Ok(Announced::Other);
        }
        Err(format!("{kind} has apiVersion {api_version:?}, it must be {}", versions.join(" or ")))
    }
}

fn read_document<S: ResourceSet<E>, E>(
    document: &Document<'_>,
    members: &[Member<E>],
    each: &mut dyn FnMut(Read),
) -> Result<(), ParseError> {
    let glanced = document.glance().map(|(api_version, kind)| Head { api_version, kind });
    let head = match glanced.filter(|head| matches!(head.announces(members), Ok(Announced::Known(_)))) {
        Some(head) => head,
        None => match document.read(PhantomData::<Option<Head>>)? {
            Some(head) => head,
            None => return Ok(()),
        },
    };
    let here = |reason| ParseError { line: Some(document.line()), reason };
    match head.announces(members).map_err(here)? {
        Announced::Known(member) => document.read(One::<S, E> { member, each, set: PhantomData }),
        Announced::Other => {
            tracing::debug!(
                kind = head.kind,
                api_version = head.api_version,
                "skipped an object of another kind"
            );
            Ok(())
        }
        Announced::List => {
            // The items of a ServiceList need not repeat what they are.
            let item = Head {
                kind: head.kind.strip_suffix("List").unwrap_or_default().to_owned(),
                api_version: head.api_version,
            };
            let heads = document.read(PhantomData::<Heads>)?.items.unwrap_or_default();
            let announce = |head: Option<Head>| match head {
                Some(head) if head.kind.is_empty() => item.announces(members),
                Some(head) => head.announces(members),
                None => Ok(Announced::Other),
            };
            let announced = heads.into_iter().map(announce).collect::<Result<Vec<_>, _>>().map_err(here)?;
            if announced.contains(&Announced::List) {
                return Err(here("a List in a List".into()));
            }
            document.read(Items::<S, E> { announced: &announced, each, set: PhantomData })
        }
    }
}

/// `kubectl apply` would let the last one win without a word.
fn unique(seen: &mut HashMap<Key, u64>, parsed: Parsed, line: u64) -> Result<Parsed, String> {
    let Key { resource, namespace, name } = &parsed.key;
    match seen.insert(parsed.key.clone(), line) {
        None => Ok(parsed),
        Some(first) if namespace.is_empty() => {
            Err(format!("{resource} {name} is here twice, first in line {first}"))
        }
        Some(first) => Err(format!("{resource} {namespace}/{name} is here twice, first in line {first}")),
    }
}

/// Reads one object of a member that is known beforehand.
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

/// Reads the items of a list whose kinds are known beforehand.
struct Items<'a, S, E> {
    announced: &'a [Announced],
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
            if key == "items" && !self.announced.is_empty() {
                let (announced, each) = (self.announced, &mut *self.each);
                map.next_value_seed(Sequence::<S, E> { announced, each, set: PhantomData })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Sequence<'a, S, E> {
    announced: &'a [Announced],
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
        for announced in self.announced {
            let item = match announced {
                Announced::Known(member) => {
                    let (member, each) = (*member, &mut *self.each);
                    items.next_element_seed(One::<S, E> { member, each, set: PhantomData })?
                }
                Announced::List | Announced::Other => items.next_element::<IgnoredAny>()?.map(drop),
            };
            item.ok_or_else(|| de::Error::custom("a list became shorter while it was read"))?;
        }
        match items.next_element::<IgnoredAny>()? {
            None => Ok(()),
            Some(_) => Err(de::Error::custom("a list became longer while it was read")),
        }
    }
}

#[cfg(test)]
mod tests;
