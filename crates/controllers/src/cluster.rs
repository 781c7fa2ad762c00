//! The cluster as the controllers see it: compact values of Services, Pods, Nodes, slices and Endpoints objects, and
//! indexes between them.
//!
//! In: the events of their lists and watches, and the answers to the controllers' own writes. Out: the keys of the
//! Services that an event touched, and the objects that a reconciliation reads. The cost of an event is that of the
//! objects it touches. Pure: no clock, no I/O.
//!
//! A write is stored with the answer to it, before its event arrives; an event of an older version is ignored. So a
//! reconciliation never sees the cluster as it was before the previous one.

pub mod endpoints;
pub(crate) mod index;
pub mod meta;
pub mod node;
pub mod pod;
pub mod service;
pub mod slice;
mod written;

use crate::fingerprint;
use crate::key::Key;
use endpoints::EndpointsState;
use index::Index;
use node::{NodeState, ZoneShares};
use pod::PodState;
use portway_api::complete::EndpointSlice;
use portway_api::metadata_only::{ConfigMap, Namespace, Secret, ServiceAccount};
use portway_api::{
    Applied, Deployment, Endpoints, Event, Lease, Node, ObjectMeta, Pod, ReplicaSet, Resource, ResourceType,
    Service, Store,
};
use service::ServiceState;
use slice::{Maintainer, SliceState};
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// An event of one of the resources that the controllers watch.
#[derive(Debug)]
#[expect(missing_docs, reason = "the variants are the resources")]
pub enum ClusterEvent {
    Service(Event<Service>),
    Pod(Event<Pod>),
    Node(Event<Node>),
    Slice(Event<EndpointSlice>),
    Endpoints(Event<Endpoints>),
    ReplicaSet(Event<ReplicaSet>),
    Deployment(Event<Deployment>),
    Lease(Event<Lease>),
    /// Of a resource of which only the metadata is read.
    Metadata(ResourceType, Event<ObjectMeta>),
}

macro_rules! from_events {
    ($($variant:ident: $type:ty),*) => {
        $(impl From<Event<$type>> for ClusterEvent {
            fn from(event: Event<$type>) -> Self {
                ClusterEvent::$variant(event)
            }
        })*
    };
}
from_events!(
    Service: Service, Pod: Pod, Node: Node, Slice: EndpointSlice, Endpoints: Endpoints, ReplicaSet: ReplicaSet,
    Deployment: Deployment, Lease: Lease
);

macro_rules! from_metadata {
    ($($type:ty),*) => {
        $(impl From<Event<$type>> for ClusterEvent {
            fn from(event: Event<$type>) -> Self {
                ClusterEvent::Metadata(<$type>::TYPE, event.map(|object| object.metadata.unwrap_or_default()))
            }
        })*
    };
}
from_metadata!(Namespace, ConfigMap, Secret, ServiceAccount);

impl ClusterEvent {
    /// The resource, and the event with nothing but metadata.
    pub(crate) fn metadata(&self) -> (ResourceType, Event<&ObjectMeta>) {
        fn of<R: Resource>(event: &Event<R>) -> (ResourceType, Event<&ObjectMeta>) {
            static NONE: LazyLock<ObjectMeta> = LazyLock::new(ObjectMeta::default);
            (R::TYPE, event.as_ref().map(|object| object.metadata().unwrap_or(&NONE)))
        }
        match self {
            ClusterEvent::Service(event) => of(event),
            ClusterEvent::Pod(event) => of(event),
            ClusterEvent::Node(event) => of(event),
            ClusterEvent::Slice(event) => of(event),
            ClusterEvent::Endpoints(event) => of(event),
            ClusterEvent::ReplicaSet(event) => of(event),
            ClusterEvent::Deployment(event) => of(event),
            ClusterEvent::Lease(event) => of(event),
            ClusterEvent::Metadata(resource, event) => (*resource, event.as_ref()),
        }
    }
}

/// An object that a controller may have to work on. For changes of endpoints, it is the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Namespace and name; for the garbage collection the unique id.
    pub key: Key,
    /// The object that changed.
    pub by: Cause,
}

