//! The objects of the API server as the controllers see them: one view for the endpoint controllers, one for workloads,
//! one for the garbage collection. A view that no controller reads is not kept.

use crate::cluster::{Cluster, ClusterEvent, Touched};
use crate::garbage;
use crate::garbage::graph::Graph;
use crate::key::Key;
use crate::kind::Kind;
use crate::plan::{Object, Read};
use crate::under_way::{ObjectId, UnderWay};
use crate::workloads::Workloads;
use portway_api::complete::EndpointSlice;
use portway_api::{
    Deployment, Endpoints, Event, Lease, Node, ObjectMeta, Pod, ReplicaSet, Resource, ResourceType,
};
use serde_json::Value;
use std::time::Instant;

/// The views.
#[derive(Debug, Default)]
pub struct Views {
    /// For the endpoint controllers.
    pub cluster: Cluster,
    has_endpoints: bool,
    /// For ReplicaSets, Deployments and Nodes.
    pub workloads: Option<Workloads>,
    /// For the garbage collection.
    pub graph: Option<Graph>,
    under_way: UnderWay,
}

impl Views {
    /// The views that these controllers read.
    pub fn of(kinds: &[Kind]) -> Views {
        Views {
            has_endpoints: kinds.iter().any(|kind| kind.is_of_endpoints()),
            workloads: kinds.iter().any(|kind| kind.is_of_workloads()).then(Workloads::default),
            graph: kinds.contains(&Kind::Garbage).then(|| Graph::of(garbage::RESOURCES)),
            ..Views::default()
        }
    }

    /// Whether the endpoint controllers run.
    pub fn has_endpoints(&self) -> bool {
        self.has_endpoints
    }

    /// Whether everything has been listed.
    pub fn is_listed(&self) -> bool {
        (!self.has_endpoints || self.cluster.is_listed())
            && self.workloads.as_ref().is_none_or(Workloads::is_listed)
            && self.graph.as_ref().is_none_or(Graph::is_listed)
    }

    /// Stores the change of an event. Returns the objects that it touches.
    pub fn apply(&mut self, event: ClusterEvent, now: Instant) -> Vec<Touched> {
        let mut touched = Vec::new();
        if let (resource, Event::Delete { namespace, name }) = event.metadata() {
            self.under_way.deleted(resource, Key::new(&namespace, &name));
        }
        self.apply_to_owners(&event, now, &mut touched);
        if self.has_endpoints {
            self.cluster.apply(event, &mut touched);
        }
        touched
    }

    fn apply_to_owners(&mut self, event: &ClusterEvent, now: Instant, touched: &mut Vec<Touched>) {
        if let Some(graph) = &mut self.graph {
            let (resource, event) = event.metadata();
            graph.apply(resource, event, touched);
        }
        if let Some(workloads) = &mut self.workloads {
            workloads.apply(event, now, touched);
        }
    }

    /// The last version of an object that cannot be decoded stays, also over a relist.
    pub fn keep(&mut self, resource: ResourceType, key: &Key) {
        self.cluster.keep(resource, key);
        if let Some(workloads) = &mut self.workloads {
            workloads.keep(resource, key);
        }
        if let Some(graph) = &mut self.graph {
            graph.keep(resource, key);
        }
    }

    /// Work on these objects begins: they are written or read.
    pub(crate) fn work_begins(&mut self, objects: &[ObjectId]) {
        self.under_way.begin(objects.iter().cloned());
    }

    /// The work on these objects has ended.
    pub(crate) fn work_ended(&mut self, objects: &[ObjectId]) {
        self.under_way.end(objects);
    }

    /// Stores an object as the answer to a write or a read has it, unless it was deleted since.
    pub fn stored(&mut self, object: Object, now: Instant, touched: &mut Vec<Touched>) {
        if self.under_way.was_deleted(object.resource(), &object.key()) {
            return;
        }
        match object {
            Object::Slice(slice) => {
                self.apply_metadata(EndpointSlice::TYPE, slice.metadata.as_ref(), touched);
                if self.has_endpoints {
                    self.cluster.slice_written(*slice, touched);
                }
            }
            Object::Endpoints(endpoints) => {
                self.apply_metadata(Endpoints::TYPE, endpoints.metadata.as_ref(), touched);
                if self.has_endpoints {
                    self.cluster.endpoints_written(*endpoints, touched);
                }
            }
            // The endpoint controllers wait for the event: they do not compare the versions of Pods and Nodes.
            Object::Json(resource, value) => match event_of(resource, *value) {
                Some(event) => self.apply_to_owners(&event, now, touched),
                None => tracing::warn!(%resource, "the API server's answer to a write cannot be decoded"),
            },
        }
    }

