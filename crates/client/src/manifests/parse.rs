//! The text of a manifest to objects.
//!
//! In: a file's name (for its format) and its bytes. Out: the objects of the kinds we know, or the line and the reason
//! why there are none. Pure, never panics, and hands out one object at a time. Every object is looked at twice:
//! first only its `kind`, since what the rest must look like depends on it and other kinds are none of our business
//! (for most a glance at the text is enough), then all of it.

use super::document::{Document, documents};
use portway_model::api::{EndpointSlice, Kind, Node, Object, ObjectMeta, Service, ServiceCidr};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// Why a file is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ParseError {
    /// The line, counted from 1, if it is known.
    pub line: Option<u64>,
    /// What is wrong there.
    pub reason: String,
}

/// Reads a whole file. `file_name` tells the format: JSON if it ends in `.json`, YAML otherwise.
///
/// Namespaces are filled in; names are valid; no object occurs twice. Objects of other kinds are left out.
pub fn parse(file_name: &str, bytes: &[u8]) -> Result<Vec<Object>, ParseError> {
    let mut objects = Vec::new();
    parse_each(file_name, bytes, &mut |object| objects.push(object))?;
    Ok(objects)
}

/// Reads a whole file, one object at a time. Objects handed out before an error was found are not to be used.
pub(super) fn parse_each(
    file_name: &str,
    bytes: &[u8],
    each: &mut dyn FnMut(Object),
) -> Result<(), ParseError> {
    let mut seen = HashMap::new();
    for document in documents(file_name, bytes)? {
        let line = document.line();
        let mut wrong = None;
        read_document(&document, &mut |object| {
            if wrong.is_some() {
                return;
            }
            match finish(object).and_then(|object| unique(&mut seen, object, line)) {
                Ok(object) => each(object),
                Err(reason) => wrong = Some(reason),
            }
        })?;
        if let Some(reason) = wrong {
            return Err(ParseError { line: Some(line), reason });
        }
    }
    Ok(())
}

/// `apiVersion` and `kind`, which say what the rest is.
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
    Known(Kind),
    List,
    Other,
}