/// The change that touched an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The Service itself.
    Service,
    /// The Service was deleted.
    ServiceDeleted,
    /// One of its Pods.
    Pod {
        /// When the Pod became ready or unready, if that is the change.
        ready_changed: Option<i64>,
    },
    /// A node of one of its Pods, or the shares of zones.
    Node,
    /// A slice of this controller, changed by another process.
    Slice(Maintainer),
    /// Its Endpoints object.
    Endpoints,
    /// A ReplicaSet or one of its Pods.
    ReplicaSet,
    /// A Deployment or one of its ReplicaSets.
    Deployment,
    /// A Node, or whether renewals of Leases can be seen.
    NodeHealth,
    /// The Lease of a Node was renewed.
    NodeLease,
    /// An object's owners or dependents, or its deletion.
    Ownership,
}

/// The objects, and indexes between them.
#[derive(Debug, Default)]
pub struct Cluster {
    services: Store<Key, ServiceState>,
    pods: Store<Key, PodState>,
    nodes: Store<Key, NodeState>,
    slices: Store<Key, SliceState>,
    endpoints: Store<Key, EndpointsState>,
    /// Services by the first label of their selectors.
    services_by_label: Index<u64>,
    pods_by_label: Index<u64>,
    pods_by_node: Index<Box<str>>,
    slices_by_service: Index<Key>,
    /// Versions of slices that a controller deleted, until the event of that arrives.
    deleted_slices: HashMap<Key, u64>,
    /// Names of slices that others maintain and that were in the way of a new one.
    taken_names: HashSet<Key>,
    topology_services: Index<()>,
    shares: ZoneShares,
}

impl Cluster {
    /// Whether every resource has been listed.
    pub fn is_listed(&self) -> bool {
        self.services.is_listed()
            && self.pods.is_listed()
            && self.nodes.is_listed()
            && self.slices.is_listed()
            && self.endpoints.is_listed()
    }

    /// The numbers of Services and Pods.
    pub fn size(&self) -> (usize, usize) {
        (self.services.len(), self.pods.len())
    }

    /// The keys of all Services, and of Endpoints objects without one.
    pub(crate) fn service_keys(&self) -> Vec<Key> {
        let services = self.services.iter().map(|(key, _)| key);
        let alone = self.endpoints.iter().map(|(key, _)| key).filter(|key| self.services.get(*key).is_none());
        services.chain(alone).cloned().collect()
    }

    pub(crate) fn service(&self, key: &Key) -> Option<&ServiceState> {
        self.services.get(key)
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.get(&Key::new("", name))
    }

    pub(crate) fn shares(&self) -> &ZoneShares {
        &self.shares
    }

    pub(crate) fn endpoints(&self, key: &Key) -> Option<&EndpointsState> {
        self.endpoints.get(key)
    }

    /// The Pods that a Service selects, by name.
    pub(crate) fn pods_of(&self, service: &ServiceState) -> Vec<(&Key, &PodState)> {
        let Some(selector) = &service.selector else { return Vec::new() };
        let rarest = selector.iter().min_by_key(|label| self.pods_by_label.count(*label));
        let candidates = rarest.into_iter().flat_map(|label| self.pods_by_label.get(label));
        let with_state = candidates.filter_map(|key| Some((key, self.pods.get(key)?)));
        let mut pods: Vec<_> =
            with_state.filter(|(_, pod)| fingerprint::selects(selector, &pod.labels)).collect();
        pods.sort_unstable_by_key(|(key, _)| *key);
        pods
    }

    /// The slices of a Service that a controller maintains and that are not being deleted, by name.
    pub(crate) fn slices_of(&self, service: &Key, maintainer: Maintainer) -> Vec<&SliceState> {
        let mut keys: Vec<&Key> = self.slices_by_service.get(service).collect();
        keys.sort_unstable();
        keys.into_iter()
            .filter_map(|key| self.slices.get(key))
            .filter(|slice| slice.maintainer == maintainer && !slice.meta.deleting)
            .collect()
    }

