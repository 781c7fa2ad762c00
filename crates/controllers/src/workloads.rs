//! The workloads of the cluster: Deployments, ReplicaSets and Pods, which own each other, and Nodes with their Leases.
//!
//! In: the events of their lists and watches, and the answers to writes. Out: the keys of the objects that an event
//! touched, and what a reconciliation reads. An event of an older version than the known one is ignored, so that a
//! decision is never made with the state from before the previous one's writes. Pure: the time is handed in.

pub mod node;
pub mod pod;

use crate::cluster::index::Index;
use crate::cluster::{Cause, ClusterEvent, Touched};
use crate::key::Key;
use node::Nodes;
use pod::PodState;
use portway_api::{
    Applied, Deployment, Event, LabelSelector, Node, ObjectMeta, OwnerReference, Pod, ReplicaSet, Resource,
    ResourceType, Store,
};
use std::time::Instant;

/// The object that controls another one, by its unique id; or the namespace of an object that none controls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ControlledBy {
    Uid(Box<str>),
    Nothing(Box<str>),
}

/// Deployments, ReplicaSets, Pods, Nodes and Leases.
#[derive(Debug, Default)]
pub struct Workloads {
    deployments: Store<Key, Deployment>,
    replica_sets: Store<Key, ReplicaSet>,
    pods: Store<Key, PodState>,
    pub(crate) nodes: Nodes,
    deployments_by_namespace: Index<Box<str>>,
    sets_by_namespace: Index<Box<str>>,
    sets_by_controller: Index<ControlledBy>,
    pods_by_controller: Index<ControlledBy>,
    pods_by_node: Index<Box<str>>,
}

impl Workloads {
    /// Whether every resource has been listed.
    pub fn is_listed(&self) -> bool {
        self.deployments.is_listed()
            && self.replica_sets.is_listed()
            && self.pods.is_listed()
            && self.nodes.is_listed()
    }

    pub(crate) fn deployment(&self, key: &Key) -> Option<&Deployment> {
        self.deployments.get(key)
    }

    pub(crate) fn replica_set(&self, key: &Key) -> Option<&ReplicaSet> {
        self.replica_sets.get(key)
    }

    pub(crate) fn has_pod(&self, key: &Key) -> bool {
        self.pods.get(key).is_some()
    }

    /// Keys of all Deployments.
    pub(crate) fn deployment_keys(&self) -> Vec<Key> {
        self.deployments.iter().map(|(key, _)| key.clone()).collect()
    }

    /// Keys of all ReplicaSets.
    pub(crate) fn replica_set_keys(&self) -> Vec<Key> {
        self.replica_sets.iter().map(|(key, _)| key.clone()).collect()
    }

    /// The ReplicaSets that an object controls, by name.
    pub(crate) fn sets_of(&self, uid: &str) -> Vec<&ReplicaSet> {
        self.sets(&ControlledBy::Uid(uid.into()))
    }

    /// The ReplicaSets of a namespace that no object controls, by name.
    pub(crate) fn free_sets(&self, namespace: &str) -> Vec<&ReplicaSet> {
        self.sets(&ControlledBy::Nothing(namespace.into()))
    }

    fn sets(&self, by: &ControlledBy) -> Vec<&ReplicaSet> {
        let mut keys: Vec<&Key> = self.sets_by_controller.get(by).collect();
        keys.sort_unstable();
        keys.into_iter().filter_map(|key| self.replica_sets.get(key)).collect()
    }

    /// The Pods that an object controls, by name.
    pub(crate) fn pods_of(&self, uid: &str) -> Vec<(&Key, &PodState)> {
        self.pods_at(self.pods_by_controller.get(&ControlledBy::Uid(uid.into())))
    }

    /// The Pods of a namespace that no object controls, by name.
    pub(crate) fn free_pods(&self, namespace: &str) -> Vec<(&Key, &PodState)> {
        self.pods_at(self.pods_by_controller.get(&ControlledBy::Nothing(namespace.into())))
    }

    /// The Pods on a Node, by name.
    pub(crate) fn pods_on(&self, node: &str) -> Vec<(&Key, &PodState)> {
        self.pods_at(self.pods_by_node.get(node))
    }

