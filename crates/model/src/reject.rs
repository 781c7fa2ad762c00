//! An object, or a part of one, that cannot be programmed as it stands.

use portway_api::ResourceType;
use std::fmt;

/// A mistake in an object. The rest of the cluster is programmed without it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rejected {
    /// The object's resource.
    pub resource: ResourceType,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its unique id, if it has one.
    pub uid: String,
    /// The field at fault, as in `spec.ports[1].nodePort`.
    pub field: String,
    /// The mistake, and a right value.
    pub reason: String,
    /// A word for counting.
    pub class: &'static str,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.resource)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        write!(f, "{}: {}: {}", self.name, self.field, self.reason)
    }
}

/// A mistake in one field, before the object is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field.
    pub field: String,
    /// The reason.
    pub reason: String,
    /// A word for counting.
    pub class: &'static str,
}

impl Fault {
    pub(crate) fn new(class: &'static str, field: impl Into<String>, reason: impl Into<String>) -> Fault {
        Fault { field: field.into(), reason: reason.into(), class }
    }
}