    /// Whether there is, or was until now, a slice of this name.
    pub(crate) fn has_slice(&self, key: &Key) -> bool {
        self.slices.get(key).is_some()
            || self.deleted_slices.contains_key(key)
            || self.taken_names.contains(key)
    }

    /// Stores the change of an event, and adds the Services that it touches to `touched`.
    pub fn apply(&mut self, event: ClusterEvent, touched: &mut Vec<Touched>) {
        match event {
            ClusterEvent::Service(event) => self.apply_service(event, touched),
            ClusterEvent::Pod(event) => self.apply_pod(event, touched),
            ClusterEvent::Node(event) => self.apply_node(event, touched),
            ClusterEvent::Slice(event) => self.apply_slice(event, touched),
            ClusterEvent::Endpoints(event) => self.apply_endpoints(event, touched),
            ClusterEvent::ReplicaSet(_)
            | ClusterEvent::Deployment(_)
            | ClusterEvent::Lease(_)
            | ClusterEvent::Metadata(..) => {}
        }
    }

    /// The last version of an object that cannot be decoded stays, also over a relist.
    pub fn keep(&mut self, resource: ResourceType, key: &Key) {
        match resource {
            r if r == Service::TYPE => self.services.keep(key),
            r if r == Pod::TYPE => self.pods.keep(key),
            r if r == Node::TYPE => self.nodes.keep(key),
            r if r == EndpointSlice::TYPE => self.slices.keep(key),
            r if r == Endpoints::TYPE => self.endpoints.keep(key),
            _ => {}
        }
    }

