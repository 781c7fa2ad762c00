//! Reads files and sends the changes.
//!
//! In: the files that may have changed. Out: [`Notice`]s. Blocks on the disk and on a full channel, so it runs on a
//! blocking thread.

use super::file::{ChangedObjects, EncodedObject, Scan, list, load, scan};
use super::fingerprint;
use super::index::{Change, Index, Key};
use super::inotify::Dirty;
use super::set::{Member, ResourceSet};
use crate::source::Sink;
use crate::{Notice, Rejected};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;

/// Why files could not be read or changes not be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The consumer has dropped the source.
    #[error("the consumer has dropped the source")]
    Closed,
    /// The directory cannot be listed.
    #[error(transparent)]
    Directory(#[from] io::Error),
}

/// Reads a directory, and knows the contents that were last sent.
#[derive(Debug)]
pub(super) struct Reader<S, E> {
    directory: PathBuf,
    sink: Sink<E>,
    members: Vec<Member<E>>,
    index: Index,
    /// Fingerprint of each file, valid or not, at its last reading, so that an error is reported once.
    seen: HashMap<OsString, u64>,
    /// Fingerprints of the rejections of each file at its last reading, so that each is reported once.
    rejected: HashMap<OsString, HashSet<u64>>,
    /// Files that changed, but could not be read.
    unread: Dirty,
    started: bool,
    set: PhantomData<S>,
}

/// The result of reading a file.
enum FileState {
    Unchanged,
    Missing,
    /// It is new or has changed.
    Changed(Vec<u8>),
    Unreadable(String),
}

impl<S: ResourceSet<E>, E> Reader<S, E> {
    pub(super) fn new(directory: PathBuf, sink: Sink<E>) -> Self {
        Reader {
            directory,
            sink,
            members: S::members(),
            index: Index::default(),
            seen: HashMap::new(),
            rejected: HashMap::new(),
            unread: Dirty::default(),
            started: false,
            set: PhantomData,
        }
    }

    /// Whether files changed that could not be read, so that [`Reader::refresh`] should be called again later.
    pub(super) fn has_unread(&self) -> bool {
        self.unread != Dirty::default()
    }

    /// Reads the files that may have changed, with those that could not be read before, and sends the changes. The first
    /// call sends all objects.
    pub(super) fn refresh(&mut self, mut dirty: Dirty) -> Result<(), ReadError> {
        dirty.merge(std::mem::take(&mut self.unread));
        let sent = self.refresh_files(&dirty);
        if let Err(ReadError::Directory(_)) = sent {
            self.unread.merge(dirty);
        }
        self.sink.flush_blocking().map_err(|_| ReadError::Closed)?;
        sent
    }

    fn refresh_files(&mut self, dirty: &Dirty) -> Result<(), ReadError> {
        let listed = list(&self.directory)?;
        if !self.started {
            return self.start(listed);
        }
        let names: BTreeSet<OsString> = match dirty.all {
            true => listed.into_iter().chain(self.index.files().cloned()).collect(),
            false => dirty.names.clone(),
        };
        self.read(names)
    }

    /// Sends the first list, file by file in order of precedence, so that no object that was sent is replaced by one in a
    /// later file.
    fn start(&mut self, names: BTreeSet<OsString>) -> Result<(), ReadError> {
        for init in self.members.iter().map(|member| member.init).collect::<Vec<_>>() {
            self.send(Notice::Event(init()), 0)?;
        }
        for name in names {
            match self.inspect(&name) {
                FileState::Unchanged | FileState::Missing => {}
                FileState::Changed(bytes) => self.send_first(name, &bytes)?,
                FileState::Unreadable(reason) => self.report_unreadable(&name, reason)?,
            }
        }
        for done in self.members.iter().map(|member| member.done).collect::<Vec<_>>() {
            self.send(Notice::Event(done()), 0)?;
        }
        self.started = true;
        Ok(())
    }

    /// Sends the objects of a file of the first list, except those of earlier files. Each is sent when it has been read:
    /// holding all objects of a large file would take as much memory as the agent needs afterwards.
    fn send_first(&mut self, name: OsString, bytes: &[u8]) -> Result<(), ReadError> {
        let mut sent = Ok(());
        let Scan { contents, rejected } = scan::<S, E>(&name, bytes, None, &mut |key, object| {
            if sent.is_ok() && !self.index.contains(key) {
                sent = self.send_object(&object);
            }
        });
        sent?;
        self.report(&name, rejected)?;
        let mut changes = self.index.update(vec![(name, Some(contents))]);
        changes.retain(|change| !matches!(change, Change::Apply { .. }));
        self.send_changes(changes, HashMap::new())
    }

    fn read(&mut self, names: BTreeSet<OsString>) -> Result<(), ReadError> {
        let mut batch = Vec::new();
        let mut changed_by_file = HashMap::new();
        for name in names {
            match self.inspect(&name) {
                FileState::Unchanged => {}
                FileState::Missing => {
                    self.rejected.remove(&name);
                    batch.push((name, None));
                }
                FileState::Changed(bytes) => {
                    let mut changed = ChangedObjects::new();
                    let known = self.index.contents(&name);
                    let Scan { contents, rejected } =
                        scan::<S, E>(&name, &bytes, known, &mut |key, object| {
                            changed.insert(key.clone(), object);
                        });
                    self.report(&name, rejected)?;
                    changed_by_file.insert(name.clone(), changed);
                    batch.push((name, Some(contents)));
                }
                FileState::Unreadable(reason) => self.report_unreadable(&name, reason)?,
            }
        }
        let changes = self.index.update(batch);
        self.send_changes(changes, changed_by_file)
    }

