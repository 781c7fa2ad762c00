//! What a reconciliation decided: writes to the API server, Kubernetes Events, and figures for metrics.

use crate::key::Key;
use portway_api::complete::EndpointSlice;
use portway_api::{Endpoints, ObjectMeta, Resource, ResourceType};
use portway_client::{Propagation, Regarding, Subresource};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// An object as it is written, or as the API server has stored it.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// An EndpointSlice.
    Slice(Box<EndpointSlice>),
    /// An Endpoints object.
    Endpoints(Box<Endpoints>),
    /// An object of any other resource, as JSON.
    Json(ResourceType, Box<Value>),
}

impl Object {
    /// The resource.
    pub fn resource(&self) -> ResourceType {
        match self {
            Object::Slice(_) => EndpointSlice::TYPE,
            Object::Endpoints(_) => Endpoints::TYPE,
            Object::Json(resource, _) => *resource,
        }
    }

    /// Namespace and name.
    pub fn key(&self) -> Key {
        match self {
            Object::Slice(slice) => Key::of(&**slice),
            Object::Endpoints(endpoints) => Key::of(&**endpoints),
            Object::Json(_, value) => {
                let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default();
                Key::new(text("namespace"), text("name"))
            }
        }
    }
}

/// A write to the API server. Replacements, changes and deletions name the version that was read, so that they fail if
/// the object has changed since.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Creates an object.
    Create(Object),
    /// Replaces an object.
    Replace(Object),
    /// Changes fields of an object.
    Change(Box<Change>),
    /// Deletes an object.
    Delete {
        /// Its resource.
        resource: ResourceType,
        /// The object at a version.
        version: Version,
        /// What happens to the objects that it owns; the default of the resource if there is none.
        propagation: Option<Propagation>,
    },
}

/// A change of some fields of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The object's resource.
    pub resource: ResourceType,
    /// Namespace and name.
    pub key: Key,
    /// Whether the status is changed, or the rest.
    pub subresource: Subresource,
    /// The fields, with the version that was read. Lists are replaced, unless `by_item` is set.
    pub fields: Value,
    /// Whether conditions are merged by their type.
    pub by_item: bool,
}

impl Change {
    /// A change of an object at a version.
    pub fn of(
        resource: ResourceType,
        version: &Version,
        subresource: Subresource,
        mut fields: Value,
    ) -> Change {
        fields["metadata"]["uid"] = version.uid.as_str().into();
        fields["metadata"]["resourceVersion"] = version.resource_version.as_str().into();
        Change { resource, key: version.key.clone(), subresource, fields, by_item: false }
    }

    /// The same, with conditions merged by their type.
    pub fn by_item(self) -> Change {
        Change { by_item: true, ..self }
    }
}

/// The fields that change one status to another. Numbers that are zero are left out of both, so those that become zero
/// have to be removed.
pub(crate) fn status_fields<T: Serialize>(old: Option<&T>, new: &T) -> Value {
    let (old, mut new) = (json!(old), json!(new));
    for name in old.as_object().into_iter().flat_map(|old| old.keys()) {
        if new.get(name).is_none() {
            new[name] = Value::Null;
        }
    }
    json!({ "status": new })
}

/// An object at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Namespace and name.
    pub key: Key,
    /// Unique id.
    pub uid: String,
    /// Version; empty for any.
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

    /// The object at any version.
    pub(crate) fn any(self) -> Version {
        Version { resource_version: String::new(), ..self }
    }
}

impl Write {
    /// Deletes an object with the default propagation.
    pub fn delete<R: Resource>(version: Version) -> Write {
        Write::Delete { resource: R::TYPE, version, propagation: None }
    }

    /// Namespace and name of the object.
    pub fn key(&self) -> Key {
        match self {
            Write::Create(object) | Write::Replace(object) => object.key(),
            Write::Change(change) => change.key.clone(),
            Write::Delete { version, .. } => version.key.clone(),
        }
    }

    /// `create`, `update` or `delete`.
    pub fn operation(&self) -> &'static str {
        match self {
            Write::Create(_) => "create",
            Write::Replace(_) | Write::Change(_) => "update",
            Write::Delete { .. } => "delete",
        }
    }

    /// The resource of the object.
    pub fn resource(&self) -> ResourceType {
        match self {
            Write::Create(object) | Write::Replace(object) => object.resource(),
            Write::Change(change) => change.resource,
            Write::Delete { resource, .. } => *resource,
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.operation(), self.resource(), self.key())
    }
}

/// A write and its reason, for the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Reasoned {
    /// The write.
    pub write: Write,
    /// Why, such as `1 endpoint added`.
    pub reason: String,
    /// The Kubernetes Event for a write that succeeded.
    pub note: Option<Note>,
}

impl Reasoned {
    /// A write and its reason.
    pub fn new(write: Write, reason: impl Into<String>) -> Reasoned {
        Reasoned { write, reason: reason.into(), note: None }
    }

    /// With an Event for when it has succeeded.
    pub fn note(self, note: Note) -> Reasoned {
        Reasoned { note: Some(note), ..self }
    }
}

/// A Kubernetes Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is a warning.
    pub warning: bool,
    /// The reason, as Kubernetes names it.
    pub reason: &'static str,
    /// A sentence.
    pub text: String,
    /// The object that it is about, if that is not the one that was reconciled.
    pub about: Option<Regarding>,
}

impl Note {
    /// A warning about the object that was reconciled.
    pub fn warning(reason: &'static str, text: String) -> Note {
        Note { warning: true, reason, text, about: None }
    }

    /// A report about the object that was reconciled.
    pub fn report(reason: &'static str, text: String) -> Note {
        Note { warning: false, reason, text, about: None }
    }
}

/// An object that has to be read before a plan can be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Read {
    /// Its resource.
    pub resource: ResourceType,
    /// Namespace and name.
    pub key: Key,
    /// The unique id of the object that is looked for, if another one of the same name does not do.
    pub uid: Option<String>,
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
    /// Objects that have to be read before the plan can be made. It has no writes then.
    pub reads: Vec<Read>,
    /// An object that must still be there, and not be deleted, for the writes to be right. It is read before the first.
    pub confirm: Option<(ResourceType, Version)>,
    /// Whether the writes do not depend on each other: one that fails does not keep the others from being sent.
    pub independent: bool,
    /// When to decide again, if nothing changes before.
    pub again_after: Option<Duration>,
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
