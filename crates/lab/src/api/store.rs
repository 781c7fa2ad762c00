//! Objects with revisions, and the history that watches read.

use portway_model::api::{Kind, Object, ObjectMeta};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The history that was asked for is gone.
#[derive(Debug)]
pub(super) struct Gone;

/// Something a watch tells.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Applied { new: bool, object: Arc<Object> },
    Deleted(Arc<Object>),
    Bookmark(u64),
    Error(serde_json::Value),
}

/// A part of a list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) objects: Vec<Arc<Object>>,
    pub(super) revision: u64,
    /// Where the next page begins; empty if this is the last.
    pub(super) next: String,
}

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    oldest: u64,
    objects: BTreeMap<(Kind, String), Arc<Object>>,
    history: Vec<(u64, Kind, Change)>,
}

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Store {
    inner: Mutex<Inner>,
    changed: Condvar,
}

/// A watch without news says where it is this often.
const BOOKMARK: Duration = Duration::from_secs(5);

impl Store {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn apply(&self, mut object: Object) {
        let mut inner = self.lock();
        inner.revision += 1;
        let (revision, kind) = (inner.revision, object.kind());
        stamp(&mut object, revision);
        let key = (kind, key(&object));
        let object = Arc::new(object);
        let new = inner.objects.insert(key, object.clone()).is_none();
        inner.history.push((revision, kind, Change::Applied { new, object }));
        self.changed.notify_all();
    }

    pub(super) fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        let mut inner = self.lock();
        let Some(object) = inner.objects.remove(&(kind, format!("{namespace}/{name}"))) else { return };
        inner.revision += 1;
        let revision = inner.revision;
        let mut last = (*object).clone();
        stamp(&mut last, revision);
        inner.history.push((revision, kind, Change::Deleted(Arc::new(last))));
        self.changed.notify_all();
    }

    pub(super) fn compact(&self) {
        let mut inner = self.lock();
        // A revision of its own, so that whoever was up to date is behind now.
        inner.revision += 1;
        inner.oldest = inner.revision;
        inner.history.clear();
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    pub(super) fn page(&self, kind: Kind, after: &str, limit: usize, field: Option<&str>) -> Page {
        let inner = self.lock();
        let mut objects = Vec::new();
        let mut next = String::new();
        for ((_, key), object) in
            inner.objects.range((kind, after.to_owned())..).take_while(|((k, _), _)| *k == kind)
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

    /// What happened to a kind after a revision, waiting for it if nothing did; and the revision it goes up to.
    pub(super) fn after(
        &self,
        kind: Kind,
        revision: u64,
        field: Option<&str>,
        over: impl Fn() -> bool,
    ) -> Result<(Vec<Change>, u64), Gone> {
        let mut inner = self.lock();
        loop {
            if revision < inner.oldest {
                return Err(Gone);
            }
            let start = inner.history.partition_point(|(r, ..)| *r <= revision);
            let of_kind = inner.history[start..].iter().filter(|(_, k, _)| *k == kind);
            let changes: Vec<Change> =
                of_kind.filter(|(.., c)| c.selected(field)).map(|(.., c)| c.clone()).collect();
            if !changes.is_empty() || over() {
                return Ok((changes, inner.revision));
            }
            let (guard, waited) =
                self.changed.wait_timeout(inner, BOOKMARK).unwrap_or_else(PoisonError::into_inner);
            inner = guard;
            if waited.timed_out() {
                return Ok((vec![Change::Bookmark(inner.revision)], inner.revision));
            }
        }
    }
}

impl Change {
    fn selected(&self, field: Option<&str>) -> bool {
        match self {
            Change::Applied { object, .. } | Change::Deleted(object) => selected(object, field),
            Change::Bookmark(_) | Change::Error(_) => true,
        }
    }
}

/// Only `metadata.name=` is understood.
fn selected(object: &Object, field: Option<&str>) -> bool {
    let wanted = field.and_then(|f| f.strip_prefix("metadata.name="));
    wanted.is_none_or(|name| object.metadata().is_some_and(|m| m.name == name))
}

fn key(object: &Object) -> String {
    object.metadata().map_or(String::new(), |m| format!("{}/{}", m.namespace, m.name))
}

fn stamp(object: &mut Object, revision: u64) {
    let metadata: &mut Option<ObjectMeta> = match object {
        Object::Service(o) => &mut o.metadata,
        Object::EndpointSlice(o) => &mut o.metadata,
        Object::Node(o) => &mut o.metadata,
        Object::ServiceCidr(o) => &mut o.metadata,
    };
    metadata.get_or_insert_default().resource_version = revision.to_string();
}
