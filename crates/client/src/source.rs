//! What this crate sends, and the channel it sends it through.
//!
//! In: the futures of [`crate::watch`] and [`crate::manifests::watch`]. Out: their [`Notice`]s, in order per
//! kind. The channel is short on purpose: a decoded object waits in it only until the consumer has stored its
//! compact form, so the memory of a list does not depend on its length.

use crate::{Client, Selection};
use portway_model::api::{Event, Kind};
use std::fmt;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Decoded objects that may wait for the consumer. A large EndpointSlice is some 50 KB when decoded.
const CAPACITY: usize = 32;

/// One thing the consumer should know.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The world changed.
    Event(Event),
    /// An object or a file could not be read; the rest goes on.
    Rejected(Rejected),
    /// The source cannot be read at the moment. Sent when it begins and when its message changes.
    Trouble(Trouble),
    /// The trouble last reported for this kind is over.
    Recovered(Option<Kind>),
}

/// An object or a file that could not be decoded. What was known of it before stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Kind, if it is known.
    pub kind: Option<Kind>,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name, or empty.
    pub name: String,
    /// Unique id, or empty. Needed to attach a Kubernetes Event.
    pub uid: String,
    /// The file it is in, if it comes from one.
    pub file: Option<PathBuf>,
    /// The line in that file, counted from 1.
    pub line: Option<u64>,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{}:{line}: ", file.display())?,
            (Some(file), None) => write!(f, "{}: ", file.display())?,
            (None, _) => {}
        }
        if let Some(kind) = self.kind {
            write!(f, "{kind} ")?;
            if !self.namespace.is_empty() {
                write!(f, "{}/", self.namespace)?;
            }
            write!(f, "{}: ", self.name)?;
        }
        f.write_str(&self.reason)
    }
}

/// Why a source cannot be read, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kind whose list or watch fails; a directory fails as a whole.
    pub kind: Option<Kind>,
    /// What sort of trouble it is, for metrics and health.
    pub cause: Cause,
    /// What happened and what to do next, for people.
    pub message: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Sorts of [`Trouble`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// No connection, or a connection that breaks.
    Unreachable,
    /// The credential is not accepted (401).
    Unauthorized,
    /// The credential may not read this kind (403).
    Forbidden,
    /// The server does not know this kind (404).
    NotServed,
    /// The server asks us to come back later (429, 503).
    Overloaded,
    /// Any other refusal, or an answer that cannot be understood.
    Refused,
    /// The directory of manifests is missing or cannot be read.
    Directory,
}

/// A running source of [`Notice`]s. Dropping it stops everything it started.
#[derive(Debug)]
pub struct Source {
    notices: mpsc::Receiver<Notice>,
    _tasks: JoinSet<()>,
}

impl Source {
    /// Lists and watches each selection at an API server. Needs a tokio runtime.
    pub fn kubernetes(client: &Client, selections: impl IntoIterator<Item = Selection>) -> Self {
        let (sender, notices) = mpsc::channel(CAPACITY);
        let mut tasks = JoinSet::new();
        for selection in selections {
            tasks.spawn(crate::watch(client.clone(), selection, sender.clone()));
        }
        Source { notices, _tasks: tasks }
    }

    /// Reads and watches a directory of manifests. Needs a tokio runtime.
    pub fn manifests(directory: &Path) -> Self {
        let (sender, notices) = mpsc::channel(CAPACITY);
        let mut tasks = JoinSet::new();
        tasks.spawn(crate::manifests::watch(directory.to_owned(), sender));
        Source { notices, _tasks: tasks }
    }

    /// The next notice, or `None` once nothing can come any more. Cancel-safe.
    pub async fn next(&mut self) -> Option<Notice> {
        self.notices.recv().await
    }

    /// The next notice if one is already there, to take a burst in one go.
    pub fn ready(&mut self) -> Option<Notice> {
        self.notices.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_file_is_printed_as_compilers_do() {
        let rejected = Rejected {
            file: Some(PathBuf::from("m/web.yaml")),
            line: Some(7),
            reason: "invalid type".into(),
            ..Rejected::default()
        };
        assert_eq!(rejected.to_string(), "m/web.yaml:7: invalid type");
    }

    #[test]
    fn a_rejected_object_is_named() {
        let rejected = Rejected {
            kind: Some(Kind::Service),
            namespace: "default".into(),
            name: "web".into(),
            reason: "no ports".into(),
            ..Rejected::default()
        };
        assert_eq!(rejected.to_string(), "Service default/web: no ports");
        let node =
            Rejected { kind: Some(Kind::Node), namespace: String::new(), name: "n1".into(), ..rejected };
        assert_eq!(node.to_string(), "Node n1: no ports");
    }
}
