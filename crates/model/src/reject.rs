//! Objects, or parts of them, that cannot be programmed.

use portway_api::ResourceType;
use std::fmt;

/// An object with an error, or in conflict with another one. All other objects are programmed.
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
    /// The field at fault, as in `spec.ports[1].nodePort`; empty if the object could not be decoded.
    pub field: String,
    /// The error, with an example of a valid value where that helps.
    pub reason: String,
    /// The class of the error, for metrics.
    pub class: &'static str,
    /// Whether everything else of the object is programmed.
    pub partial: bool,
}

impl Rejected {
    /// The field, if it is known, and the reason.
    pub fn reason_with_field(&self) -> String {
        match self.field.as_str() {
            "" => self.reason.clone(),
            field => format!("{field}: {}", self.reason),
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.resource)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        write!(f, "{}: {}", self.name, self.reason_with_field())
    }
}

/// An error in one field, without the name of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field.
    pub field: String,
    /// The reason.
    pub reason: String,
    /// The class of the error, for metrics.
    pub class: &'static str,
}

impl Fault {
    pub(crate) fn new(class: &'static str, field: impl Into<String>, reason: impl Into<String>) -> Fault {
        Fault { field: field.into(), reason: reason.into(), class }
    }
}
