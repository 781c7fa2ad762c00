//! A file on disk to the names, fingerprints and content of its objects.
//!
//! In: a path. Out: its objects, if all of them are good. Until the whole file is known to be good, objects that are new
//! or changed are held in protobuf.

use super::index::{Contents, Key};
use super::inotify::is_manifest;
use super::parse::{ParseError, parse_each};
use super::set::{Parsed, ResourceSet};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// The largest file read.
const LARGEST: u64 = 64 << 20;

/// Objects that are new or changed.
pub(super) type Fresh = HashMap<Arc<Key>, Packed>;

/// An object in protobuf.
#[derive(Debug)]
pub(super) struct Packed {
    /// Its resource, by index in the set.
    pub(super) member: usize,
    pub(super) protobuf: Vec<u8>,
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

/// The objects of a file, and those of them that are not `known`.
pub(super) fn scan<S: ResourceSet<E>, E>(
    name: &OsStr,
    bytes: &[u8],
    known: Option<&Contents>,
) -> Result<(Contents, Fresh), ParseError> {
    let (mut contents, mut fresh) = (Contents::new(), Fresh::new());
    parse_each::<S, E>(&name.to_string_lossy(), bytes, &mut |parsed| {
        let Parsed { member, key, fingerprint, protobuf } = parsed;
        let key = Arc::new(key);
        if known.and_then(|known| known.get(&key)) != Some(&fingerprint) {
            fresh.insert(key.clone(), Packed { member, protobuf });
        }
        contents.insert(key, fingerprint);
    })?;
    Ok((contents, fresh))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use portway_api::{EndpointSlice, Event, Service};

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

    type Set = (Service, EndpointSlice);

    /// An event of either resource.
    #[derive(Debug)]
    #[expect(clippy::large_enum_variant, reason = "there are two of them, in a test")]
    enum Either {
        Service(Event<Service>),
        EndpointSlice(Event<EndpointSlice>),
    }

    impl From<Event<Service>> for Either {
        fn from(event: Event<Service>) -> Self {
            Either::Service(event)
        }
    }

    impl From<Event<EndpointSlice>> for Either {
        fn from(event: Event<EndpointSlice>) -> Self {
            Either::EndpointSlice(event)
        }
    }

    #[test]
    fn packing_loses_nothing() {
        let events = parse::<Set, Either>("a.yaml", TEXT.as_bytes()).unwrap();
        let [Either::Service(Event::Apply(service)), Either::EndpointSlice(Event::Apply(slice))] =
            &events[..]
        else {
            panic!("{events:?}")
        };
        let mut expected: Service = serde_saphyr::from_str(TEXT.split("---").next().unwrap()).unwrap();
        expected.metadata.as_mut().unwrap().namespace = "default".into();
        assert_eq!(*service, expected);
        assert_eq!(slice.ports.len(), 2);
        assert_eq!(slice.endpoints[0].conditions.unwrap().ready, Some(false));
    }

    #[test]
    fn only_new_and_changed_objects_are_packed() {
        let name = OsStr::new("a.yaml");
        let scan = |text: &str, known| scan::<Set, Either>(name, text.as_bytes(), known).unwrap();
        let (contents, fresh) = scan(TEXT, None);
        assert_eq!((contents.len(), fresh.len()), (2, 2));
        let (_, fresh) = scan(&TEXT.replace("port: 80", "port: 81"), Some(&contents));
        assert_eq!(fresh.into_keys().map(|key| key.name.clone()).collect::<Vec<_>>(), ["a"]);
    }
}
