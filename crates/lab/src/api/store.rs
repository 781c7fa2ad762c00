//! Objects with revisions, and the history that watches read.

use super::object::{AnyObject, key, selected};
use portway_model::api::{ObjectMeta, ResourceType, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The requested history was discarded.
#[derive(Debug)]
pub(super) struct Gone;

/// A resource, and namespace and name of one of its objects.
pub(super) type Id = (ResourceType, String);

/// Why a request for a single object is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    NotFound,
    AlreadyExists,
    Conflict,
    Malformed,
}

impl Refusal {
    /// The status and the reason.
    pub(super) fn code(&self) -> (u16, &'static str) {
        match self {
            Refusal::NotFound => (404, "NotFound"),
            Refusal::AlreadyExists => (409, "AlreadyExists"),
            Refusal::Conflict => (409, "Conflict"),
            Refusal::Malformed => (400, "BadRequest"),
        }
    }
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Applied { new: bool, object: Arc<dyn AnyObject> },
    Deleted(Arc<dyn AnyObject>),
    Bookmark { revision: u64, initial_end: bool },
    Error(serde_json::Value),
}

/// A part of a list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) objects: Vec<Arc<dyn AnyObject>>,
    pub(super) revision: u64,
    /// The key after which the next page begins; empty if this is the last page.
    pub(super) next: String,
}

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    oldest: u64,
    objects: BTreeMap<Id, Arc<dyn AnyObject>>,
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

/// The unique id of an object that is created at a revision.
fn uid(revision: u64) -> String {
    format!("5eed0000-0000-4000-8000-{revision:012}")
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn apply(&self, object: Arc<dyn AnyObject>) {
        self.put(&mut self.lock(), &*object);
    }

    /// Stores an object at the next revision, and adds that to the history.
    fn put(&self, inner: &mut Inner, object: &dyn AnyObject) -> Arc<dyn AnyObject> {
        inner.revision += 1;
        let (revision, resource) = (inner.revision, object.resource());
        let mut meta = object.meta().cloned().unwrap_or_default();
        meta.resource_version = revision.to_string();
        if meta.uid.is_empty() {
            let known = inner.objects.get(&(resource, key(object))).map(|known| meta_of(&**known).uid);
            meta.uid = known.unwrap_or_else(|| uid(revision));
        }
        let object = object.with_meta(meta);
        let new = inner.objects.insert((resource, key(&*object)), object.clone()).is_none();
        inner.history.push((revision, resource, Change::Applied { new, object: object.clone() }));
        self.changed.notify_all();
        object
    }

    pub(super) fn get(&self, id: &Id) -> Option<Arc<dyn AnyObject>> {
        self.lock().objects.get(id).cloned()
    }

    pub(super) fn create(&self, object: Arc<dyn AnyObject>) -> Result<Arc<dyn AnyObject>, Refusal> {
        let mut inner = self.lock();
        let mut meta = object.meta().cloned().unwrap_or_default();
        if meta.name.is_empty() {
            meta.name = format!("{}{:05}", meta.generate_name, inner.revision + 1);
        }
        let object = object.with_meta(meta.clone());
        if inner.objects.contains_key(&(object.resource(), key(&*object))) {
            return Err(Refusal::AlreadyExists);
        }
        meta.uid = uid(inner.revision + 1);
        meta.generation = 1;
        meta.creation_timestamp = Some(Time { seconds: 1_700_000_000 });
        Ok(self.put(&mut inner, &*object.with_meta(meta)))
    }

    pub(super) fn replace(&self, object: Arc<dyn AnyObject>) -> Result<Arc<dyn AnyObject>, Refusal> {
        let mut inner = self.lock();
        let id = (object.resource(), key(&*object));
        let stored = inner.objects.get(&id).ok_or(Refusal::NotFound)?;
        let (new, old) = (meta_of(&*object), meta_of(&**stored));
        if !new.resource_version.is_empty() && new.resource_version != old.resource_version {
            return Err(Refusal::Conflict);
        }
        Ok(self.put(&mut inner, &*object.with_meta(ObjectMeta { uid: old.uid, ..new })))
    }

    /// Changes an object at a version. One that is being deleted is gone once it has no finalizers.
    pub(super) fn change(
        &self,
        id: &Id,
        version: Option<&str>,
        is_status: bool,
        change: impl FnOnce(&dyn AnyObject) -> Option<Arc<dyn AnyObject>>,
    ) -> Result<Arc<dyn AnyObject>, Refusal> {
        let mut inner = self.lock();
        let stored = inner.objects.get(id).cloned().ok_or(Refusal::NotFound)?;
        let old = meta_of(&*stored);
        if version.is_some_and(|version| version != old.resource_version) {
            return Err(Refusal::Conflict);
        }
        let changed = change(&*stored).ok_or(Refusal::Malformed)?;
        let mut meta = meta_of(&*changed);
        meta.generation =
            old.generation + i64::from(!is_status && changed.json()["spec"] != stored.json()["spec"]);
        let changed = changed.with_meta(ObjectMeta { uid: old.uid, ..meta.clone() });
        if meta.deletion_timestamp.is_some() && meta.finalizers.is_empty() {
            drop(inner);
            return self.delete_if(id, None, None, None);
        }
        Ok(self.put(&mut inner, &*changed))
    }

    pub(super) fn delete_if(
        &self,
        id: &Id,
        uid: Option<&str>,
        version: Option<&str>,
        finalizer: Option<&str>,
    ) -> Result<Arc<dyn AnyObject>, Refusal> {
        let mut inner = self.lock();
        let object = inner.objects.get(id).cloned().ok_or(Refusal::NotFound)?;
        let meta = meta_of(&*object);
        if uid.is_some_and(|uid| uid != meta.uid) || version.is_some_and(|v| v != meta.resource_version) {
            return Err(Refusal::Conflict);
        }
        if finalizer.is_some() || !meta.finalizers.is_empty() && meta.deletion_timestamp.is_none() {
            let mut meta = meta;
            meta.finalizers.extend(finalizer.map(str::to_owned));
            meta.deletion_timestamp = Some(Time { seconds: 1_700_000_000 });
            return Ok(self.put(&mut inner, &*object.with_meta(meta)));
        }
        inner.objects.remove(id);
        inner.revision += 1;
        let revision = inner.revision;
        let last = object.with_meta(ObjectMeta { resource_version: revision.to_string(), ..meta });
        inner.history.push((revision, id.0, Change::Deleted(last)));
        self.changed.notify_all();
        Ok(object)
    }

    pub(super) fn delete(&self, resource: ResourceType, namespace: &str, name: &str) {
        _ = self.delete_if(&(resource, format!("{namespace}/{name}")), None, None, None);
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
            if (!after.is_empty() && key == after) || !selected(&**object, field) {
                continue;
            }
            if objects.len() == limit {
                next = objects.last().map_or(String::new(), |o: &Arc<dyn AnyObject>| self::key(&**o));
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
            Change::Applied { object, .. } | Change::Deleted(object) => selected(&**object, field),
            Change::Bookmark { .. } | Change::Error(_) => true,
        }
    }
}

fn meta_of(object: &dyn AnyObject) -> ObjectMeta {
    object.meta().cloned().unwrap_or_default()
}
