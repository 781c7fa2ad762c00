//! A cluster of workloads whose writes are applied as an API server would, with a kubelet that starts and ends Pods.

use crate::cluster::{ClusterEvent, Touched};
use crate::controller::Clock;
use crate::key::Key;
use crate::plan::{Note, Object, Plan, Write};
use crate::replicaset::Failed;
use crate::views::Views;
use crate::{Kind, deployment, garbage, node_lifecycle, replicaset};
use portway_api::metadata_only::ConfigMap;
use portway_api::time::format_rfc3339;
use portway_api::{Deployment, Event, Lease, Node, Pod, ReplicaSet, Resource, ResourceType, Service};
use portway_client::{Propagation, Subresource};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

pub(crate) const NAMESPACE: &str = "shop";

/// A refused write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conflict;

/// The API server's objects as JSON, and the views of the controllers.
#[derive(Debug)]
pub(crate) struct TestCluster {
    pub(crate) views: Views,
    objects: BTreeMap<(ResourceType, Key), Value>,
    revision: u64,
    pub(crate) wall: i64,
    pub(crate) now: Instant,
    pub(crate) touched: BTreeSet<(String, Key)>,
    pub(crate) notes: Vec<Note>,
    pub(crate) writes: Vec<String>,
    /// Pods are created and not started by the kubelet.
    pub(crate) no_kubelet: bool,
    /// Creations of Pods are refused.
    pub(crate) refuse_pods: bool,
    /// Creations of ReplicaSets are refused.
    pub(crate) refuse_sets: bool,
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(NAMESPACE, name)
}

impl TestCluster {
    pub(crate) fn new() -> TestCluster {
        let kinds = [Kind::ReplicaSets, Kind::Deployments, Kind::NodeLifecycle, Kind::Garbage];
        let mut cluster = TestCluster {
            views: Views::of(&kinds),
            objects: BTreeMap::new(),
            revision: 0,
            wall: 1_000_000,
            now: Instant::now(),
            touched: BTreeSet::new(),
            notes: Vec::new(),
            writes: Vec::new(),
            no_kubelet: false,
            refuse_pods: false,
            refuse_sets: false,
        };
        for resource in garbage::RESOURCES {
            cluster.event(list(*resource, true));
            cluster.event(list(*resource, false));
        }
        assert!(cluster.views.is_listed());
        cluster
    }

    /// Replaces the controllers by a new process, which lists everything.
    pub(crate) fn restart(&mut self) {
        let fresh = TestCluster::new();
        (self.views, self.touched) = (fresh.views, BTreeSet::new());
        let objects: Vec<_> = self.objects.clone().into_iter().collect();
        for ((resource, _), value) in objects {
            self.event(apply(resource, value));
        }
    }

    fn event(&mut self, event: ClusterEvent) {
        let touched = self.views.apply(event, self.now);
        self.note_touched(touched);
    }

    fn note_touched(&mut self, touched: Vec<Touched>) {
        self.touched.extend(touched.into_iter().map(|touched| (format!("{:?}", touched.by), touched.key)));
    }

    /// Creates or changes an object.
    pub(crate) fn put<R: Resource>(&mut self, object: Value) {
        let value = self.store(R::TYPE, object);
        self.event(apply(R::TYPE, value));
    }

    /// Stores an object as the API server does; the views do not see it yet.
    pub(crate) fn store(&mut self, resource: ResourceType, mut object: Value) -> Value {
        let id = (resource, Object::Json(resource, Box::new(object.clone())).key());
        self.revision += 1;
        let old = self.objects.get(&id);
        let spec_changed = old.is_none_or(|old| old["spec"] != object["spec"]);
        let (old_generation, old_uid) = match old {
            Some(old) => {
                (old["metadata"]["generation"].as_i64().unwrap_or(0), old["metadata"]["uid"].clone())
            }
            None => (0, format!("uid-{}", self.revision).into()),
        };
        let meta = &mut object["metadata"];
        meta["resourceVersion"] = self.revision.to_string().into();
        if meta["uid"].is_null() {
            meta["uid"] = old_uid;
        }
        if meta["creationTimestamp"].is_null() {
            meta["creationTimestamp"] = format_rfc3339(self.wall).into();
        }
        meta["generation"] = (old_generation + i64::from(spec_changed)).into();
        self.objects.insert(id, object.clone());
        object
    }

