//! The set of resources that are read from a directory.
//!
//! [`ResourceSet`] is implemented for tuples of [`Resource`]s, such as `(Service, EndpointSlice)`: deserialization is
//! generic over both the resource and the deserializer, which a table of functions cannot be.

use super::fingerprint::fingerprint;
use super::index::Key;
use portway_api::{Event, ObjectMeta, Resource, ResourceType, Scope};
use prost::DecodeError;
use serde::Deserializer;

/// A set of resources whose events convert to `E`.
pub trait ResourceSet<E>: Send + 'static {
    /// Its members, in order.
    #[doc(hidden)]
    fn members() -> Vec<Member<E>>;

    /// Deserializes an object of the member with this index.
    #[doc(hidden)]
    fn read<'de, D: Deserializer<'de>>(index: usize, deserializer: D) -> Result<Read, D::Error>;
}

/// A resource of a set.
#[doc(hidden)]
#[derive(Debug)]
pub struct Member<E> {
    pub(super) resource: ResourceType,
    scope: Scope,
    /// The supported values of `apiVersion`, the current one first.
    pub(super) versions: Vec<String>,
    pub(super) init: fn() -> E,
    pub(super) done: fn() -> E,
    pub(super) delete: fn(String, String) -> E,
    /// Makes an `Apply` event from protobuf.
    pub(super) apply: fn(&[u8]) -> Result<E, DecodeError>,
}

/// An object, or the error in its name.
pub(super) type Read = Result<Parsed, InvalidName>;

/// A name or namespace that no object can have.
#[doc(hidden)]
#[derive(Debug)]
pub struct InvalidName {
    pub(super) field: &'static str,
    pub(super) reason: String,
}

/// An object of a manifest. Parsing YAML is slow, so an object is parsed once and then held in protobuf, which is
/// smaller.
#[doc(hidden)]
#[derive(Debug)]
pub struct Parsed {
    pub(super) member: usize,
    pub(super) key: Key,
    pub(super) fingerprint: u64,
    pub(super) protobuf: Vec<u8>,
}

fn member<R: Resource, E: From<Event<R>>>() -> Member<E> {
    let group = |version: &&str| match R::GROUP {
        "" => (*version).to_owned(),
        group => format!("{group}/{version}"),
    };
    Member {
        resource: R::TYPE,
        scope: R::SCOPE,
        versions: [R::VERSION].iter().chain(R::OLDER_VERSIONS).map(group).collect(),
        init: || Event::Init.into(),
        done: || Event::InitDone.into(),
        delete: |namespace, name| Event::Delete { namespace, name }.into(),
        apply: |bytes| Ok(Event::Apply(R::from_protobuf(bytes)?).into()),
    }
}

fn read<'de, R: Resource, D: Deserializer<'de>>(member: usize, deserializer: D) -> Result<Read, D::Error> {
    let mut object = R::deserialize(deserializer)?;
    Ok(check_name::<R>(&mut object).map(|key| {
        let fingerprint = fingerprint(&mut object);
        Parsed { member, key, fingerprint, protobuf: object.encode_to_vec() }
    }))
}

/// Sets the default namespace and checks the name, as the API server would do.
fn check_name<R: Resource>(object: &mut R) -> Result<Key, InvalidName> {
    let mut empty = ObjectMeta::default();
    let metadata = object.metadata_mut().as_mut().unwrap_or(&mut empty);
    let key = key(R::TYPE, R::SCOPE, &metadata.namespace, &metadata.name)?;
    metadata.namespace.clone_from(&key.namespace);
    Ok(key)
}

impl<E> Member<E> {
    /// The key of an object with this name.
    pub(super) fn key(&self, namespace: &str, name: &str) -> Result<Key, InvalidName> {
        key(self.resource, self.scope, namespace, name)
    }
}

fn key(resource: ResourceType, scope: Scope, namespace: &str, name: &str) -> Result<Key, InvalidName> {
    if name.is_empty() {
        return Err(InvalidName { field: "metadata.name", reason: "is missing".into() });
    }
    let namespace = match scope {
        Scope::Namespaced if namespace.is_empty() => "default",
        Scope::Namespaced => namespace,
        Scope::Cluster => "",
    };
    for (field, value) in [("metadata.name", name), ("metadata.namespace", namespace)] {
        if !is_dns_name(value) {
            let reason =
                format!("{value:?} is not a DNS name: up to 253 lower-case letters, digits, - and .");
            return Err(InvalidName { field, reason });
        }
    }
    Ok(Key { resource, namespace: namespace.to_owned(), name: name.to_owned() })
}

fn is_dns_name(text: &str) -> bool {
    let valid = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-' || *b == b'.';
    let ends = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 253 && bytes.iter().all(valid) && ends(bytes.first()) && ends(bytes.last())
}

macro_rules! tuples {
    ($($name:ident $index:literal),*) => {
        impl<Ev, $($name),*> ResourceSet<Ev> for ($($name,)*)
        where
            $($name: Resource, Ev: From<Event<$name>>,)*
        {
            fn members() -> Vec<Member<Ev>> {
                vec![$(member::<$name, Ev>()),*]
            }

            fn read<'de, De: Deserializer<'de>>(index: usize, deserializer: De) -> Result<Read, De::Error> {
                match index {
                    $($index => read::<$name, De>(index, deserializer),)*
                    _ => Err(serde::de::Error::custom("index out of range")),
                }
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
