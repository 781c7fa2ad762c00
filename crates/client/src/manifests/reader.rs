//! Reads files and sends the changes.
//!
//! In: which files may have changed. Out: [`Notice`]s. Blocks, on the disk and on a full channel, so it runs on a thread
//! of its own.

use super::file::{Fresh, Packed, list, load, scan};
use super::fingerprint;
use super::index::{Change, Contents, Index, Key};
use super::inotify::Dirty;
use super::parse::ParseError;
use super::set::{Member, ResourceSet};
use crate::source::Sink;
use crate::{Notice, Rejected};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    /// The consumer is gone.
    #[error("the consumer is gone")]
    Closed,
    /// The directory cannot be listed.
    #[error(transparent)]
    Directory(#[from] io::Error),
}

/// The contents of a directory as they were last sent.
#[derive(Debug)]
pub(super) struct Reader<S, E> {
    directory: PathBuf,
    sink: Sink<E>,
    members: Vec<Member<E>>,
    index: Index,
    /// Fingerprint of each file as it was last read, good or bad, so that it is reported once.
    seen: HashMap<OsString, u64>,
    started: bool,
    set: PhantomData<S>,
}

/// The state of a file.
enum Found {
    Same,
    Gone,
    Good(Contents, Fresh),
    Bad(ParseError),
}

impl<S: ResourceSet<E>, E> Reader<S, E> {
    pub(super) fn new(directory: PathBuf, sink: Sink<E>) -> Self {
        let (index, seen) = (Index::default(), HashMap::new());
        Reader { directory, sink, members: S::members(), index, seen, started: false, set: PhantomData }
    }

    /// Reads the files that may have changed. The first time it sends everything.
    pub(super) fn refresh(&mut self, dirty: &Dirty) -> Result<(), Stop> {
        let sent = self.refresh_files(dirty);
        self.sink.flush_blocking().map_err(|_| Stop::Closed)?;
        sent
    }

    fn refresh_files(&mut self, dirty: &Dirty) -> Result<(), Stop> {
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

    /// File by file, in the order in which they win, so that one file is in memory at a time and nothing that was sent
    /// has to be taken back.
    fn start(&mut self, names: BTreeSet<OsString>) -> Result<(), Stop> {
        for init in self.members.iter().map(|member| member.init).collect::<Vec<_>>() {
            self.send(Notice::Event(init()), 0)?;
        }
        for name in names {
            self.read(BTreeSet::from([name]))?;
        }
        for done in self.members.iter().map(|member| member.done).collect::<Vec<_>>() {
            self.send(Notice::Event(done()), 0)?;
        }
        self.started = true;
        Ok(())
    }

    fn read(&mut self, names: BTreeSet<OsString>) -> Result<(), Stop> {
        let mut batch = Vec::new();
        let mut news = HashMap::new();
        for name in names {
            match self.inspect(&name) {
                Found::Same => {}
                Found::Gone => batch.push((name, None)),
                Found::Good(contents, fresh) => {
                    news.insert(name.clone(), fresh);
                    batch.push((name, Some(contents)));
                }
                Found::Bad(ParseError { line, reason }) => {
                    let file = Some(self.directory.join(name));
                    self.send(Notice::Rejected(Rejected { file, line, reason, ..Rejected::default() }), 0)?;
                }
            }
        }
        let changes = self.index.update(batch);
        self.send_changes(changes, news)
    }

    fn inspect(&mut self, name: &OsStr) -> Found {
        let (print, found) = match load(&self.directory.join(name)) {
            Ok(None) => {
                self.seen.remove(name);
                return Found::Gone;
            }
            Ok(Some(bytes)) => {
                let print = fingerprint::of(&bytes);
                if self.seen.get(name) == Some(&print) {
                    return Found::Same;
                }
                let found = match scan::<S, E>(name, &bytes, self.index.contents(name)) {
                    Ok((contents, fresh)) => Found::Good(contents, fresh),
                    Err(error) => Found::Bad(error),
                };
                (print, found)
            }
            Err(error) => {
                let reason = format!("it cannot be read: {error}");
                (fingerprint::of(&reason), Found::Bad(ParseError { line: None, reason }))
            }
        };
        match self.seen.insert(name.to_owned(), print) {
            Some(before) if before == print => Found::Same,
            _ => found,
        }
    }

    fn send_changes(&mut self, changes: Vec<Change>, mut news: HashMap<OsString, Fresh>) -> Result<(), Stop> {
        let mut wanted: BTreeMap<OsString, Vec<Arc<Key>>> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Apply { key, file } => {
                    wanted.entry(file).or_default().push(key);
                }
                Change::Delete { key } => self.delete(&key)?,
                Change::Duplicate { key, file, winner } => {
                    let winner = self.directory.join(winner);
                    let rejected = Rejected {
                        resource: Some(key.resource),
                        namespace: key.namespace.clone(),
                        name: key.name.clone(),
                        file: Some(self.directory.join(file)),
                        reason: format!("it is also in {}, which comes first and counts", winner.display()),
                        ..Rejected::default()
                    };
                    self.send(Notice::Rejected(rejected), 0)?;
                }
            }
        }
        for (file, keys) in wanted {
            let fresh = news.remove(&file).unwrap_or_default();
            self.apply(&file, keys, fresh)?;
        }
        Ok(())
    }

    /// Sends objects of a file: those that have just been read, and those that take over from another file, for which
    /// it is read anew.
    fn apply(&mut self, file: &OsStr, keys: Vec<Arc<Key>>, mut fresh: Fresh) -> Result<(), Stop> {
        let mut taking_over = Vec::new();
        for key in keys {
            match fresh.remove(&key) {
                Some(packed) => self.send_packed(&packed)?,
                None => taking_over.push(key),
            }
        }
        if taking_over.is_empty() {
            return Ok(());
        }
        let bytes = load(&self.directory.join(file)).ok().flatten().unwrap_or_default();
        let (contents, mut fresh) = scan::<S, E>(file, &bytes, None).unwrap_or_default();
        for key in taking_over {
            // The file may have changed or been broken since it was read. What is sent goes into the index, so that its
            // next reading brings the rest.
            self.index.correct(file, &key, contents.get(&key).copied());
            match fresh.remove(&key) {
                Some(packed) => self.send_packed(&packed)?,
                None => self.delete(&key)?,
            }
        }
        Ok(())
    }

    fn send_packed(&mut self, packed: &Packed) -> Result<(), Stop> {
        match (self.members[packed.member].apply)(&packed.protobuf) {
            Ok(event) => self.send(Notice::Event(event), packed.protobuf.len()),
            Err(error) => {
                tracing::error!(%error, "an object could not be unpacked");
                Ok(())
            }
        }
    }

    fn delete(&mut self, key: &Key) -> Result<(), Stop> {
        let Key { resource, namespace, name } = key.clone();
        match self.members.iter().find(|member| member.resource == resource).map(|member| member.delete) {
            Some(delete) => self.send(Notice::Event(delete(namespace, name)), 0),
            None => Ok(()),
        }
    }

    fn send(&mut self, notice: Notice<E>, bytes: usize) -> Result<(), Stop> {
        if self.sink.push(notice, bytes) {
            self.sink.flush_blocking().map_err(|_| Stop::Closed)?;
        }
        Ok(())
    }
}