    /// Changes an object.
    pub(crate) fn change<R: Resource>(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        let mut object = self.objects[&(R::TYPE, key.clone())].clone();
        change(&mut object);
        self.put::<R>(object);
    }

    pub(crate) fn get<R: Resource>(&self, key: &Key) -> Option<R> {
        let value = self.objects.get(&(R::TYPE, key.clone()))?.clone();
        Some(serde_json::from_value(value).expect("an object"))
    }

    pub(crate) fn all<R: Resource>(&self) -> Vec<R> {
        let of_resource = self.objects.iter().filter(|((resource, _), _)| *resource == R::TYPE);
        of_resource.map(|(_, value)| serde_json::from_value(value.clone()).expect("an object")).collect()
    }

    pub(crate) fn json(&self, resource: ResourceType, key: &Key) -> Option<&Value> {
        self.objects.get(&(resource, key.clone()))
    }

    /// Deletes an object as the API server does: one with finalizers stays, and so does a Pod that a kubelet ends.
    pub(crate) fn delete(&mut self, resource: ResourceType, key: &Key, propagation: Option<Propagation>) {
        let id = (resource, key.clone());
        let Some(mut object) = self.objects.get(&id).cloned() else { return };
        let mut finalizers: Vec<String> =
            serde_json::from_value(object["metadata"]["finalizers"].clone()).unwrap_or_default();
        match propagation {
            Some(Propagation::Orphan) => finalizers.push("orphan".to_owned()),
            Some(Propagation::Foreground) => finalizers.push("foregroundDeletion".to_owned()),
            _ => {}
        }
        finalizers.dedup();
        let graceful = resource == Pod::TYPE && !self.no_kubelet && object["spec"]["nodeName"].is_string();
        if finalizers.is_empty() && !graceful {
            return self.remove(resource, key);
        }
        object["metadata"]["finalizers"] = json!(finalizers);
        object["metadata"]["deletionTimestamp"] = format_rfc3339(self.wall).into();
        let stored = self.store(resource, object);
        self.event(apply(resource, stored));
    }

    fn remove(&mut self, resource: ResourceType, key: &Key) {
        self.objects.remove(&(resource, key.clone()));
        self.event(delete(resource, key));
    }

    /// Stores a write as the API server does, and its answer in the views.
    pub(crate) fn write(&mut self, write: &Write) -> Result<(), Conflict> {
        self.writes.push(write.to_string());
        let id = (write.resource(), write.key());
        match write {
            Write::Create(Object::Json(resource, value)) => {
                if self.objects.contains_key(&id)
                    || self.refuse_pods && *resource == Pod::TYPE
                    || self.refuse_sets && *resource == ReplicaSet::TYPE
                {
                    return Err(Conflict);
                }
                let stored = self.store(*resource, (**value).clone());
                self.answer(*resource, stored);
            }
            Write::Change(change) => {
                let mut object = self.objects.get(&id).cloned().ok_or(Conflict)?;
                for field in ["uid", "resourceVersion"] {
                    if change.fields["metadata"][field] != object["metadata"][field] {
                        return Err(Conflict);
                    }
                }
                let mut fields = change.fields.clone();
                match change.subresource {
                    Subresource::Status => fields = json!({ "status": fields["status"] }),
                    Subresource::None => assert!(fields.get("status").is_none(), "{write}"),
                }
                merge(&mut object, &fields, change.by_item);
                let is_deleted = object["metadata"]["deletionTimestamp"].is_string()
                    && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
                if is_deleted {
                    self.remove(id.0, &id.1);
                } else {
                    let stored = self.store(id.0, object);
                    self.answer(id.0, stored);
                }
            }
            Write::Delete { resource, version, propagation } => {
                let object = self.objects.get(&id).ok_or(Conflict)?;
                let current = &object["metadata"]["resourceVersion"];
                if !version.resource_version.is_empty() && *current != *version.resource_version {
                    return Err(Conflict);
                }
                self.delete(*resource, &version.key, *propagation);
                let mut touched = Vec::new();
                self.views.deletion_accepted(*resource, &version.key, &mut touched);
                self.note_touched(touched);
            }
            other => panic!("not a write of these controllers: {other}"),
        }
        Ok(())
    }

    fn answer(&mut self, resource: ResourceType, value: Value) {
        let mut touched = Vec::new();
        self.views.stored(Object::Json(resource, Box::new(value)), self.now, &mut touched);
        self.note_touched(touched);
    }