    fn inspect(&mut self, name: &OsStr) -> FileState {
        let read = load(&self.directory.join(name)).map_err(|error| format!("cannot read the file: {error}"));
        let print = match &read {
            Ok(Some(bytes)) => fingerprint::hash_of(bytes),
            Ok(None) => {
                self.seen.remove(name);
                return FileState::Missing;
            }
            Err(reason) => {
                self.unread.names.insert(name.to_owned());
                fingerprint::hash_of(reason)
            }
        };
        if self.seen.insert(name.to_owned(), print) == Some(print) {
            return FileState::Unchanged;
        }
        match read {
            Ok(bytes) => FileState::Changed(bytes.unwrap_or_default()),
            Err(reason) => FileState::Unreadable(reason),
        }
    }

    fn report_unreadable(&mut self, name: &OsStr, reason: String) -> Result<(), ReadError> {
        let file = Some(self.directory.join(name));
        self.send(Notice::Rejected(Rejected { file, reason, ..Rejected::default() }), 0)
    }

    /// Sends the rejected objects of a file, except those that were also rejected at its last reading.
    fn report(&mut self, name: &OsStr, rejected: Vec<Rejected>) -> Result<(), ReadError> {
        let known = self.rejected.remove(name).unwrap_or_default();
        let mut prints = HashSet::new();
        for rejected in rejected {
            let Rejected { resource, namespace, name: object, field, reason, .. } = &rejected;
            // Without the line, if the object has a name: other changes to the file may have moved it.
            let line = rejected.line.filter(|_| object.is_empty());
            let print = fingerprint::hash_of(&(resource, namespace, object, line, field, reason));
            if prints.insert(print) && !known.contains(&print) {
                let file = Some(self.directory.join(name));
                self.send(Notice::Rejected(Rejected { file, ..rejected }), 0)?;
            }
        }
        if !prints.is_empty() {
            self.rejected.insert(name.to_owned(), prints);
        }
        Ok(())
    }

    fn send_changes(
        &mut self,
        changes: Vec<Change>,
        mut changed_by_file: HashMap<OsString, ChangedObjects>,
    ) -> Result<(), ReadError> {
        let mut keys_by_file: BTreeMap<OsString, Vec<Arc<Key>>> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Apply { key, file } => {
                    keys_by_file.entry(file).or_default().push(key);
                }
                Change::Delete { key } => self.delete(&key)?,
                Change::Duplicate { key, file, winner } => {
                    let winner = self.directory.join(winner);
                    let rejected = Rejected {
                        resource: Some(key.resource),
                        namespace: key.namespace.clone(),
                        name: key.name.clone(),
                        file: Some(self.directory.join(file)),
                        reason: format!(
                            "it is ignored, because {} also has it and takes precedence",
                            winner.display()
                        ),
                        ..Rejected::default()
                    };
                    self.send(Notice::Rejected(rejected), 0)?;
                }
            }
        }
        for (file, keys) in keys_by_file {
            let changed = changed_by_file.remove(&file).unwrap_or_default();
            self.apply(&file, keys, changed)?;
        }
        Ok(())
    }

    /// Sends objects of a file: those that have just been read, and those that replace an object of another file, for
    /// which the file is read again.
    fn apply(
        &mut self,
        file: &OsStr,
        keys: Vec<Arc<Key>>,
        mut changed: ChangedObjects,
    ) -> Result<(), ReadError> {
        let mut replacing = BTreeSet::new();
        for key in keys {
            match changed.remove(&key) {
                Some(object) => self.send_object(&object)?,
                None => {
                    replacing.insert(key);
                }
            }
        }
        if replacing.is_empty() {
            return Ok(());
        }
        let Ok(bytes) = load(&self.directory.join(file)) else {
            // The replaced objects stay until the file can be read.
            replacing.iter().for_each(|key| self.index.correct(file, key, None));
            self.seen.remove(file);
            self.unread.names.insert(file.to_owned());
            return Ok(());
        };
        let mut changed = ChangedObjects::new();
        let Scan { contents, .. } =
            scan::<S, E>(file, &bytes.unwrap_or_default(), None, &mut |key, object| {
                if replacing.contains(key) {
                    changed.insert(key.clone(), object);
                }
            });
        for key in replacing {
            // The file may have changed or become invalid since it was indexed. The index gets the fingerprint that is
            // sent, so that the next reading of the file finds the other changes.
            self.index.correct(file, &key, contents.get(&key).copied());
            match changed.remove(&key) {
                Some(object) => self.send_object(&object)?,
                None => self.delete(&key)?,
            }
        }
        Ok(())
    }

    fn send_object(&mut self, object: &EncodedObject) -> Result<(), ReadError> {
        match (self.members[object.member].apply)(&object.protobuf) {
            Ok(event) => self.send(Notice::Event(event), object.protobuf.len()),
            Err(error) => {
                tracing::error!(%error, "cannot decode an object of a manifest");
                Ok(())
            }
        }
    }

    fn delete(&mut self, key: &Key) -> Result<(), ReadError> {
        let Key { resource, namespace, name } = key.clone();
        match self.members.iter().find(|member| member.resource == resource).map(|member| member.delete) {
            Some(delete) => self.send(Notice::Event(delete(namespace, name)), 0),
            None => Ok(()),
        }
    }

    fn send(&mut self, notice: Notice<E>, bytes: usize) -> Result<(), ReadError> {
        if self.sink.push(notice, bytes) {
            self.sink.flush_blocking().map_err(|_| ReadError::Closed)?;
        }
        Ok(())
    }
}