impl Head {
    fn announces(&self) -> Result<Announced, String> {
        let Head { api_version, kind } = self;
        let (known, versions): (_, &[&str]) = match kind.as_str() {
            "" => return Err("it has no kind: is it a Kubernetes object?".into()),
            "Service" => (Announced::Known(Kind::Service), &["v1"]),
            "Node" => (Announced::Known(Kind::Node), &["v1"]),
            "EndpointSlice" => (Announced::Known(Kind::EndpointSlice), &["discovery.k8s.io/v1"]),
            "ServiceCIDR" => {
                (Announced::Known(Kind::ServiceCidr), &["networking.k8s.io/v1", "networking.k8s.io/v1beta1"])
            }
            "List" | "ServiceList" | "NodeList" => (Announced::List, &["v1"]),
            "EndpointSliceList" => (Announced::List, &["discovery.k8s.io/v1"]),
            "ServiceCIDRList" => (Announced::List, &["networking.k8s.io/v1", "networking.k8s.io/v1beta1"]),
            _ => return Ok(Announced::Other),
        };
        if versions.contains(&api_version.as_str()) {
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

fn read_document(document: &Document<'_>, each: &mut dyn FnMut(Object)) -> Result<(), ParseError> {
    let glanced = document.glance().map(|(api_version, kind)| Head { api_version, kind });
    let head = match glanced.filter(|head| matches!(head.announces(), Ok(Announced::Known(_)))) {
        Some(head) => head,
        None => match document.read(PhantomData::<Option<Head>>)? {
            Some(head) => head,
            None => return Ok(()),
        },
    };
    let here = |reason| ParseError { line: Some(document.line()), reason };
    match head.announces().map_err(here)? {
        Announced::Known(kind) => document.read(One { kind, each }),
        Announced::Other => {
            tracing::debug!(kind = head.kind, api_version = head.api_version, "not a kind we serve");
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
                Some(head) if head.kind.is_empty() => item.announces(),
                Some(head) => head.announces(),
                None => Ok(Announced::Other),
            };
            let announced = heads.into_iter().map(announce).collect::<Result<Vec<_>, _>>().map_err(here)?;
            if announced.contains(&Announced::List) {
                return Err(here("a List in a List".into()));
            }
            document.read(Items { announced: &announced, each })
        }
    }
}

/// What only the server fills in or checks otherwise: names and namespaces.
fn finish(mut object: Object) -> Result<Object, String> {
    let kind = object.kind();
    let metadata = metadata_mut(&mut object);
    let Some(metadata) = metadata.as_mut().filter(|metadata| !metadata.name.is_empty()) else {
        return Err(format!("{kind} has no metadata.name"));
    };
    match kind {
        Kind::Service | Kind::EndpointSlice if metadata.namespace.is_empty() => {
            metadata.namespace = "default".to_owned();
        }
        Kind::Service | Kind::EndpointSlice => {}
        Kind::Node | Kind::ServiceCidr => metadata.namespace.clear(),
    }
    for (field, value) in [("name", &metadata.name), ("namespace", &metadata.namespace)] {
        let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        let ends = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
        let bytes = value.as_bytes();
        if bytes.len() > 253
            || !bytes.iter().copied().all(valid)
            || !ends(bytes.first())
            || !ends(bytes.last())
        {
            return Err(format!(
                "{kind}'s metadata.{field} {value:?} is not a DNS name: up to 253 lower-case letters, digits, - and ."
            ));
        }
    }
    Ok(object)
}

pub(super) fn metadata_mut(object: &mut Object) -> &mut Option<ObjectMeta> {
    match object {
        Object::Service(o) => &mut o.metadata,
        Object::EndpointSlice(o) => &mut o.metadata,
        Object::Node(o) => &mut o.metadata,
        Object::ServiceCidr(o) => &mut o.metadata,
    }
}

/// `kubectl apply` would let the last one win without a word.
fn unique(
    seen: &mut HashMap<(Kind, String, String), u64>,
    object: Object,
    line: u64,
) -> Result<Object, String> {
    let Some(ObjectMeta { namespace, name, .. }) = object.metadata() else { return Ok(object) };
    let kind = object.kind();
    match seen.insert((kind, namespace.clone(), name.clone()), line) {
        None => Ok(object),
        Some(first) if namespace.is_empty() => {
            Err(format!("{kind} {name} is here twice, first in line {first}"))
        }
        Some(first) => Err(format!("{kind} {namespace}/{name} is here twice, first in line {first}")),
    }
}

/// Reads one object of a kind that is known beforehand.
struct One<'a> {
    kind: Kind,
    each: &'a mut dyn FnMut(Object),
}

impl<'de> DeserializeSeed<'de> for One<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        (self.each)(match self.kind {
            Kind::Service => Object::Service(Service::deserialize(deserializer)?),
            Kind::EndpointSlice => Object::EndpointSlice(EndpointSlice::deserialize(deserializer)?),
            Kind::Node => Object::Node(Node::deserialize(deserializer)?),
            Kind::ServiceCidr => Object::ServiceCidr(ServiceCidr::deserialize(deserializer)?),
        });
        Ok(())
    }
}

/// Reads the items of a list whose kinds are known beforehand.
struct Items<'a> {
    announced: &'a [Announced],
    each: &'a mut dyn FnMut(Object),
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a List")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" && !self.announced.is_empty() {
                map.next_value_seed(Sequence { announced: self.announced, each: &mut self.each })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Sequence<'a, 'b> {
    announced: &'a [Announced],
    each: &'b mut &'a mut dyn FnMut(Object),
}

impl<'de> DeserializeSeed<'de> for Sequence<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Sequence<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for announced in self.announced {
            let item = match announced {
                Announced::Known(kind) => {
                    items.next_element_seed(One { kind: *kind, each: &mut **self.each })?
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
