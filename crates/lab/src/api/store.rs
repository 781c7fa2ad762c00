//! Objects with revisions, and the history that watches read.

use portway_model::api::{Object, ResourceType};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The requested history was discarded.
#[derive(Debug)]
pub(super) struct Gone;

/// An event of a watch.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Applied { new: bool, object: Arc<Object> },
    Deleted(Arc<Object>),
    Bookmark { revision: u64, initial_end: bool },
    Error(serde_json::Value),
}

/// A part of a list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) objects: Vec<Arc<Object>>,
    pub(super) revision: u64,
    /// The key after which the next page begins; empty if this is the last page.
    pub(super) next: String,
}

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    oldest: u64,
    objects: BTreeMap<(ResourceType, String), Arc<Object>>,
    history: Vec<(u64, ResourceType, Change)>,
}

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Store {
    inner: Mutex<Inner>,
    changed: Condvar,
}

/// The interval of bookmarks on a watch without changes.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(5);

impl Store {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn apply(&self, mut object: Object) {
        let mut inner = self.lock();
        inner.revision += 1;
        let (revision, resource) = (inner.revision, object.resource_type());
        stamp(&mut object, revision);
        let key = (resource, key(&object));
        let object = Arc::new(object);
        let new = inner.objects.insert(key, object.clone()).is_none();
        inner.history.push((revision, resource, Change::Applied { new, object }));
        self.changed.notify_all();
    }

    pub(super) fn delete(&self, resource: ResourceType, namespace: &str, name: &str) {
        let mut inner = self.lock();
        let Some(object) = inner.objects.remove(&(resource, format!("{namespace}/{name}"))) else { return };
        inner.revision += 1;
        let revision = inner.revision;
        let mut last = (*object).clone();
        stamp(&mut last, revision);
        inner.history.push((revision, resource, Change::Deleted(Arc::new(last))));
        self.changed.notify_all();
    }

    pub(super) fn compact(&self) {
        let mut inner = self.lock();
        // A new revision, so that even a watch that had received all changes has expired.
        inner.revision += 1;
        inner.oldest = inner.revision;
        inner.history.clear();
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    pub(super) fn page(
        &self,
        resource: ResourceType,
        after: &str,
        limit: usize,
        field: Option<&str>,
    ) -> Page {
        let inner = self.lock();
        let mut objects = Vec::new();
        let mut next = String::new();
        for ((_, key), object) in
            inner.objects.range((resource, after.to_owned())..).take_while(|((r, _), _)| *r == resource)
        {
            if (!after.is_empty() && key == after) || !selected(object, field) {
                continue;
            }
            if objects.len() == limit {
                next = objects.last().map_or(String::new(), |o: &Arc<Object>| self::key(o));
                break;
            }
            objects.push(object.clone());
        }
        Page { objects, revision: inner.revision, next }
    }

    /// The changes of a resource after a revision, and the revision up to which they go. Waits if there are none, until
    /// there is a change, a bookmark is due, or `is_over` is true.
    pub(super) fn after(
        &self,
        resource: ResourceType,
        revision: u64,
        field: Option<&str>,
        is_over: impl Fn() -> bool,
    ) -> Result<(Vec<Change>, u64), Gone> {
        let mut inner = self.lock();
        loop {
            if revision < inner.oldest {
                return Err(Gone);
            }
            let start = inner.history.partition_point(|(r, ..)| *r <= revision);
            let of_resource = inner.history[start..].iter().filter(|(_, r, _)| *r == resource);
            let changes: Vec<Change> =
                of_resource.filter(|(.., c)| c.selected(field)).map(|(.., c)| c.clone()).collect();
            if !changes.is_empty() || is_over() {
                return Ok((changes, inner.revision));
            }
            let (guard, waited) =
                self.changed.wait_timeout(inner, BOOKMARK_INTERVAL).unwrap_or_else(PoisonError::into_inner);
            inner = guard;
            if waited.timed_out() {
                return Ok((
                    vec![Change::Bookmark { revision: inner.revision, initial_end: false }],
                    inner.revision,
                ));
            }
        }
    }
}

impl Change {
    fn selected(&self, field: Option<&str>) -> bool {
        match self {
            Change::Applied { object, .. } | Change::Deleted(object) => selected(object, field),
            Change::Bookmark { .. } | Change::Error(_) => true,
        }
    }
}

/// Whether an object matches a field selector. Only `metadata.name=` and `spec.clusterIP!=` are supported.
fn selected(object: &Object, field: Option<&str>) -> bool {
    let Some(field) = field else { return true };
    if let Some(name) = field.strip_prefix("metadata.name=") {
        return object.metadata().is_some_and(|m| m.name == name);
    }
    match (field.strip_prefix("spec.clusterIP!="), object) {
        (Some(ip), Object::Service(service)) => service.spec.as_ref().is_none_or(|s| s.cluster_ip != ip),
        _ => true,
    }
}

fn key(object: &Object) -> String {
    object.metadata().map_or(String::new(), |m| format!("{}/{}", m.namespace, m.name))
}

fn stamp(object: &mut Object, revision: u64) {
    object.metadata_mut().get_or_insert_default().resource_version = revision.to_string();
}
