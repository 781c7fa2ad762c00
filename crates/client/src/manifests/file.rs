//! Reads a manifest file: the names and fingerprints of its objects, and the content of new and changed ones.
//!
//! In: a path. Out: the objects of the file, and those that are rejected. New and changed objects are encoded in
//! protobuf, because they may have to be held until other files have been read.

use super::index::{Contents, Key};
use super::inotify::is_manifest;
use super::parse::parse_each;
use super::set::{Parsed, ResourceSet};
use crate::Rejected;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// The largest file that is read.
const MAX_SIZE: u64 = 64 << 20;

/// The new and changed objects of a file.
pub(super) type ChangedObjects = HashMap<Arc<Key>, EncodedObject>;

/// An object in protobuf.
#[derive(Debug)]
pub(super) struct EncodedObject {
    /// Index of its resource in the set.
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

/// A file's bytes, or `None` if there is no regular file of that name. Other types of files are not opened: opening a
/// pipe would block.
pub(super) fn load(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    if metadata.len() <= MAX_SIZE {
        let file = match std::fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        file.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
    }
    if metadata.len() > MAX_SIZE || bytes.len() as u64 > MAX_SIZE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the file is larger than 64 MiB; split it into several files",
        ));
    }
    Ok(Some(bytes))
}

/// The objects of a file.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// All objects, with the last versions of rejected ones.
    pub(super) contents: Contents,
    /// Those that cannot be used.
    pub(super) rejected: Vec<Rejected>,
}

/// Parses a file, whose last version had the objects `known`. New and changed objects are passed to `changed`.
pub(super) fn scan<S: ResourceSet<E>, E>(
    name: &OsStr,
    bytes: &[u8],
    known: Option<&Contents>,
    changed: &mut dyn FnMut(&Arc<Key>, EncodedObject),
) -> Scan {
    let mut scan = Scan::default();
    parse_each::<S, E>(&name.to_string_lossy(), bytes, &mut |read| match read {
        Ok(Parsed { member, key, fingerprint, protobuf }) => {
            let key = Arc::new(key);
            if known.and_then(|known| known.get(&key)) != Some(&fingerprint) {
                changed(&key, EncodedObject { member, protobuf });
            }
            scan.contents.insert(key, fingerprint);
        }
        Err(rejected) => scan.rejected.push(*rejected),
    });
    if let Some(known) = known.filter(|_| !scan.rejected.is_empty()) {
        scan.keep_last_versions(known);
    }
    scan
}

impl Scan {
    /// Adds the last versions of rejected objects. A rejected object without a name may be any of those that are missing.
    fn keep_last_versions(&mut self, known: &Contents) {
        let names: Option<HashSet<Key>> = self.rejected.iter().map(rejected_key).collect();
        for (key, fingerprint) in known {
            if names.as_ref().is_none_or(|names| names.contains(key)) {
                self.contents.entry(key.clone()).or_insert(*fingerprint);
            }
        }
    }
}

fn rejected_key(rejected: &Rejected) -> Option<Key> {
    let Rejected { resource, namespace, name, .. } = rejected;
    let resource = resource.filter(|_| !name.is_empty())?;
    Some(Key { resource, namespace: namespace.clone(), name: name.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use portway_api::{EndpointSlice, Event, Service};

    const TEXT: &str = "
apiVersion: v1
kind: Service
metadata: {name: a, labels: {x: z}, deletionTimestamp: 2020-01-01T00:00:00Z}
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
    fn encoding_an_object_loses_no_fields() {
        let (events, _) = parse::<Set, Either>("a.yaml", TEXT.as_bytes());
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
    fn only_new_and_changed_objects_are_encoded() {
        let name = OsStr::new("a.yaml");
        let scan = |text: &str, known| {
            let mut names = Vec::new();
            let each = &mut |key: &Arc<Key>, _| names.push(key.name.clone());
            (scan::<Set, Either>(name, text.as_bytes(), known, each).contents, names)
        };
        let (contents, names) = scan(TEXT, None);
        assert_eq!((contents.len(), names), (2, vec!["a".to_owned(), "b".to_owned()]));
        let (_, names) = scan(&TEXT.replace("port: 80", "port: 81"), Some(&contents));
        assert_eq!(names, ["a"]);
    }
}
