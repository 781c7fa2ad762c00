//! The ReplicaSet controller: as many Pods as a ReplicaSet says.
//!
//! In: the ReplicaSet and the Pods that it controls or may adopt. Out: creations and deletions of Pods, owner
//! references of Pods that are adopted or released, and the status. The names of new Pods are computed from the
//! ReplicaSet's version, so that a creation whose answer was lost is not repeated under another name. Pure.

pub(crate) mod rank;
mod status;

use crate::cluster::{Cause, Touched};
use crate::controller::{Clock, Logic};
use crate::execute::Failure;
use crate::generated::Names;
use crate::key::Key;
use crate::plan::{Change, Note, Object, Plan, Reasoned, Version, Write, status_fields};
use crate::views::Views;
use crate::workloads::Workloads;
use crate::workloads::pod::PodState;
use portway_api::{ObjectMeta, OwnerReference, Pod, ReplicaSet, ReplicaSetSpec, Resource};
use portway_client::{Regarding, Subresource};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Pods that one plan creates or deletes at most.
const BURST: usize = 100;

/// Pods with their keys.
type Pods<'a> = Vec<(&'a Key, &'a PodState)>;

/// Decides what to write for a ReplicaSet. `failure` is why the last creation or deletion failed, and `seed` what the
/// names of new Pods are computed from, if not from the ReplicaSet's version.
pub fn reconcile(
    workloads: &Workloads,
    key: &Key,
    failure: Option<&Failed>,
    seed: Option<&str>,
    wall: i64,
) -> Plan {
    let Some(set) = workloads.replica_set(key) else { return Plan::default() };
    let (Some(meta), Some(spec)) = (&set.metadata, &set.spec) else { return Plan::default() };
    let mut plan = Plan::default();
    let owned = claim(workloads, meta, spec, &mut plan);
    if !plan.writes.is_empty() {
        plan.again_after = Some(Duration::ZERO);
        return plan;
    }
    let terminating = owned.iter().filter(|(_, pod)| pod.is_terminating()).count() as i32;
    let active: Pods<'_> = owned.into_iter().filter(|(_, pod)| pod.is_active()).collect();
    if meta.deletion_timestamp.is_none() {
        scale(workloads, meta, spec, &active, seed, &mut plan);
    }
    let wanted = status::status(set, spec, &active, terminating, failure, wall);
    let is_scaled = plan.writes.is_empty();
    // The status of Pods that are being created or deleted is written when they have been, or when these are many.
    let is_due = is_scaled || failure.is_some() || plan.writes.len() >= BURST;
    if is_due && set.status.as_ref() != Some(&wanted) {
        let fields = status_fields(set.status.as_ref(), &wanted);
        let change = Change::of(ReplicaSet::TYPE, &Version::of(meta), Subresource::Status, fields);
        let reason = format!("{} of {} ready", wanted.ready_replicas, replicas(spec));
        plan.writes.insert(0, Reasoned::new(Write::Change(Box::new(change)), reason));
    }
    plan.again_after =
        if is_scaled { status::next_available(spec, &active, wall) } else { Some(Duration::ZERO) };
    plan
}

/// The number of Pods that a ReplicaSet should have.
pub(crate) fn replicas(spec: &ReplicaSetSpec) -> i32 {
    spec.replicas.unwrap_or(1).max(0)
}

/// The Pods of a ReplicaSet. Plans to release those that its selector no longer selects, and to adopt those that
/// nothing controls.
fn claim<'a>(
    workloads: &'a Workloads,
    meta: &ObjectMeta,
    spec: &ReplicaSetSpec,
    plan: &mut Plan,
) -> Pods<'a> {
    let selects = |pod: &PodState| spec.selector.as_ref().is_some_and(|s| pod.is_selected_by(s));
    let is_deleting = meta.deletion_timestamp.is_some();
    let (owned, left): (Pods<'_>, Pods<'_>) =
        workloads.pods_of(&meta.uid).into_iter().partition(|(_, pod)| selects(pod));
    if is_deleting {
        return owned;
    }
    for (key, pod) in left.into_iter().filter(|(_, pod)| !pod.deletion_requested) {
        let kept: Vec<&OwnerReference> = pod.owners.iter().filter(|owner| owner.uid != meta.uid).collect();
        plan.writes.push(change_owners(key, pod, json!(kept), "its labels are not selected any more"));
    }
    let free = workloads.free_pods(&meta.namespace).into_iter();
    for (key, pod) in free.filter(|(_, pod)| pod.is_active() && selects(pod)) {
        let mut owners = pod.owners.clone();
        owners.push(owner::<ReplicaSet>(meta));
        plan.writes.push(change_owners(key, pod, json!(owners), "it is selected, and nothing controls it"));
        // A ReplicaSet that was deleted without its Pods must not take them back.
        plan.confirm = Some((ReplicaSet::TYPE, Version::of(meta)));
    }
    owned
}

