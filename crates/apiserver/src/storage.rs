//! Where objects are stored: keys with values, changed by transactions.
//!
//! In: transactions, each a list of conditions and of writes. Out: revisions, a copy of everything in memory
//! ([`Cache`]), and the changes in their order. What always holds: a transaction is applied whole or not at all, an
//! acknowledged one is on disk, every transaction has its own revision, greater than all before, and a reader that
//! follows the changes from a revision sees every later one, or is told that the history does not reach so far back.

pub mod cache;
pub mod embedded;
mod transaction;

pub use cache::{Cache, Change, UnknownRevision};
pub use transaction::{CommitError, Condition, Transaction};

use bytes::Bytes;
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The number of a transaction. That of an object is that of its last change.
pub type Revision = u64;

/// The name of a value, as in `/registry/services/default/web`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The key with this text.
    pub fn new(text: &str) -> Key {
        Key(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value, and the revision at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The value.
    pub value: Bytes,
    /// When it was written.
    pub revision: Revision,
}