    /// Runs all controllers until no key is touched and no plan has writes. Panics if that takes too long.
    pub(crate) fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 400, "no fixed point; the last writes: {:#?}", self.writes.iter().rev().take(8));
            let Some((by, key)) = self.touched.pop_first() else {
                if self.step_kubelet() {
                    continue;
                }
                return;
            };
            let plan = self.plan(&by, &key);
            self.step(&by, &key, plan);
        }
    }

    /// The plan of the controller that a change is for.
    pub(crate) fn plan(&self, by: &str, key: &Key) -> Plan {
        let workloads = self.views.workloads.as_ref().expect("workloads");
        let clock = Clock { now: self.now, wall: self.wall };
        let refused = Failed { reason: "FailedCreate", message: "refused".to_owned() };
        match by {
            "ReplicaSet" => {
                replicaset::reconcile(workloads, key, self.refuse_pods.then_some(&refused), None, self.wall)
            }
            "Deployment" => {
                deployment::reconcile(workloads, key, self.refuse_sets.then_some("refused"), self.wall)
            }
            "NodeHealth" | "NodeLease" => {
                node_lifecycle::reconcile(workloads, key, Duration::from_secs(50), clock)
            }
            "Ownership" => garbage::reconcile(self.views.graph.as_ref().expect("graph"), key.name()),
            other => panic!("{other}"),
        }
    }

    /// Does what a plan says.
    pub(crate) fn step(&mut self, by: &str, key: &Key, plan: Plan) {
        self.notes.extend(plan.notes);
        for read in &plan.reads {
            let found = self.objects.get(&(read.resource, read.key.clone())).cloned();
            let object = found.map(|value| Object::Json(read.resource, Box::new(value)));
            let mut touched = Vec::new();
            self.views.was_read(read, object, self.now, &mut touched);
            self.note_touched(touched);
        }
        if let Some((resource, version)) = &plan.confirm {
            let live = self.objects.get(&(*resource, version.key.clone()));
            assert!(live.is_some_and(|live| live["metadata"]["uid"] == *version.uid), "not confirmed");
        }
        for reasoned in &plan.writes {
            if self.write(&reasoned.write).is_err() {
                let id = (reasoned.write.resource(), reasoned.write.key());
                if let Some(value) = self.objects.get(&id).cloned() {
                    self.answer(id.0, value);
                }
                if !self.refuse_pods && !self.refuse_sets {
                    self.touched.insert((by.to_owned(), key.clone()));
                }
                return;
            }
            self.notes.extend(reasoned.note.clone());
        }
        if plan.again_after == Some(Duration::ZERO) || !plan.reads.is_empty() {
            self.touched.insert((by.to_owned(), key.clone()));
        }
    }

    /// Starts Pods that are new, and ends those that are being deleted. False if there was nothing to do.
    pub(crate) fn step_kubelet(&mut self) -> bool {
        if self.no_kubelet {
            return false;
        }
        let pods: Vec<(Key, Value)> = self
            .objects
            .iter()
            .filter(|((resource, _), _)| *resource == Pod::TYPE)
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        let mut changed = false;
        for (key, pod) in pods {
            let finalizers = pod["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
            if pod["metadata"]["deletionTimestamp"].is_string() && finalizers == 0 {
                self.remove(Pod::TYPE, &key);
                changed = true;
            } else if pod["status"].is_null() && pod["spec"]["broken"].is_null() {
                let since = format_rfc3339(self.wall);
                self.change::<Pod>(&key, |pod| {
                    pod["spec"]["nodeName"] = "node-a".into();
                    pod["status"] = json!({"phase": "Running", "conditions": [
                        {"type": "Ready", "status": "True", "lastTransitionTime": since}]});
                });
                changed = true;
            }
        }
        changed
    }

    /// Decides again for everything, after time has passed.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.wall += seconds as i64;
        self.now += Duration::from_secs(seconds);
        let workloads = self.views.workloads.as_ref().expect("workloads");
        let sets = workloads.replica_set_keys().into_iter().map(|key| ("ReplicaSet".to_owned(), key));
        let deployments = workloads.deployment_keys().into_iter().map(|key| ("Deployment".to_owned(), key));
        let nodes = workloads.nodes.keys().into_iter().map(|key| ("NodeHealth".to_owned(), key));
        self.touched.extend(sets.chain(deployments).chain(nodes).collect::<Vec<_>>());
    }

    /// Asserts that a new process, and every key again, lead to no write.
    pub(crate) fn assert_fixed_point(&mut self) {
        self.writes.clear();
        self.pass(0);
        self.settle();
        self.restart();
        self.settle();
        assert_eq!(self.writes, [""; 0], "a fixed point");
    }

    /// The numbers of Pods in the ReplicaSets, oldest first.
    pub(crate) fn sizes(&self) -> Vec<i32> {
        let mut sets = self.all::<ReplicaSet>();
        let revision = |set: &ReplicaSet| {
            let meta = set.metadata.clone().unwrap_or_default();
            meta.annotations.get("deployment.kubernetes.io/revision").and_then(|r| r.parse::<i64>().ok())
        };
        sets.sort_by_key(revision);
        sets.into_iter().map(|set| set.spec.and_then(|spec| spec.replicas).unwrap_or(-1)).collect()
    }
}