/// The owner reference of a controller.
pub(crate) fn owner<R: Resource>(meta: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        kind: R::KIND.to_owned(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        api_version: R::TYPE.api_version(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn change_owners(key: &Key, pod: &PodState, owners: Value, reason: &str) -> Reasoned {
    let fields = json!({ "metadata": { "ownerReferences": owners } });
    let change = Change::of(Pod::TYPE, &pod.at_version(key), Subresource::None, fields);
    Reasoned::new(Write::Change(Box::new(change)), reason)
}

/// Plans the creation of missing Pods, or the deletion of surplus ones.
fn scale(
    workloads: &Workloads,
    meta: &ObjectMeta,
    spec: &ReplicaSetSpec,
    active: &[(&Key, &PodState)],
    seed: Option<&str>,
    plan: &mut Plan,
) {
    let wanted = replicas(spec) as usize;
    let reason = format!("{} of {wanted} replicas", active.len());
    if active.len() < wanted {
        let prefix = format!("{}-", meta.name);
        let seed = seed.unwrap_or(&meta.resource_version);
        let mut names = Names::new(&prefix, &[meta.uid.as_bytes(), seed.as_bytes()]);
        let mut planned: HashSet<String> = HashSet::new();
        for _ in 0..(wanted - active.len()).min(BURST) {
            let is_taken =
                |name: &str| planned.contains(name) || workloads.has_pod(&Key::new(&meta.namespace, name));
            let name = names.next_free(is_taken);
            let note = Note::report("SuccessfulCreate", format!("Created pod: {name}"));
            let pod = Object::Json(Pod::TYPE, Box::new(new_pod(meta, spec, &name)));
            plan.writes.push(Reasoned::new(Write::Create(pod), reason.clone()).note(note));
            planned.insert(name);
        }
    }
    if active.len() > wanted {
        plan.independent = true;
        for (key, pod) in rank::first_to_delete(workloads, meta, active, active.len() - wanted) {
            let note = Note::report("SuccessfulDelete", format!("Deleted pod: {}", key.name()));
            let write = Write::delete::<Pod>(pod.at_version(key).any());
            plan.writes.push(Reasoned::new(write, reason.clone()).note(note));
            if plan.writes.len() == BURST {
                break;
            }
        }
    }
}

/// A Pod from the template.
fn new_pod(meta: &ObjectMeta, spec: &ReplicaSetSpec, name: &str) -> Value {
    let mut template: Value = serde_json::from_str(&spec.template).unwrap_or_default();
    let (mut metadata, spec) = (template["metadata"].take(), template["spec"].take());
    let mut kept = json!({
        "name": name,
        "generateName": format!("{}-", meta.name),
        "namespace": meta.namespace,
        "ownerReferences": [owner::<ReplicaSet>(meta)],
    });
    for field in ["labels", "annotations", "finalizers"] {
        let value = metadata[field].take();
        if !value.is_null() {
            kept[field] = value;
        }
    }
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec })
}

/// Why a creation or deletion of a Pod failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// `FailedCreate` or `FailedDelete`.
    pub reason: &'static str,
    /// The answer of the API server.
    pub message: String,
}

/// The ReplicaSet controller.
#[derive(Debug, Default)]
pub(crate) struct ReplicaSetController {
    failures: HashMap<Key, Failed>,
    /// What the names of new Pods are computed from, until their creation has succeeded: a second attempt uses the same
    /// names, also if the ReplicaSet has changed since.
    seeds: HashMap<Key, String>,
}

impl Logic for ReplicaSetController {
    fn delay(&mut self, touched: &Touched, _: &Views) -> Option<Duration> {
        (touched.by == Cause::ReplicaSet).then_some(Duration::ZERO)
    }

    fn reconcile(&mut self, views: &Views, key: &Key, clock: Clock) -> Plan {
        let Some(workloads) = &views.workloads else { return Plan::default() };
        let Some(set) = workloads.replica_set(key) else {
            self.succeeded(key);
            return Plan::default();
        };
        let seed = self.seeds.get(key).map(String::as_str);
        let plan = reconcile(workloads, key, self.failures.get(key), seed, clock.wall);
        if plan.writes.iter().any(|reasoned| matches!(reasoned.write, Write::Create(_))) {
            let version = set.metadata.as_ref().map(|meta| meta.resource_version.clone());
            self.seeds.entry(key.clone()).or_insert(version.unwrap_or_default());
        }
        plan
    }

    fn succeeded(&mut self, key: &Key) {
        self.failures.remove(key);
        self.seeds.remove(key);
    }

    fn failed(&mut self, key: &Key, failure: &Failure) -> Option<Note> {
        let reason = match failure.operation {
            _ if failure.resource != Pod::TYPE => return None,
            "create" => "FailedCreate",
            "delete" => "FailedDelete",
            _ => return None,
        };
        let message = failure.message.clone();
        self.failures.insert(key.clone(), Failed { reason, message: message.clone() });
        let what = if reason == "FailedCreate" { "creating" } else { "deleting" };
        Some(Note::warning(reason, format!("Error {what}: {message}")))
    }

    fn subject(&self, views: &Views, key: &Key) -> Regarding {
        let set = views.workloads.as_ref().and_then(|workloads| workloads.replica_set(key));
        let uid = set.and_then(|set| set.metadata.as_ref()).map(|meta| meta.uid.clone());
        key.regarding(ReplicaSet::TYPE, uid.unwrap_or_default())
    }

    fn keys(&self, views: &Views) -> Vec<Key> {
        views.workloads.as_ref().map(Workloads::replica_set_keys).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