    fn pods_at<'a>(&'a self, keys: impl Iterator<Item = &'a Key>) -> Vec<(&'a Key, &'a PodState)> {
        let mut pods: Vec<_> = keys.filter_map(|key| Some((key, self.pods.get(key)?))).collect();
        pods.sort_unstable_by_key(|(key, _)| *key);
        pods
    }

    /// Stores the change of an event, and adds the keys that it touches to `touched`.
    pub fn apply(&mut self, event: &ClusterEvent, now: Instant, touched: &mut Vec<Touched>) {
        match event {
            ClusterEvent::Deployment(event) => self.apply_deployment(event, touched),
            ClusterEvent::ReplicaSet(event) => self.apply_replica_set(event, touched),
            ClusterEvent::Pod(event) => self.apply_pod(event, touched),
            ClusterEvent::Node(event) => self.nodes.apply_node(event, now, touched),
            ClusterEvent::Lease(event) => self.nodes.apply_lease(event, now, touched),
            _ => {}
        }
    }

    /// The last version of an object that cannot be decoded stays, also over a relist.
    pub fn keep(&mut self, resource: ResourceType, key: &Key) {
        match resource {
            r if r == Deployment::TYPE => self.deployments.keep(key),
            r if r == ReplicaSet::TYPE => self.replica_sets.keep(key),
            r if r == Pod::TYPE => self.pods.keep(key),
            r if r == Node::TYPE => self.nodes.keep(key),
            _ => {}
        }
    }

    /// A controller deleted an object. A Pod may exist for some time yet: it is about to end.
    pub fn deletion_accepted(&mut self, resource: ResourceType, key: &Key, touched: &mut Vec<Touched>) {
        if resource == ReplicaSet::TYPE {
            self.delete_set(key, touched);
        } else if resource == Pod::TYPE
            && let Some(pod) = self.pods.get(key)
        {
            let ending = pod.ending();
            touch_controller(&ending.owners, key, touched);
            self.pods.apply(key.clone(), ending);
        }
    }

    /// An object does not exist.
    pub fn missing(&mut self, resource: ResourceType, key: &Key, touched: &mut Vec<Touched>) {
        match resource {
            r if r == Deployment::TYPE => self.delete_deployment(key),
            r if r == ReplicaSet::TYPE => self.delete_set(key, touched),
            r if r == Pod::TYPE => self.delete_pod(key, touched),
            _ => {}
        }
    }

    fn apply_deployment(&mut self, event: &Event<Deployment>, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.deployments.begin_list(),
            Event::Apply(deployment) => {
                let key = Key::of(deployment);
                if self.deployments.get(&key).is_some_and(|known| is_older(deployment, known)) {
                    return self.deployments.keep(&key);
                }
                if self.deployments.apply(key.clone(), deployment.clone()) != Applied::Unchanged {
                    self.deployments_by_namespace.insert(key.namespace().into(), key.clone());
                    touched.push(Touched { key, by: Cause::Deployment });
                }
            }
            Event::InitDone => {
                for key in self.deployments.finish_list() {
                    self.delete_deployment(&key);
                }
            }
            Event::Delete { namespace, name } => self.delete_deployment(&Key::new(namespace, name)),
        }
    }

    fn delete_deployment(&mut self, key: &Key) {
        if self.deployments.delete(key).is_some() {
            self.deployments_by_namespace.remove(key.namespace(), key);
        }
    }

    fn apply_replica_set(&mut self, event: &Event<ReplicaSet>, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.replica_sets.begin_list(),
            Event::Apply(set) => {
                let key = Key::of(set);
                if self.replica_sets.get(&key).is_some_and(|known| is_older(set, known)) {
                    return self.replica_sets.keep(&key);
                }
                match self.replica_sets.apply(key.clone(), set.clone()) {
                    Applied::Unchanged => return,
                    Applied::Inserted => {}
                    Applied::Replaced(old) => self.unindex_set(&key, &old, touched),
                }
                let controller = controlled_by(set.owner_references(), key.namespace());
                self.sets_by_controller.insert(controller, key.clone());
                self.sets_by_namespace.insert(key.namespace().into(), key.clone());
                self.touch_deployments(&key, set, touched);
                touched.push(Touched { key, by: Cause::ReplicaSet });
            }
            Event::InitDone => {
                for key in self.replica_sets.finish_list() {
                    self.delete_set(&key, touched);
                }
            }
            Event::Delete { namespace, name } => self.delete_set(&Key::new(namespace, name), touched),
        }
    }

    fn delete_set(&mut self, key: &Key, touched: &mut Vec<Touched>) {
        if let Some((key, old)) = self.replica_sets.delete(key) {
            self.sets_by_namespace.remove(key.namespace(), &key);
            self.unindex_set(&key, &old, touched);
        }
    }

    fn unindex_set(&mut self, key: &Key, old: &ReplicaSet, touched: &mut Vec<Touched>) {
        self.sets_by_controller.remove(&controlled_by(old.owner_references(), key.namespace()), key);
        self.touch_deployments(key, old, touched);
    }

    /// Touches the Deployment that controls a ReplicaSet, or those that may adopt it.
    fn touch_deployments(&self, key: &Key, set: &ReplicaSet, touched: &mut Vec<Touched>) {
        if let Some(owner) = controller(set.owner_references()) {
            if owner.kind == Deployment::KIND {
                touched.push(Touched { key: Key::new(key.namespace(), &owner.name), by: Cause::Deployment });
            }
            return;
        }
        let labels = set.metadata.as_ref().map(|meta| &meta.labels);
        let label = |name: &str| labels.and_then(|labels| labels.get(name)).map(String::as_str);
        for key in self.deployments_by_namespace.get(key.namespace()) {
            let selector = self.deployments.get(key).and_then(|d| d.spec.as_ref()?.selector.as_ref());
            if selector.is_some_and(|selector| selector.matches(label)) {
                touched.push(Touched { key: key.clone(), by: Cause::Deployment });
            }
        }
    }

    fn apply_pod(&mut self, event: &Event<Pod>, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.pods.begin_list(),
            Event::Apply(pod) => {
                let (key, mut state) = (Key::of(pod), PodState::new(pod));
                let known = self.pods.get(&key);
                if known.is_some_and(|known| state.version < known.version) {
                    return self.pods.keep(&key);
                }
                // An accepted deletion is not taken back.
                if known.is_some_and(|known| known.deletion_requested && known.uid == state.uid) {
                    (state.deletion_requested, state.terminating) = (true, true);
                }
                let (controller, node) = (controlled_by(&state.owners, key.namespace()), state.node.clone());
                match self.pods.apply(key.clone(), state.clone()) {
                    Applied::Unchanged => return,
                    Applied::Inserted => {}
                    Applied::Replaced(old) => self.unindex_pod(&key, &old, touched),
                }
                self.pods_by_controller.insert(controller, key.clone());
                if !node.is_empty() {
                    self.pods_by_node.insert(node, key.clone());
                }
                self.touch_sets(&key, &state, touched);
                self.touch_silent_node(&state, touched);
            }
            Event::InitDone => {
                for key in self.pods.finish_list() {
                    self.delete_pod(&key, touched);
                }
            }
            Event::Delete { namespace, name } => self.delete_pod(&Key::new(namespace, name), touched),
        }
    }

    fn delete_pod(&mut self, key: &Key, touched: &mut Vec<Touched>) {
        if let Some((key, old)) = self.pods.delete(key) {
            self.unindex_pod(&key, &old, touched);
            // A Deployment that recreates its Pods waits for the end of the old ones.
            let set = controller(&old.owners).map(|owner| Key::new(key.namespace(), &owner.name));
            if let Some((key, set)) = set.and_then(|key| Some((key.clone(), self.replica_sets.get(&key)?))) {
                self.touch_deployments(&key, set, touched);
            }
        }
    }

    /// Touches the Node of a Pod that is ready although its Node is not.
    fn touch_silent_node(&self, pod: &PodState, touched: &mut Vec<Touched>) {
        let key = Key::new("", &pod.node);
        let is_ready = |node: &Node| node::ready(node).is_some_and(|condition| condition.status == "True");
        if pod.ready && self.nodes.get(&key).is_some_and(|node| !is_ready(node)) {
            touched.push(Touched { key, by: Cause::NodeHealth });
        }
    }

    fn unindex_pod(&mut self, key: &Key, old: &PodState, touched: &mut Vec<Touched>) {
        self.pods_by_controller.remove(&controlled_by(&old.owners, key.namespace()), key);
        self.pods_by_node.remove(&old.node, key);
        self.touch_sets(key, old, touched);
    }

    /// Touches the ReplicaSet that controls a Pod, or those that may adopt it.
    fn touch_sets(&self, key: &Key, pod: &PodState, touched: &mut Vec<Touched>) {
        if touch_controller(&pod.owners, key, touched) {
            return;
        }
        for key in self.sets_by_namespace.get(key.namespace()) {
            let selector = self.replica_sets.get(key).and_then(|set| set.spec.as_ref()?.selector.as_ref());
            if selector.is_some_and(|selector| pod.is_selected_by(selector)) {
                touched.push(Touched { key: key.clone(), by: Cause::ReplicaSet });
            }
        }
    }
}

