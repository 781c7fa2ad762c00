//! A file on disk to the names, fingerprints and content of its objects.
//!
//! In: a path. Out: what is in it, if all of it is good. YAML is slow to read, so it is read once: until the whole file is
//! known to be good, and what in it is news, objects are held in protobuf, which is smaller than their text.

use super::fingerprint::fingerprint;
use super::index::{Contents, Key};
use super::inotify::is_manifest;
use super::parse::{ParseError, parse_each};
use portway_model::api::{EndpointSlice, Kind, Node, Object, Service, ServiceCidr};
use prost::{DecodeError, Message};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// The largest file read.
const LARGEST: u64 = 64 << 20;

/// Objects that are news.
pub(super) type Fresh = HashMap<Arc<Key>, Packed>;

/// An object in protobuf.
#[derive(Debug)]
pub(super) struct Packed {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Packed {
    fn pack(object: &Object) -> Self {
        let bytes = match object {
            Object::Service(o) => o.encode_to_vec(),
            Object::EndpointSlice(o) => o.encode_to_vec(),
            Object::Node(o) => o.encode_to_vec(),
            Object::ServiceCidr(o) => o.encode_to_vec(),
        };
        Packed { kind: object.kind(), bytes }
    }

    /// The object again. What was packed can be unpacked.
    pub(super) fn unpack(&self) -> Result<Object, DecodeError> {
        let bytes = &*self.bytes;
        Ok(match self.kind {
            Kind::Service => Object::Service(Service::decode(bytes)?),
            Kind::EndpointSlice => Object::EndpointSlice(EndpointSlice::decode(bytes)?),
            Kind::Node => Object::Node(Node::decode(bytes)?),
            Kind::ServiceCidr => Object::ServiceCidr(ServiceCidr::decode(bytes)?),
        })
    }
}

/// The names of the manifests in a directory.
pub(super) fn list(directory: &Path) -> io::Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        if is_manifest(&name) {
            names.insert(name);
        }
    }
    Ok(names)
}

/// A file's bytes, or `None` if there is no file. Anything else of that name is passed over: opening a pipe would block.
pub(super) fn load(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    if metadata.len() <= LARGEST {
        let file = match std::fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    }
    if metadata.len() > LARGEST || bytes.len() as u64 > LARGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 64 MiB: split it"));
    }
    Ok(Some(bytes))
}

/// What is in a file, and what of it is not `known`.
pub(super) fn scan(
    name: &OsStr,
    bytes: &[u8],
    known: Option<&Contents>,
) -> Result<(Contents, Fresh), ParseError> {
    let (mut contents, mut fresh) = (Contents::new(), Fresh::new());
    parse_each(&name.to_string_lossy(), bytes, &mut |mut object| {
        let print = fingerprint(&mut object);
        let Some(key) = key(&object).map(Arc::new) else { return };
        if known.and_then(|known| known.get(&key)) != Some(&print) {
            fresh.insert(key.clone(), Packed::pack(&object));
        }
        contents.insert(key, print);
    })?;
    Ok((contents, fresh))
}

fn key(object: &Object) -> Option<Key> {
    let metadata = object.metadata()?;
    Some(Key { kind: object.kind(), namespace: metadata.namespace.clone(), name: metadata.name.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const TEXT: &str = "
apiVersion: v1
kind: Service
metadata: {name: a, labels: {x: y}, deletionTimestamp: 2020-01-01T00:00:00Z}
spec: {ports: [{port: 80}], internalTrafficPolicy: \"\", sessionAffinityConfig: {clientIP: {}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: b}
endpoints: [{addresses: [10.0.0.1], conditions: {ready: false}, hints: {}}]
ports: [{port: 0}, {}]
";

    #[test]
    fn packing_loses_nothing() {
        for object in parse("a.yaml", TEXT.as_bytes()).unwrap() {
            assert_eq!(Packed::pack(&object).unpack().unwrap(), object);
        }
    }

    #[test]
    fn only_news_is_packed() {
        let name = OsStr::new("a.yaml");
        let (contents, fresh) = scan(name, TEXT.as_bytes(), None).unwrap();
        assert_eq!((contents.len(), fresh.len()), (2, 2));
        let (_, fresh) =
            scan(name, TEXT.replace("port: 80", "port: 81").as_bytes(), Some(&contents)).unwrap();
        assert_eq!(fresh.into_keys().map(|key| key.name.clone()).collect::<Vec<_>>(), ["a"]);
    }
}
