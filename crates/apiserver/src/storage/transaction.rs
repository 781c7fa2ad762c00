//! Transactions: conditions and writes of several keys, applied together or not at all.

use super::{Key, Revision, Stored};
use bytes::Bytes;

/// What has to hold of a key for a transaction to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key has no value.
    Absent,
    /// Its value was written at this revision.
    At(Revision),
}

impl Condition {
    /// Whether it holds of the value that a key has.
    pub fn holds(&self, found: Option<&Stored>) -> bool {
        match self {
            Condition::Absent => found.is_none(),
            Condition::At(revision) => found.is_some_and(|found| found.revision == *revision),
        }
    }
}

/// Conditions and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All of them have to hold.
    pub conditions: Vec<(Key, Condition)>,
    /// New values; `None` deletes.
    pub writes: Vec<(Key, Option<Bytes>)>,
}

impl Transaction {
    /// Creates a value.
    pub fn create(key: Key, value: impl Into<Bytes>) -> Transaction {
        Transaction::default().and(key, Condition::Absent, Some(value.into()))
    }

    /// Replaces a value that was written at a revision.
    pub fn replace(key: Key, at: Revision, value: impl Into<Bytes>) -> Transaction {
        Transaction::default().and(key, Condition::At(at), Some(value.into()))
    }

    /// Deletes a value that was written at a revision.
    pub fn delete(key: Key, at: Revision) -> Transaction {
        Transaction::default().and(key, Condition::At(at), None)
    }

    /// With one more key.
    pub fn and(mut self, key: Key, condition: Condition, value: Option<Bytes>) -> Transaction {
        self.conditions.push((key.clone(), condition));
        self.writes.push((key, value));
        self
    }
}

/// Why a transaction was not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// A condition does not hold.
    #[error("{key} is not as expected")]
    Failed {
        /// The key of the first condition that does not hold.
        key: Key,
        /// What is stored there.
        found: Option<Stored>,
    },
    /// It could not be written to the disk. It is not in force, and a later attempt may succeed. Whether it is on disk
    /// is not known until the next one has: only if the process ends before that, it may be there afterwards.
    #[error("cannot write to the storage: {0}")]
    Unavailable(String),
    /// The storage has been closed.
    #[error("the storage is closed")]
    Closed,
}