    fn apply_metadata(
        &mut self,
        resource: ResourceType,
        meta: Option<&ObjectMeta>,
        touched: &mut Vec<Touched>,
    ) {
        if let (Some(graph), Some(meta)) = (&mut self.graph, meta) {
            graph.apply(resource, Event::Apply(meta), touched);
        }
    }

    /// An object was looked for.
    pub fn was_read(&mut self, read: &Read, found: Option<Object>, now: Instant, touched: &mut Vec<Touched>) {
        if let Some(graph) = &mut self.graph {
            let meta = found.as_ref().map(|object| match object {
                Object::Slice(slice) => slice.metadata.clone().unwrap_or_default(),
                Object::Endpoints(endpoints) => endpoints.metadata.clone().unwrap_or_default(),
                Object::Json(_, value) => {
                    serde_json::from_value(value["metadata"].clone()).unwrap_or_default()
                }
            });
            graph.was_read(read, meta.as_ref());
        }
        match found {
            Some(object) => self.stored(object, now, touched),
            None => self.missing(read.resource, &read.key, touched),
        }
        if let Some(workloads) = &mut self.workloads {
            workloads.nodes.was_read(read, now);
        }
    }

    /// A controller deleted an object.
    pub fn deletion_accepted(&mut self, resource: ResourceType, key: &Key, touched: &mut Vec<Touched>) {
        match resource {
            r if r == EndpointSlice::TYPE => self.cluster.slice_deleted(key),
            r if r == Endpoints::TYPE => self.cluster.endpoints_missing(key),
            _ => {}
        }
        if let Some(workloads) = &mut self.workloads {
            workloads.deletion_accepted(resource, key, touched);
        }
        if let Some(graph) = &mut self.graph {
            graph.deletion_accepted(resource, key);
        }
    }

    /// An object does not exist.
    pub fn missing(&mut self, resource: ResourceType, key: &Key, touched: &mut Vec<Touched>) {
        match resource {
            r if r == EndpointSlice::TYPE => self.cluster.slice_missing(key),
            r if r == Endpoints::TYPE => self.cluster.endpoints_missing(key),
            _ => {}
        }
        if let Some(workloads) = &mut self.workloads {
            workloads.missing(resource, key, touched);
        }
        if let Some(graph) = &mut self.graph {
            graph.delete(resource, key, touched);
        }
    }
}

/// An object of a resource that is not written whole, as the event that would announce it.
fn event_of(resource: ResourceType, value: Value) -> Option<ClusterEvent> {
    fn of<R: Resource>(value: Value) -> Option<ClusterEvent>
    where
        ClusterEvent: From<Event<R>>,
    {
        Some(Event::Apply(serde_json::from_value::<R>(value).ok()?).into())
    }
    match resource {
        r if r == Pod::TYPE => of::<Pod>(value),
        r if r == ReplicaSet::TYPE => of::<ReplicaSet>(value),
        r if r == Deployment::TYPE => of::<Deployment>(value),
        r if r == Node::TYPE => of::<Node>(value),
        r if r == Lease::TYPE => of::<Lease>(value),
        _ => {
            let meta = serde_json::from_value(value["metadata"].clone()).ok()?;
            Some(ClusterEvent::Metadata(resource, Event::Apply(meta)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_does_not_bring_back_an_object_that_was_deleted_meanwhile() {
        let mut views = Views::of(&[Kind::ReplicaSets]);
        let key = Key::new("shop", "web-1");
        let pod =
            json!({"metadata": {"namespace": "shop", "name": "web-1", "uid": "u", "resourceVersion": "5"}});
        let now = Instant::now();
        let write = [(Pod::TYPE, key.clone())];
        views.work_begins(&write);
        views.apply(Event::<Pod>::Delete { namespace: "shop".into(), name: "web-1".into() }.into(), now);
        views.stored(Object::Json(Pod::TYPE, Box::new(pod.clone())), now, &mut Vec::new());
        let has_pod = |views: &Views| views.workloads.as_ref().is_some_and(|w| w.has_pod(&key));
        assert!(!has_pod(&views));
        // The work of another controller on the same Pod began later, and ends earlier.
        views.work_begins(&write);
        views.work_ended(&write);
        views.stored(Object::Json(Pod::TYPE, Box::new(pod.clone())), now, &mut Vec::new());
        assert!(!has_pod(&views));
        views.work_ended(&write);
        views.stored(Object::Json(Pod::TYPE, Box::new(pod)), now, &mut Vec::new());
        assert!(has_pod(&views), "a later write of the same name");
    }
}
