//! The notices of a source of objects, and the channel through which they are sent.
//!
//! In: the futures of [`crate::watch`] and [`crate::manifests::watch`]. Out: their [`Notice`]s, in order per resource,
//! where `E` is the consumer's own type for the events of all its resources. The channel is small on purpose: a decoded
//! object is in it only until the consumer has stored its compact form, so the memory that a list takes does not depend
//! on its length.

mod sink;

pub use sink::Sink;

use crate::manifests::ResourceSet;
use crate::{Client, Selection};
use portway_api::{Event, Resource, ResourceType};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One message to the consumer.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice<E> {
    /// A change to an object, or the beginning or end of a list.
    Event(E),
    /// An object or a file could not be decoded; all other objects are sent as usual.
    Rejected(Rejected),
    /// The source cannot be read at the moment. Sent when the outage begins and when its message changes.
    Outage(Outage),
    /// The outage last reported for this resource is over.
    Recovered(Option<ResourceType>),
}

/// An object or a file that could not be decoded. Its last valid version stays in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Resource, if it is known.
    pub resource: Option<ResourceType>,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name, or empty.
    pub name: String,
    /// Unique id, or empty. Kubernetes Events refer to it.
    pub uid: String,
    /// The manifest file, if the object is from a directory.
    pub file: Option<PathBuf>,
    /// The line in the file, counted from 1.
    pub line: Option<u64>,
    /// The field at fault, such as `spec.ports[0].port`, or empty.
    pub field: String,
    /// Why it was rejected.
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
            match (self.namespace.as_str(), self.name.as_str()) {
                (_, "") => write!(f, "{resource}: ")?,
                ("", name) => write!(f, "{resource} {name}: ")?,
                (namespace, name) => write!(f, "{resource} {namespace}/{name}: ")?,
            }
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.reason)
    }
}

/// A failure that keeps a source from being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The resource whose list or watch fails. `None` for a directory, which fails as a whole.
    pub resource: Option<ResourceType>,
    /// Class of the failure, for metrics and health checks.
    pub reason: OutageReason,
    /// The failure and how to fix it, for the log.
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
    /// The server cannot be connected to, or connections break.
    Unreachable,
    /// The server does not accept the credential (401).
    Unauthorized,
    /// The credential may not read this resource (403).
    Forbidden,
    /// The server does not have this resource (404).
    NotServed,
    /// The server is overloaded or unavailable (429, 503).
    Overloaded,
    /// Any other refusal, or a response that cannot be decoded.
    Refused,
    /// The directory of manifests is missing or cannot be read.
    Directory,
}

/// A running source of [`Notice`]s. Dropping it stops its watches.
#[derive(Debug)]
pub struct Source<E> {
    batches: mpsc::Receiver<Vec<Notice<E>>>,
    batch: std::vec::IntoIter<Notice<E>>,
    watches: JoinSet<()>,
}

/// A channel of notices: watches send to the [`Sink`], the consumer receives from the [`Source`].
pub fn channel<E>() -> (Sink<E>, Source<E>) {
    let (sink, batches) = sink::channel();
    (sink, Source { batches, batch: Vec::new().into_iter(), watches: JoinSet::new() })
}

impl<E: Send + 'static> Source<E> {
    /// Lists and watches resources at an API server. Needs a tokio runtime.
    pub fn kubernetes(client: &Client) -> Subscriptions<E> {
        let (sink, source) = channel();
        Subscriptions { client: client.clone(), sink, source }
    }

    /// Reads and watches a directory of manifests of these resources. Needs a tokio runtime. Fails if the directory
    /// cannot be read; later that is an [`Outage`].
    pub fn manifests<S: ResourceSet<E>>(directory: &Path) -> io::Result<Self> {
        let directory = std::path::absolute(directory)?;
        std::fs::read_dir(&directory)?;
        let (sink, mut source) = channel();
        source.watches.spawn(crate::manifests::watch::<S, E>(directory, sink));
        Ok(source)
    }

    /// Waits for the next notice. `None` after all watches have ended. Cancel-safe. If a watch panics, so does this:
    /// its objects would never change again.
    pub async fn next(&mut self) -> Option<Notice<E>> {
        loop {
            if let Some(notice) = self.batch.next() {
                return Some(notice);
            }
            tokio::select! {
                biased;
                batch = self.batches.recv() => self.batch = batch?.into_iter(),
                Some(Err(ended)) = self.watches.join_next() => {
                    if let Ok(panic) = ended.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }

    /// The next notice if one has already arrived, so that a burst can be handled at once.
    pub fn ready(&mut self) -> Option<Notice<E>> {
        loop {
            if let Some(notice) = self.batch.next() {
                return Some(notice);
            }
            self.batch = self.batches.try_recv().ok()?.into_iter();
        }
    }
}

/// A source under construction, to which resources are added.
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
        self.source.watches.spawn(crate::watch::<R, E>(
            self.client.clone(),
            selection,
            self.sink.duplicate(),
        ));
        self
    }

    /// Returns the source of all added resources.
    pub fn start(self) -> Source<E> {
        self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_api::{Node, Service};

    #[tokio::test]
    #[should_panic = "of a watch"]
    async fn a_panic_of_a_watch_is_not_silent() {
        let (_sink, mut source) = channel::<()>();
        source.watches.spawn(async { panic!("of a watch") });
        source.next().await;
    }

    #[test]
    fn a_rejected_file_is_printed_with_file_and_line() {
        let rejected = Rejected {
            file: Some(PathBuf::from("m/web.yaml")),
            line: Some(7),
            reason: "invalid type".into(),
            ..Rejected::default()
        };
        assert_eq!(rejected.to_string(), "m/web.yaml:7: invalid type");
    }

    #[test]
    fn a_rejected_object_is_printed_with_kind_and_name() {
        let rejected = Rejected {
            resource: Some(Service::TYPE),
            namespace: "default".into(),
            name: "web".into(),
            reason: "no ports".into(),
            ..Rejected::default()
        };
        assert_eq!(rejected.to_string(), "Service default/web: no ports");
        let field = Rejected { field: "spec".into(), ..rejected.clone() };
        assert_eq!(field.to_string(), "Service default/web: spec: no ports");
        let unnamed = Rejected { name: String::new(), ..rejected.clone() };
        assert_eq!(unnamed.to_string(), "Service: no ports");
        let node =
            Rejected { resource: Some(Node::TYPE), namespace: String::new(), name: "n1".into(), ..rejected };
        assert_eq!(node.to_string(), "Node n1: no ports");
    }
}
