//! Which object is in which file, and which file counts.
//!
//! In: the contents of files, as names and fingerprints. Out: changes. Pure. A batch is looked at as a whole, so
//! that an object that moves from one file to another does not vanish in between.

use portway_api::ResourceType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

/// An object's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) resource: ResourceType,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A file's objects and their fingerprints.
pub(super) type Contents = HashMap<Arc<Key>, u64>;

/// A change that a batch makes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The object is now as it is in this file.
    Apply { key: Arc<Key>, file: OsString },
    /// The object is in no file any more.
    Delete { key: Arc<Key> },
    /// The object is in two files.
    Duplicate { key: Arc<Key>, file: OsString, winner: OsString },
}

/// The files and their contents.
#[derive(Debug, Default)]
pub(super) struct Index {
    files: BTreeMap<OsString, Contents>,
    /// The files of each object, sorted.
    places: HashMap<Arc<Key>, Vec<OsString>>,
}

/// Which file counts for an object.
#[derive(PartialEq)]
struct Standing {
    winner: Option<(OsString, u64)>,
    losers: Vec<OsString>,
}

impl Index {
    /// The files that are known.
    pub(super) fn files(&self) -> impl Iterator<Item = &OsString> {
        self.files.keys()
    }

    /// Replaces the contents of files; `None` for a file that is gone.
    pub(super) fn update(&mut self, batch: Vec<(OsString, Option<Contents>)>) -> Vec<Change> {
        let before: Vec<_> = self.touched(&batch).into_iter().map(|key| (self.standing(&key), key)).collect();
        for (file, contents) in batch {
            self.replace(file, contents);
        }
        let mut changes = Vec::new();
        for (before, key) in before {
            let after = self.standing(&key);
            self.compare(&key, &before, after, &mut changes);
        }
        changes
    }

    /// The contents of a file.
    pub(super) fn contents(&self, file: &OsStr) -> Option<&Contents> {
        self.files.get(file)
    }

    /// Corrects a fingerprint that has proved wrong since; `None` is a fingerprint that no object has.
    pub(super) fn correct(&mut self, file: &OsStr, key: &Arc<Key>, fingerprint: Option<u64>) {
        if let Some(known) = self.files.get_mut(file).and_then(|contents| contents.get_mut(key)) {
            *known = fingerprint.unwrap_or(0);
        }
    }

    fn touched(&self, batch: &[(OsString, Option<Contents>)]) -> BTreeSet<Arc<Key>> {
        let old = batch.iter().filter_map(|(file, _)| self.files.get(file));
        let new = batch.iter().filter_map(|(_, contents)| contents.as_ref());
        old.chain(new).flat_map(|contents| contents.keys().cloned()).collect()
    }

    fn standing(&self, key: &Arc<Key>) -> Standing {
        let mut files = self.places.get(key).into_iter().flatten();
        let winner = files.next().and_then(|file| Some((file.clone(), *self.files.get(file)?.get(key)?)));
        Standing { winner, losers: files.cloned().collect() }
    }

    fn replace(&mut self, file: OsString, contents: Option<Contents>) {
        for key in self.files.remove(&file).unwrap_or_default().into_keys() {
            if let Some(files) = self.places.get_mut(&key) {
                files.retain(|other| *other != file);
                if files.is_empty() {
                    self.places.remove(&key);
                }
            }
        }
        let Some(contents) = contents else { return };
        for key in contents.keys() {
            let files = self.places.entry(key.clone()).or_default();
            let place = files.partition_point(|other| *other < file);
            files.insert(place, file.clone());
        }
        self.files.insert(file, contents);
    }

    fn compare(&self, key: &Arc<Key>, before: &Standing, after: Standing, changes: &mut Vec<Change>) {
        let fingerprint = |standing: &Standing| standing.winner.as_ref().map(|(_, fingerprint)| *fingerprint);
        let changed = fingerprint(before) != fingerprint(&after);
        let same_winner = |a: &Standing, b: &Standing| {
            a.winner.as_ref().map(|(file, _)| file) == b.winner.as_ref().map(|(file, _)| file)
        };
        let known = same_winner(before, &after);
        let Some((winner, _)) = after.winner else {
            if before.winner.is_some() {
                changes.push(Change::Delete { key: key.clone() });
            }
            return;
        };
        for file in after.losers {
            if !(known && before.losers.contains(&file)) {
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
