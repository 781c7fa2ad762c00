//! Owners and dependents: the metadata of the objects of all resources that are collected, by unique id.
//!
//! In: events, answers to writes and reads. Out: the unique ids of the objects that a change touched. Pure.

use crate::cluster::index::Index;
use crate::cluster::meta::version;
use crate::cluster::{Cause, Touched};
use crate::key::Key;
use crate::plan::{Read, Version};
use portway_api::{Applied, Event, ObjectMeta, OwnerReference, ResourceType, Scope, Store};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The finalizer of an object that is deleted after the objects that it owns.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are kept.
pub(crate) const ORPHAN: &str = "orphan";
/// How many owners are remembered not to exist.
const REMEMBERED: usize = 10_000;

/// An object as its metadata describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GraphObject {
    pub(crate) uid: Box<str>,
    version: u64,
    resource_version: Box<str>,
    pub(crate) owners: Box<[OwnerReference]>,
    pub(crate) finalizers: Box<[String]>,
    pub(crate) deleting: bool,
}

impl GraphObject {
    fn new(meta: &ObjectMeta) -> GraphObject {
        GraphObject {
            uid: meta.uid.as_str().into(),
            version: version(meta),
            resource_version: meta.resource_version.as_str().into(),
            owners: meta.owner_references.clone().into(),
            finalizers: meta.finalizers.clone().into(),
            deleting: meta.deletion_timestamp.is_some(),
        }
    }

    pub(crate) fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }

    /// Whether it waits for its dependents to be deleted.
    pub(crate) fn awaits_dependents(&self) -> bool {
        self.deleting && self.has_finalizer(FOREGROUND)
    }

    pub(crate) fn at_version(&self, key: &Key) -> Version {
        Version {
            key: key.clone(),
            uid: self.uid.to_string(),
            resource_version: self.resource_version.to_string(),
        }
    }
}

/// An object, with its resource and name.
pub(crate) type Found<'a> = (ResourceType, &'a Key, &'a GraphObject);

/// What is known of an owner.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Owner<'a> {
    /// It exists.
    Exists(&'a GraphObject),
    /// It does not exist, and will not again: unique ids are not reused.
    Gone,
    /// It has to be read from the API server.
    Unverified(Read),
    /// Its resource is not collected, so nothing is known of it.
    Unknown,
    /// A namespaced object cannot own one that is not in a namespace.
    Invalid,
}

/// The objects of all resources that are collected.
#[derive(Debug, Default)]
pub struct Graph {
    resources: BTreeMap<ResourceType, Store<Key, GraphObject>>,
    by_uid: HashMap<Box<str>, (ResourceType, Key)>,
    /// Unique ids of dependents, as keys without a namespace, by the unique id of their owner.
    dependents: Index<Box<str>>,
    /// Owners that were read and not found.
    gone: HashSet<Read>,
}

/// The key of an object in the queue: its unique id.
pub(crate) fn uid_key(uid: &str) -> Key {
    Key::new("", uid)
}

impl Graph {
    /// A graph of the objects of these resources.
    pub fn of(resources: &[ResourceType]) -> Graph {
        let stores = resources.iter().map(|resource| (*resource, Store::default()));
        Graph { resources: stores.collect(), ..Graph::default() }
    }

    /// Whether every resource has been listed.
    pub fn is_listed(&self) -> bool {
        self.resources.values().all(Store::is_listed)
    }

