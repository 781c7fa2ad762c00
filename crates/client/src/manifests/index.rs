//! Index of the objects in all files, and which file takes precedence for each object.
//!
//! In: the contents of files, as names and fingerprints. Out: changes. Pure. A batch is compared as a whole, so that an
//! object that moves from one file to another is not deleted in between.

use portway_api::ResourceType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

/// Resource, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) resource: ResourceType,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The objects of a file and their fingerprints.
pub(super) type Contents = HashMap<Arc<Key>, u64>;

/// A change that results from a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The object is new or has changed; its current version is in this file.
    Apply { key: Arc<Key>, file: OsString },
    /// The object is in no file any more.
    Delete { key: Arc<Key> },
    /// The object in `file` is ignored, because it is also in `winner`, which takes precedence.
    Duplicate { key: Arc<Key>, file: OsString, winner: OsString },
}

/// The files and their contents.
#[derive(Debug, Default)]
pub(super) struct Index {
    files: BTreeMap<OsString, Contents>,
    /// The files that contain each object, sorted.
    files_by_key: HashMap<Arc<Key>, Vec<OsString>>,
}

/// The files that contain an object, in order of precedence.
#[derive(PartialEq)]
struct Precedence {
    /// The first file, and the object's fingerprint in it.
    winner: Option<(OsString, u64)>,
    losers: Vec<OsString>,
}

impl Index {
    /// The names of all files.
    pub(super) fn files(&self) -> impl Iterator<Item = &OsString> {
        self.files.keys()
    }

    /// Replaces the contents of files; `None` for a file that was removed.
    pub(super) fn update(&mut self, batch: Vec<(OsString, Option<Contents>)>) -> Vec<Change> {
        let before: Vec<_> =
            self.affected_keys(&batch).into_iter().map(|key| (self.precedence(&key), key)).collect();
        for (file, contents) in batch {
            self.replace(file, contents);
        }
        let mut changes = Vec::new();
        for (before, key) in before {
            let after = self.precedence(&key);
            self.compare(&key, &before, after, &mut changes);
        }
        changes
    }

    /// Whether the object is in any file.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.files_by_key.contains_key(key)
    }

    /// The contents of a file.
    pub(super) fn contents(&self, file: &OsStr) -> Option<&Contents> {
        self.files.get(file)
    }

    /// Corrects the fingerprint of an object whose file has changed since it was indexed. `None` sets a fingerprint
    /// that no object has, so that the next reading of the file counts as a change.
    pub(super) fn correct(&mut self, file: &OsStr, key: &Arc<Key>, fingerprint: Option<u64>) {
        if let Some(known) = self.files.get_mut(file).and_then(|contents| contents.get_mut(key)) {
            *known = fingerprint.unwrap_or(0);
        }
    }

    fn affected_keys(&self, batch: &[(OsString, Option<Contents>)]) -> BTreeSet<Arc<Key>> {
        let old = batch.iter().filter_map(|(file, _)| self.files.get(file));
        let new = batch.iter().filter_map(|(_, contents)| contents.as_ref());
        old.chain(new).flat_map(|contents| contents.keys().cloned()).collect()
    }

    fn precedence(&self, key: &Arc<Key>) -> Precedence {
        let mut files = self.files_by_key.get(key).into_iter().flatten();
        let winner = files.next().and_then(|file| Some((file.clone(), *self.files.get(file)?.get(key)?)));
        Precedence { winner, losers: files.cloned().collect() }
    }

    fn replace(&mut self, file: OsString, contents: Option<Contents>) {
        for key in self.files.remove(&file).unwrap_or_default().into_keys() {
            if let Some(files) = self.files_by_key.get_mut(&key) {
                files.retain(|other| *other != file);
                if files.is_empty() {
                    self.files_by_key.remove(&key);
                }
            }
        }
        let Some(contents) = contents else { return };
        for key in contents.keys() {
            // Nearly all objects are in one file.
            let files = self.files_by_key.entry(key.clone()).or_insert_with(|| Vec::with_capacity(1));
            let position = files.partition_point(|other| *other < file);
            files.insert(position, file.clone());
        }
        self.files.insert(file, contents);
    }

    fn compare(&self, key: &Arc<Key>, before: &Precedence, after: Precedence, changes: &mut Vec<Change>) {
        let fingerprint =
            |precedence: &Precedence| precedence.winner.as_ref().map(|(_, fingerprint)| *fingerprint);
        let changed = fingerprint(before) != fingerprint(&after);
        let same_winner = |a: &Precedence, b: &Precedence| {
            a.winner.as_ref().map(|(file, _)| file) == b.winner.as_ref().map(|(file, _)| file)
        };
        let unchanged_winner = same_winner(before, &after);
        let Some((winner, _)) = after.winner else {
            if before.winner.is_some() {
                changes.push(Change::Delete { key: key.clone() });
            }
            return;
        };
        for file in after.losers {
            if !(unchanged_winner && before.losers.contains(&file)) {
                changes.push(Change::Duplicate { key: key.clone(), file, winner: winner.clone() });
            }
        }
        if changed {
            changes.push(Change::Apply { key: key.clone(), file: winner });
        }
    }
}

#[cfg(test)]
mod tests;
