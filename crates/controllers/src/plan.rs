//! What a reconciliation decided: writes to the API server, Kubernetes Events, and figures for metrics.

use crate::key::Key;
use portway_api::complete::EndpointSlice;
use portway_api::{Endpoints, ObjectMeta, Resource};
use std::fmt;

/// A write to the API server. Replacements and deletions name the version that was read, so that they fail if the
/// object has changed since.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the requests")]
pub enum Write {
    CreateSlice(Box<EndpointSlice>),
    ReplaceSlice(Box<EndpointSlice>),
    DeleteSlice(Version),
    CreateEndpoints(Box<Endpoints>),
    ReplaceEndpoints(Box<Endpoints>),
    DeleteEndpoints(Version),
}

/// An object at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Namespace and name.
    pub key: Key,
    /// Unique id.
    pub uid: String,
    /// Version.
    pub resource_version: String,
}

impl Version {
    pub(crate) fn of(meta: &ObjectMeta) -> Version {
        Version {
            key: Key::new(&meta.namespace, &meta.name),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
        }
    }
}

impl Write {
    /// The key of the object.
    pub fn key(&self) -> Key {
        fn of<R: Resource>(object: &R) -> Key {
            object.metadata().map_or_else(|| Key::new("", ""), |meta| Key::new(&meta.namespace, &meta.name))
        }
        match self {
            Write::CreateSlice(slice) | Write::ReplaceSlice(slice) => of(&**slice),
            Write::CreateEndpoints(endpoints) | Write::ReplaceEndpoints(endpoints) => of(&**endpoints),
            Write::DeleteSlice(version) | Write::DeleteEndpoints(version) => version.key.clone(),
        }
    }

    /// `create`, `update` or `delete`.
    pub fn operation(&self) -> &'static str {
        match self {
            Write::CreateSlice(_) | Write::CreateEndpoints(_) => "create",
            Write::ReplaceSlice(_) | Write::ReplaceEndpoints(_) => "update",
            Write::DeleteSlice(_) | Write::DeleteEndpoints(_) => "delete",
        }
    }

    /// The kind of the object.
    pub fn kind(&self) -> &'static str {
        match self {
            Write::CreateSlice(_) | Write::ReplaceSlice(_) | Write::DeleteSlice(_) => EndpointSlice::KIND,
            _ => Endpoints::KIND,
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.operation(), self.kind(), self.key())
    }
}

/// A write and its reason, for the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Reasoned {
    /// The write.
    pub write: Write,
    /// Why, such as `1 endpoint added`.
    pub reason: String,
}

/// A Kubernetes Event about the object that was reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is a warning.
    pub warning: bool,
    /// The reason, as Kubernetes names it.
    pub reason: &'static str,
    /// A sentence.
    pub text: String,
}

/// What a reconciliation decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The writes, in this order: creations, replacements, deletions.
    pub writes: Vec<Reasoned>,
    /// Kubernetes Events.
    pub notes: Vec<Note>,
    /// Why endpoints are missing, if the change that adds them will lead to another plan.
    pub incomplete: Option<String>,
    /// The Endpoints object has to be read before the plan can be made.
    pub reread: bool,
    /// Figures for metrics.
    pub figures: Figures,
}

/// Figures of a reconciliation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Endpoints that were added.
    pub added: usize,
    /// Endpoints that were changed in place.
    pub changed: usize,
    /// Endpoints that were removed.
    pub removed: usize,
    /// Endpoints in all.
    pub endpoints: usize,
    /// Slices, once all writes are done.
    pub slices: usize,
    /// The smallest number of slices that could have all endpoints.
    pub needed: usize,
    /// Addresses that cannot be mirrored.
    pub skipped: usize,
}

/// `n` things, as text.
pub(crate) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