    /// The object with a unique id.
    pub(crate) fn get(&self, uid: &str) -> Option<Found<'_>> {
        let (resource, key) = self.by_uid.get(uid)?;
        Some((*resource, key, self.resources.get(resource)?.get(key)?))
    }

    /// The objects that name an object as their owner, in a stable order.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Found<'_>> {
        let mut found: Vec<Found<'_>> =
            self.dependents.get(uid).filter_map(|dependent| self.get(dependent.name())).collect();
        found.sort_unstable_by_key(|(resource, key, _)| (*resource, *key));
        found
    }

    /// The keys of all objects that have an owner or are being deleted.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let objects = self.resources.values().flat_map(|store| store.iter().map(|(_, object)| object));
        let concerned = objects.filter(|object| !object.owners.is_empty() || object.deleting);
        concerned.map(|object| uid_key(&object.uid)).collect()
    }

    /// What is known of an owner of an object with this key.
    pub(crate) fn owner(&self, dependent: &Key, owner: &OwnerReference) -> Owner<'_> {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let is_named = |r: &&ResourceType| r.group() == group && r.kind() == owner.kind;
        let Some(resource) = self.resources.keys().find(is_named).copied() else { return Owner::Unknown };
        let namespace = match resource.scope() {
            Scope::Cluster => "",
            Scope::Namespaced if dependent.namespace().is_empty() => return Owner::Invalid,
            Scope::Namespaced => dependent.namespace(),
        };
        let key = Key::new(namespace, &owner.name);
        match self.resources.get(&resource).and_then(|store| store.get(&key)) {
            Some(object) if *object.uid == *owner.uid => Owner::Exists(object),
            // Its event may not have arrived yet.
            _ => {
                let read = Read { resource, key, uid: Some(owner.uid.clone()) };
                if self.gone.contains(&read) { Owner::Gone } else { Owner::Unverified(read) }
            }
        }
    }

    /// An object was read: the one that was looked for, another one of its name, or none.
    pub(crate) fn was_read(&mut self, read: &Read, found: Option<&ObjectMeta>) {
        if read.uid.is_some() && found.map(|meta| &meta.uid) != read.uid.as_ref() {
            if self.gone.len() >= REMEMBERED {
                self.gone.clear();
            }
            self.gone.insert(read.clone());
        }
    }

    /// Stores a change, and adds the objects that it touches to `touched`.
    pub fn apply(&mut self, resource: ResourceType, event: Event<&ObjectMeta>, touched: &mut Vec<Touched>) {
        let Some(store) = self.resources.get_mut(&resource) else { return };
        match event {
            Event::Init => store.begin_list(),
            Event::Apply(meta) => {
                let (key, object) = (Key::new(&meta.namespace, &meta.name), GraphObject::new(meta));
                if store.get(&key).is_some_and(|known| object.version < known.version) {
                    return store.keep(&key);
                }
                match store.apply(key.clone(), object.clone()) {
                    Applied::Unchanged => return,
                    Applied::Inserted => {}
                    Applied::Replaced(old) => {
                        self.unindex(&old);
                        // A reference that was removed does not block its owner any more.
                        self.touch_waiting_owners(&old, touched);
                        if old.uid != object.uid {
                            self.touch_around(&old, touched);
                        }
                    }
                }
                self.by_uid.insert(object.uid.clone(), (resource, key));
                for owner in &object.owners {
                    self.dependents.insert(owner.uid.as_str().into(), uid_key(&object.uid));
                }
                if !object.owners.is_empty() || object.deleting {
                    touched.push(touch(&object.uid));
                }
                // Its dependents are deleted first, and it waits for that.
                if object.awaits_dependents() {
                    touched.extend(self.dependents.get(&*object.uid).map(|key| touch(key.name())));
                }
                self.touch_waiting_owners(&object, touched);
            }
            Event::InitDone => {
                for key in store.finish_list() {
                    self.delete(resource, &key, touched);
                }
            }
            Event::Delete { namespace, name } => self.delete(resource, &Key::new(&namespace, &name), touched),
        }
    }

    /// The last version of an object that cannot be decoded stays, also over a relist.
    pub fn keep(&mut self, resource: ResourceType, key: &Key) {
        if let Some(store) = self.resources.get_mut(&resource) {
            store.keep(key);
        }
    }

    /// An object was deleted; the event of that has not arrived yet.
    pub fn deletion_accepted(&mut self, resource: ResourceType, key: &Key) {
        if let Some(store) = self.resources.get_mut(&resource)
            && let Some(object) = store.get(key)
        {
            let deleting = GraphObject { deleting: true, ..object.clone() };
            store.apply(key.clone(), deleting);
        }
    }

    /// An object does not exist.
    pub fn delete(&mut self, resource: ResourceType, key: &Key, touched: &mut Vec<Touched>) {
        let deleted = self.resources.get_mut(&resource).and_then(|store| store.delete(key));
        if let Some((_, old)) = deleted {
            self.unindex(&old);
            self.touch_around(&old, touched);
        }
    }

    fn unindex(&mut self, old: &GraphObject) {
        self.by_uid.remove(&old.uid);
        for owner in &old.owners {
            self.dependents.remove(owner.uid.as_str(), &uid_key(&old.uid));
        }
    }

    /// Touches the dependents of an object that is gone, and its owners that wait for that.
    fn touch_around(&self, gone: &GraphObject, touched: &mut Vec<Touched>) {
        touched.extend(self.dependents.get(&*gone.uid).map(|key| touch(key.name())));
        self.touch_waiting_owners(gone, touched);
    }

    fn touch_waiting_owners(&self, object: &GraphObject, touched: &mut Vec<Touched>) {
        let waits = |owner: &&OwnerReference| {
            self.get(&owner.uid).is_some_and(|(.., object)| object.awaits_dependents())
        };
        touched.extend(object.owners.iter().filter(waits).map(|owner| touch(&owner.uid)));
    }
}

fn touch(uid: &str) -> Touched {
    Touched { key: uid_key(uid), by: Cause::Ownership }
}
