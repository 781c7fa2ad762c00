//! Namespace and name of an object as one small value.

use portway_api::{Resource, ResourceType};
use portway_client::Regarding;
use std::fmt;
use std::sync::Arc;

/// Namespace and name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// From namespace and name; the namespace is empty for cluster-scoped objects.
    pub fn new(namespace: &str, name: &str) -> Key {
        Key(format!("{namespace}/{name}").into())
    }

    /// Of an object.
    pub fn of<R: Resource>(object: &R) -> Key {
        object.metadata().map_or_else(|| Key::new("", ""), |meta| Key::new(&meta.namespace, &meta.name))
    }

    /// As the object that an Event is about.
    pub fn regarding(&self, resource: ResourceType, uid: String) -> Regarding {
        Regarding { resource, namespace: self.namespace().to_owned(), name: self.name().to_owned(), uid }
    }

    /// Namespace.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_start_matches('/'))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