    fn apply_service(&mut self, event: Event<Service>, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.services.begin_list(),
            Event::Apply(service) => {
                let (key, state) = (Key::of(&service), ServiceState::new(&service));
                let (label, topology) = (first_label(&state), state.topology);
                match self.services.apply(key.clone(), state) {
                    Applied::Unchanged => return,
                    Applied::Inserted => {}
                    Applied::Replaced(old) => self.unindex_service(&key, &old),
                }
                if let Some(label) = label {
                    self.services_by_label.insert(label, key.clone());
                }
                if topology {
                    self.topology_services.insert((), key.clone());
                }
                touched.push(Touched { key, by: Cause::Service });
            }
            Event::InitDone => {
                for key in self.services.finish_list() {
                    self.delete_service(&key, touched);
                }
            }
            Event::Delete { namespace, name } => {
                self.delete_service(&Key::new(&namespace, &name), touched);
            }
        }
    }

    fn delete_service(&mut self, key: &Key, touched: &mut Vec<Touched>) {
        if let Some((key, old)) = self.services.delete(key) {
            self.unindex_service(&key, &old);
            touched.push(Touched { key, by: Cause::ServiceDeleted });
        }
    }

    fn unindex_service(&mut self, key: &Key, old: &ServiceState) {
        if let Some(label) = first_label(old) {
            self.services_by_label.remove(&label, key);
        }
        if old.topology {
            self.topology_services.remove(&(), key);
        }
    }

    /// The Services that select a Pod with these labels.
    fn services_for(&self, labels: &[u64]) -> Vec<Key> {
        let candidates = labels.iter().flat_map(|label| self.services_by_label.get(label));
        let selects = |key: &&Key| {
            let selector = self.services.get(*key).and_then(|service| service.selector.as_ref());
            selector.is_some_and(|selector| fingerprint::selects(selector, labels))
        };
        candidates.filter(selects).cloned().collect()
    }

    fn apply_pod(&mut self, event: Event<Pod>, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.pods.begin_list(),
            Event::Apply(pod) => {
                let key = Key::of(&pod);
                let (state, broken) = PodState::new(&pod);
                let (labels, node, ready_changed) =
                    (state.labels.clone(), state.node.clone(), state.ready_changed);
                let now = self.services_for(&labels);
                let mut is_indexed = false;
                let mut ready_changed = ready_changed.filter(|_| self.pods.is_listed());
                let services = match self.pods.apply(key.clone(), state) {
                    Applied::Unchanged => return,
                    Applied::Inserted => now,
                    Applied::Replaced(old) => {
                        let new = self.pods.get(&key).is_some_and(|new| new.same_endpoint(&old));
                        ready_changed = ready_changed.filter(|_| old.ready_changed != ready_changed);
                        is_indexed = old.labels == labels && old.node == node;
                        if !is_indexed {
                            self.unindex_pod(&key, &old);
                        }
                        let before = self.services_for(&old.labels);
                        match new {
                            true => differing(before, now),
                            false => before.iter().chain(&now).cloned().collect(),
                        }
                    }
                };
                if !broken.is_empty() {
                    tracing::warn!(pod = %key, addresses = ?broken, "Pod has addresses that cannot be parsed; they are left out");
                }
                if !is_indexed {
                    labels.iter().for_each(|label| self.pods_by_label.insert(*label, key.clone()));
                    if !node.is_empty() {
                        self.pods_by_node.insert(node, key.clone());
                    }
                }
                let touch = |key| Touched { key, by: Cause::Pod { ready_changed } };
                touched.extend(services.into_iter().map(touch));
            }
            Event::InitDone => {
                for key in self.pods.finish_list() {
                    self.delete_pod(&key, touched);
                }
            }
            Event::Delete { namespace, name } => self.delete_pod(&Key::new(&namespace, &name), touched),
        }
    }

    fn delete_pod(&mut self, key: &Key, touched: &mut Vec<Touched>) {
        if let Some((key, old)) = self.pods.delete(key) {
            self.unindex_pod(&key, &old);
            let touch = |key| Touched { key, by: Cause::Pod { ready_changed: None } };
            touched.extend(self.services_for(&old.labels).into_iter().map(touch));
        }
    }

    fn unindex_pod(&mut self, key: &Key, old: &PodState) {
        for label in &old.labels {
            self.pods_by_label.remove(label, key);
        }
        self.pods_by_node.remove(&old.node, key);
    }

    fn apply_node(&mut self, event: Event<Node>, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.nodes.begin_list(),
            Event::Apply(node) => {
                let (key, state) = (Key::of(&node), NodeState::new(&node));
                let zone = state.zone.clone();
                let appears_or_moves = match self.nodes.apply(key.clone(), state) {
                    Applied::Unchanged => return,
                    Applied::Inserted => true,
                    Applied::Replaced(old) => old.zone != zone,
                };
                // Before the lists are complete, every Service is touched anyway.
                if self.nodes.is_listed() {
                    if appears_or_moves {
                        self.touch_node(key.name(), touched);
                    }
                    self.update_shares(touched);
                }
            }
            Event::InitDone => {
                for key in self.nodes.finish_list() {
                    self.nodes.delete(&key);
                }
                self.update_shares(touched);
            }
            // Endpoints on a Node that is gone stay until their Pods are: its kubelet may register it again.
            Event::Delete { name, .. } => {
                self.nodes.delete(&Key::new("", &name));
                self.update_shares(touched);
            }
        }
    }

    fn touch_node(&self, name: &str, touched: &mut Vec<Touched>) {
        for pod in self.pods_by_node.get(name).filter_map(|key| self.pods.get(key)) {
            let touch = |key| Touched { key, by: Cause::Node };
            touched.extend(self.services_for(&pod.labels).into_iter().map(touch));
        }
    }

    /// Computes the shares of zones, and touches the Services that depend on them if they have changed.
    fn update_shares(&mut self, touched: &mut Vec<Touched>) {
        let shares = ZoneShares::new(self.nodes.iter().map(|(_, node)| node));
        if shares != self.shares {
            self.shares = shares;
            let touch = |key: &Key| Touched { key: key.clone(), by: Cause::Node };
            touched.extend(self.topology_services.get(&()).map(touch));
        }
    }
}

fn first_label(service: &ServiceState) -> Option<u64> {
    service.selector.as_ref()?.first().copied()
}

/// The keys that are in one of two lists.
fn differing(before: Vec<Key>, now: Vec<Key>) -> Vec<Key> {
    let only_before = before.iter().filter(|key| !now.contains(key));
    let only_now = now.iter().filter(|key| !before.contains(key));
    only_before.chain(only_now).cloned().collect()
}

#[cfg(test)]
mod tests;
