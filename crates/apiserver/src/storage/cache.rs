//! A copy of all values in memory, and the latest changes in their order.
//!
//! Readers and watches use only this copy. A watch keeps nothing but a revision: it asks for the changes after it, and
//! is told if they are not known any more. So a slow one costs nothing, and delays no other.

use super::{Key, Revision, Stored};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

/// Changes that are kept at most.
const WINDOW: usize = 50_000;
/// Bytes of their values at most.
const WINDOW_BYTES: usize = 64 << 20;

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The revision of its transaction.
    pub revision: Revision,
    /// The key.
    pub key: Key,
    /// The value before it.
    pub old: Option<Stored>,
    /// The value after it; `None` if it was deleted.
    pub new: Option<Bytes>,
}

/// Why the changes after a revision cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownRevision {
    /// They are forgotten.
    #[error("the changes since this revision are not known any more; the oldest known revision is {oldest}")]
    Expired {
        /// The oldest revision from which changes are known.
        oldest: Revision,
    },
    /// The revision has not been reached. Its number may be of another state.
    #[error("there is no such revision yet; the latest one is {latest}")]
    Future {
        /// The latest revision.
        latest: Revision,
    },
}

/// The values in memory.
#[derive(Debug)]
pub struct Cache {
    state: RwLock<State>,
    revision: watch::Sender<Revision>,
    window: usize,
}

#[derive(Debug)]
struct State {
    values: BTreeMap<Key, Stored>,
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// Changes after this revision are all in `changes`.
    oldest: Revision,
    revision: Revision,
}

impl Cache {
    /// A copy of these values, which are those at a revision.
    pub fn new(values: BTreeMap<Key, Stored>, revision: Revision) -> Cache {
        Cache::with_window(values, revision, WINDOW)
    }

    /// The same, with another number of changes that are kept.
    pub fn with_window(values: BTreeMap<Key, Stored>, revision: Revision, window: usize) -> Cache {
        let state = State { values, changes: VecDeque::new(), bytes: 0, oldest: revision, revision };
        Cache { state: RwLock::new(state), revision: watch::Sender::new(revision), window }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest revision.
    pub fn revision(&self) -> Revision {
        self.read().revision
    }

    /// Follows the latest revision.
    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Stored> {
        self.read().values.get(key).cloned()
    }

    /// The values of keys with a prefix in their order, from a key on, and the revision at which they are these.
    pub fn list(&self, prefix: &str, from: Option<&str>, limit: usize) -> (Vec<(Key, Stored)>, Revision) {
        let state = self.read();
        let start = from.unwrap_or(prefix);
        let values = state.values.range::<str, _>((Bound::Included(start), Bound::Unbounded));
        let values = values.take_while(|(key, _)| key.as_str().starts_with(prefix)).take(limit);
        (values.map(|(key, stored)| (key.clone(), stored.clone())).collect(), state.revision)
    }

    /// The number of keys with a prefix from a key on.
    pub fn count(&self, prefix: &str, from: &str) -> usize {
        let state = self.read();
        let values = state.values.range::<str, _>((Bound::Included(from), Bound::Unbounded));
        values.take_while(|(key, _)| key.as_str().starts_with(prefix)).count()
    }

    /// Changes after a revision of keys with a prefix, and the revision up to which they were searched. At most `limit`
    /// changes are searched.
    pub fn changes(
        &self,
        after: Revision,
        prefix: &str,
        limit: usize,
    ) -> Result<(Vec<Arc<Change>>, Revision), UnknownRevision> {
        let state = self.read();
        if after < state.oldest {
            return Err(UnknownRevision::Expired { oldest: state.oldest });
        }
        if after > state.revision {
            return Err(UnknownRevision::Future { latest: state.revision });
        }
        let first = state.changes.partition_point(|change| change.revision <= after);
        let mut last = first.saturating_add(limit.max(1)).min(state.changes.len());
        // A transaction is searched whole.
        while last < state.changes.len() && state.changes[last].revision == state.changes[last - 1].revision {
            last += 1;
        }
        let searched = state.changes.range(first..last);
        let found = searched.filter(|change| change.key.as_str().starts_with(prefix)).cloned().collect();
        let position =
            if last == state.changes.len() { state.revision } else { state.changes[last - 1].revision };
        Ok((found, position))
    }

    /// Applies transactions in their order.
    pub(super) fn apply(
        &self,
        transactions: impl IntoIterator<Item = (Revision, Vec<(Key, Option<Bytes>)>)>,
    ) {
        let mut state = self.write();
        for (revision, writes) in transactions {
            for (key, new) in writes {
                state.set(revision, key, new);
            }
            state.revision = revision;
        }
        state.trim(self.window);
        let revision = state.revision;
        drop(state);
        self.revision.send_replace(revision);
    }

    /// Forgets all changes, so that every watch of an older revision expires.
    pub fn compact(&self) {
        let mut state = self.write();
        state.changes.clear();
        state.bytes = 0;
        state.oldest = state.revision;
    }
}

impl State {
    fn set(&mut self, revision: Revision, key: Key, new: Option<Bytes>) {
        let old = match &new {
            Some(value) => self.values.insert(key.clone(), Stored { value: value.clone(), revision }),
            None => self.values.remove(&key),
        };
        if old.is_none() && new.is_none() {
            return;
        }
        let change = Change { revision, key, old, new };
        self.bytes += change.size();
        self.changes.push_back(Arc::new(change));
    }

    /// Forgets the oldest changes, a whole transaction at a time.
    fn trim(&mut self, window: usize) {
        while self.changes.len() > window || self.bytes > WINDOW_BYTES {
            let Some(oldest) = self.changes.pop_front() else { return };
            self.bytes -= oldest.size();
            self.oldest = oldest.revision;
        }
    }
}

impl Change {
    fn size(&self) -> usize {
        self.old.as_ref().map_or(0, |old| old.value.len()) + self.new.as_ref().map_or(0, Bytes::len)
    }
}

#[cfg(test)]
mod tests;