/// A merge patch; with `by_item`, lists of conditions are merged by their type.
fn merge(target: &mut Value, patch: &Value, by_item: bool) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        match (value, &mut target[name]) {
            (Value::Null, _) => _ = target.as_object_mut().map(|object| object.remove(name)),
            (Value::Array(items), Value::Array(old)) if by_item => {
                for item in items {
                    match old.iter_mut().find(|old| old["type"] == item["type"]) {
                        Some(old) => merge(old, item, by_item),
                        None => old.push(item.clone()),
                    }
                }
            }
            (_, slot) => merge(slot, value, by_item),
        }
    }
}

fn list(resource: ResourceType, begins: bool) -> ClusterEvent {
    fn of<R: Resource>(begins: bool) -> Event<R> {
        if begins { Event::Init } else { Event::InitDone }
    }
    match resource {
        r if r == Pod::TYPE => of::<Pod>(begins).into(),
        r if r == ReplicaSet::TYPE => of::<ReplicaSet>(begins).into(),
        r if r == Deployment::TYPE => of::<Deployment>(begins).into(),
        r if r == Node::TYPE => of::<Node>(begins).into(),
        r if r == Lease::TYPE => of::<Lease>(begins).into(),
        r if r == Service::TYPE => of::<Service>(begins).into(),
        r => {
            let event = of::<ConfigMap>(begins).map(|object| object.metadata.unwrap_or_default());
            ClusterEvent::Metadata(r, event)
        }
    }
}

fn apply(resource: ResourceType, value: Value) -> ClusterEvent {
    fn of<R: Resource>(value: Value) -> Event<R> {
        Event::Apply(serde_json::from_value(value).expect("an object"))
    }
    match resource {
        r if r == Pod::TYPE => of::<Pod>(value).into(),
        r if r == ReplicaSet::TYPE => of::<ReplicaSet>(value).into(),
        r if r == Deployment::TYPE => of::<Deployment>(value).into(),
        r if r == Node::TYPE => of::<Node>(value).into(),
        r if r == Lease::TYPE => of::<Lease>(value).into(),
        r if r == Service::TYPE => of::<Service>(value).into(),
        r => {
            let event = of::<ConfigMap>(value).map(|object| object.metadata.unwrap_or_default());
            ClusterEvent::Metadata(r, event)
        }
    }
}

fn delete(resource: ResourceType, key: &Key) -> ClusterEvent {
    let (namespace, name) = (key.namespace().to_owned(), key.name().to_owned());
    match resource {
        r if r == Pod::TYPE => Event::<Pod>::Delete { namespace, name }.into(),
        r if r == ReplicaSet::TYPE => Event::<ReplicaSet>::Delete { namespace, name }.into(),
        r if r == Deployment::TYPE => Event::<Deployment>::Delete { namespace, name }.into(),
        r if r == Node::TYPE => Event::<Node>::Delete { namespace, name }.into(),
        r if r == Lease::TYPE => Event::<Lease>::Delete { namespace, name }.into(),
        r if r == Service::TYPE => Event::<Service>::Delete { namespace, name }.into(),
        r => ClusterEvent::Metadata(r, Event::Delete { namespace, name }),
    }
}

/// A template of Pods with a label `app` and this image.
pub(crate) fn template(app: &str, image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": image}], "terminationGracePeriodSeconds": 30},
    })
}

/// A ReplicaSet of Pods with a label `app` of its name.
pub(crate) fn replica_set(name: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, "v1"),
        },
    })
}

/// A Deployment of Pods with a label `app` of its name.
pub(crate) fn deployment(name: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, "v1"),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
        },
    })
}
