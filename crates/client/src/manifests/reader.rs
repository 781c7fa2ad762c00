//! Reads files and tells what that changes.
//!
//! In: which files may have changed. Out: [`Notice`]s. Blocks, on the disk and on a full channel, so it runs on a thread
//! of its own.

use super::file::{Fresh, Packed, list, load, scan};
use super::fingerprint;
use super::index::{Change, Contents, Index, Key};
use super::inotify::Dirty;
use super::parse::ParseError;
use crate::{Notice, Rejected};
use portway_model::api::{Event, Kind};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc::Sender;

const KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    /// Nobody listens any more.
    #[error("nobody listens")]
    Closed,
    /// The directory cannot be listed.
    #[error(transparent)]
    Directory(#[from] io::Error),
}

/// What has been read and told so far.
#[derive(Debug)]
pub(super) struct Reader {
    directory: PathBuf,
    notices: Sender<Notice>,
    index: Index,
    /// What was last seen in each file, good or bad, so that it is told once.
    seen: HashMap<OsString, u64>,
    started: bool,
}

/// What a file is like now.
enum Found {
    Same,
    Gone,
    Good(Contents, Fresh),
    Bad(ParseError),
}

impl Reader {
    pub(super) fn new(directory: PathBuf, notices: Sender<Notice>) -> Self {
        Reader { directory, notices, index: Index::default(), seen: HashMap::new(), started: false }
    }

    /// Looks at the files that may have changed. The first time it tells everything.
    pub(super) fn refresh(&mut self, dirty: &Dirty) -> Result<(), Stop> {
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

    /// File by file, in the order in which they win, so that one file is in memory at a time and nothing that was told has
    /// to be taken back.
    fn start(&mut self, names: BTreeSet<OsString>) -> Result<(), Stop> {
        for kind in KINDS {
            self.send(Notice::Event(Event::Init(kind)))?;
        }
        for name in names {
            self.read(BTreeSet::from([name]))?;
        }
        for kind in KINDS {
            self.send(Notice::Event(Event::InitDone(kind)))?;
        }
        self.started = true;
        Ok(())
    }

    fn read(&mut self, names: BTreeSet<OsString>) -> Result<(), Stop> {
        let mut batch = Vec::new();
        let mut news = HashMap::new();
        for name in names {
            match self.look(&name) {
                Found::Same => {}
                Found::Gone => batch.push((name, None)),
                Found::Good(contents, fresh) => {
                    news.insert(name.clone(), fresh);
                    batch.push((name, Some(contents)));
                }
                Found::Bad(ParseError { line, reason }) => {
                    let file = Some(self.directory.join(name));
                    self.send(Notice::Rejected(Rejected { file, line, reason, ..Rejected::default() }))?;
                }
            }
        }
        let changes = self.index.update(batch);
        self.tell(changes, news)
    }

    fn look(&mut self, name: &OsStr) -> Found {
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
                let found = match scan(name, &bytes, self.index.contents(name)) {
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

    fn tell(&mut self, changes: Vec<Change>, mut news: HashMap<OsString, Fresh>) -> Result<(), Stop> {
        let mut wanted: BTreeMap<OsString, Vec<Arc<Key>>> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Apply { key, file } => {
                    wanted.entry(file).or_default().push(key);
                }
                Change::Delete { key } => self.delete(&key)?,
                Change::Duplicate { key, file, winner } => self.send(Notice::Rejected(Rejected {
                    kind: Some(key.kind),
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    file: Some(self.directory.join(file)),
                    reason: format!(
                        "it is also in {}, which comes first and counts",
                        self.directory.join(winner).display()
                    ),
                    ..Rejected::default()
                }))?,
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
        let (contents, mut fresh) = scan(file, &bytes, None).unwrap_or_default();
        for key in taking_over {
            // The file may have changed or been broken since it was looked at. What is told goes into the index, so that
            // its next reading brings the rest.
            self.index.correct(file, &key, contents.get(&key).copied());
            match fresh.remove(&key) {
                Some(packed) => self.send_packed(&packed)?,
                None => self.delete(&key)?,
            }
        }
        Ok(())
    }

    fn send_packed(&self, packed: &Packed) -> Result<(), Stop> {
        match packed.unpack() {
            Ok(object) => self.send(Notice::Event(Event::Apply(Box::new(object)))),
            Err(error) => {
                tracing::error!(%error, "an object could not be unpacked");
                Ok(())
            }
        }
    }

    fn delete(&self, key: &Key) -> Result<(), Stop> {
        let Key { kind, namespace, name } = key.clone();
        self.send(Notice::Event(Event::Delete { kind, namespace, name }))
    }

    fn send(&self, notice: Notice) -> Result<(), Stop> {
        self.notices.blocking_send(notice).map_err(|_| Stop::Closed)
    }
}
