//! What a source of objects sends, and the channel it sends it through.
//!
//! In: the futures of [`crate::watch`] and [`crate::manifests::watch`]. Out: their [`Notice`]s, in order per resource,
//! with `E`, the consumer's own type for the events of all its resources. The channel holds few objects on purpose: a
//! decoded object waits in it only until the consumer has stored its compact form, so the memory of a list does not
//! depend on its length.

mod sink;

pub use sink::Sink;

use crate::manifests::ResourceSet;
use crate::{Client, Selection};
use portway_api::{Event, Resource, ResourceType};
use std::fmt;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One message to the consumer.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice<E> {
    /// Objects changed.
    Event(E),
    /// An object or a file could not be read; the others are sent as usual.
    Rejected(Rejected),
    /// The source cannot be read at the moment. Sent when it begins and when its message changes.
    Outage(Outage),
    /// The outage last reported for this resource is over.
    Recovered(Option<ResourceType>),
}

/// An object or a file that could not be decoded. Its last good version stays in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Resource, if it is known.
    pub resource: Option<ResourceType>,
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
    /// The mistake.
    pub reason: String,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{}:{line}: ", file.display())?,
            (Some(file), None) => write!(f, "{}: ", file.display())?,
            (None, _) => {}
        }
        if let Some(resource) = self.resource {
            write!(f, "{resource} ")?;
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
pub struct Outage {
    /// The resource whose list or watch fails; a directory fails as a whole.
    pub resource: Option<ResourceType>,
    /// Its class, for metrics and health.
    pub reason: OutageReason,
    /// The failure and the next step, for people.
    pub message: String,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Classes of [`Outage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutageReason {
    /// No connection, or a connection that breaks.
    Unreachable,
    /// The credential is not accepted (401).
    Unauthorized,
    /// The credential may not read this resource (403).
    Forbidden,
    /// The server does not have this resource (404).
    NotServed,
    /// The server asks for fewer requests (429, 503).
    Overloaded,
    /// Any other refusal, or a response that cannot be decoded.
    Refused,
    /// The directory of manifests is missing or cannot be read.
    Directory,
}

/// A running source of [`Notice`]s. Dropping it stops everything it started.
#[derive(Debug)]
pub struct Source<E> {
    batches: mpsc::Receiver<Vec<Notice<E>>>,
    batch: std::vec::IntoIter<Notice<E>>,
    _tasks: JoinSet<()>,
}

/// A channel of notices: watches push into the [`Sink`], the consumer takes them from the [`Source`].
pub fn channel<E>() -> (Sink<E>, Source<E>) {
    let (sink, batches) = sink::channel();
    (sink, Source { batches, batch: Vec::new().into_iter(), _tasks: JoinSet::new() })
}

impl<E: Send + 'static> Source<E> {
    /// Lists and watches resources at an API server. Needs a tokio runtime.
    pub fn kubernetes(client: &Client) -> Subscriptions<E> {
        let (sink, source) = channel();
        Subscriptions { client: client.clone(), sink, source }
    }

    /// Reads and watches a directory of manifests of these resources. Needs a tokio runtime.
    pub fn manifests<S: ResourceSet<E>>(directory: &Path) -> Self {
        let (sink, mut source) = channel();
        source._tasks.spawn(crate::manifests::watch::<S, E>(directory.to_owned(), sink));
        source
    }

    /// The next notice, or `None` once there cannot be any more. Cancel-safe.
    pub async fn next(&mut self) -> Option<Notice<E>> {
        loop {
            if let Some(notice) = self.batch.next() {
                return Some(notice);
            }
            self.batch = self.batches.recv().await?.into_iter();
        }
    }

    /// The next notice if one has already arrived, to take a burst in one go.
    pub fn ready(&mut self) -> Option<Notice<E>> {
        loop {
            if let Some(notice) = self.batch.next() {
                return Some(notice);
            }
            self.batch = self.batches.try_recv().ok()?.into_iter();
        }
    }
}

/// The resources that a source watches, before it is used.
#[derive(Debug)]
pub struct Subscriptions<E> {
    client: Client,
    sink: Sink<E>,
    source: Source<E>,
}

impl<E: Send + 'static> Subscriptions<E> {
    /// Adds a resource; its list begins at once.
    pub fn watch<R: Resource>(mut self, selection: Selection) -> Self
    where
        E: From<Event<R>>,
    {
        self.source._tasks.spawn(crate::watch::<R, E>(self.client.clone(), selection, self.sink.another()));
        self
    }

    /// The source of all of them.
    pub fn start(self) -> Source<E> {
        self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_api::{Node, Service};

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
            resource: Some(Service::TYPE),
            namespace: "default".into(),
            name: "web".into(),
            reason: "no ports".into(),
            ..Rejected::default()
        };
        assert_eq!(rejected.to_string(), "Service default/web: no ports");
        let node =
            Rejected { resource: Some(Node::TYPE), namespace: String::new(), name: "n1".into(), ..rejected };
        assert_eq!(node.to_string(), "Node n1: no ports");
    }
}