/// The owner references of an object.
pub(crate) trait Owned {
    fn owner_references(&self) -> &[OwnerReference];
}

impl<R: Resource> Owned for R {
    fn owner_references(&self) -> &[OwnerReference] {
        self.metadata().map_or(&[], |meta| &meta.owner_references)
    }
}

/// The owner that is the controller.
pub(crate) fn controller(owners: &[OwnerReference]) -> Option<&OwnerReference> {
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Whether labels are selected. A selector without requirements, which the API server refuses, selects nothing.
pub(crate) fn is_selected(selector: Option<&LabelSelector>, meta: &ObjectMeta) -> bool {
    let label = |name: &str| meta.labels.get(name).map(String::as_str);
    selector.is_some_and(|selector| !selector.is_empty() && selector.matches(label))
}

fn controlled_by(owners: &[OwnerReference], namespace: &str) -> ControlledBy {
    match controller(owners) {
        Some(owner) => ControlledBy::Uid(owner.uid.as_str().into()),
        None => ControlledBy::Nothing(namespace.into()),
    }
}

/// Touches the ReplicaSet that controls a Pod. True if any object controls it.
fn touch_controller(owners: &[OwnerReference], key: &Key, touched: &mut Vec<Touched>) -> bool {
    let Some(owner) = controller(owners) else { return false };
    if owner.kind == ReplicaSet::KIND {
        touched.push(Touched { key: Key::new(key.namespace(), &owner.name), by: Cause::ReplicaSet });
    }
    true
}

/// Whether an object is an older version than the known one.
fn is_older<R: Resource>(object: &R, known: &R) -> bool {
    let version = |object: &R| object.metadata().map(crate::cluster::meta::version).unwrap_or_default();
    version(object) < version(known)
}

#[cfg(test)]
pub(crate) mod testing;
