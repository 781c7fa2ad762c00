//! The Deployment controller: replaces the Pods of a Deployment by those of its newest template, within its limits.
//!
//! In: the Deployment, its ReplicaSets, and whether Pods of old ones still run. Out: new ReplicaSets, their numbers of
//! Pods, and the Deployment's status and revision. The behaviour, the conditions and the annotations are those of
//! kube-controller-manager. One plan writes each object at most once; what follows is decided with the answers. Pure.

mod rollout;
mod sets;
mod status;

use crate::cluster::{Cause, Touched};
use crate::controller::{Clock, Logic};
use crate::key::Key;
use crate::plan::{Change, Note, Plan, Reasoned, Version, Write};
use crate::replicaset::owner;
use crate::views::Views;
use crate::workloads::{Workloads, is_selected};
use portway_api::{Deployment, DeploymentSpec, ObjectMeta, OwnerReference, ReplicaSet, Resource};
use portway_client::{Regarding, Subresource};
use rollout::Rollout;
use serde_json::{Value, json};
use sets::Sets;
use std::collections::HashMap;
use std::time::Duration;

/// The annotation with the number of a template.
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";

/// The reason in the condition and the Event about a ReplicaSet that cannot be created.
pub(crate) const CREATE_ERROR: &str = "ReplicaSetCreateError";

/// A Deployment, taken apart.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) deployment: &'a Deployment,
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) spec: &'a DeploymentSpec,
    /// Seconds since the epoch.
    pub(crate) wall: i64,
}

impl Context<'_> {
    /// The number of Pods that there should be.
    pub(crate) fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1).max(0)
    }
}

/// Decides what to write for a Deployment. `failure` is why the last creation of a ReplicaSet failed.
pub fn reconcile(workloads: &Workloads, key: &Key, failure: Option<&str>, wall: i64) -> Plan {
    let Some(deployment) = workloads.deployment(key) else { return Plan::default() };
    let (Some(meta), Some(spec)) = (&deployment.metadata, &deployment.spec) else { return Plan::default() };
    let context = Context { deployment, meta, spec, wall };
    let mut plan = Plan::default();
    if spec.selector.as_ref().is_none_or(|selector| selector.is_empty()) {
        let text = "This deployment is selecting all pods. A non-empty selector is required.".to_owned();
        plan.notes.push(Note::warning("SelectingAll", text));
        return plan;
    }
    let owned = claim(workloads, context, &mut plan);
    if !plan.writes.is_empty() {
        plan.again_after = Some(Duration::ZERO);
        return plan;
    }
    let sets = Sets::new(context, owned);
    let mut rollout = Rollout::new(context, sets, failure);
    if meta.deletion_timestamp.is_none() {
        let old_pods_run = |set: &ReplicaSet| {
            let uid = set.metadata.as_ref().map_or("", |meta| &meta.uid);
            workloads.pods_of(uid).iter().any(|(_, pod)| pod.phase != crate::workloads::pod::Phase::Ended)
        };
        let is_taken = |name: &str| workloads.replica_set(&Key::new(&meta.namespace, name)).is_some();
        rollout.decide(old_pods_run, is_taken);
    }
    rollout.write(&mut plan);
    plan
}

/// The ReplicaSets of a Deployment. Plans to release those that its selector no longer selects, and to adopt those that
/// nothing controls.
fn claim<'a>(workloads: &'a Workloads, context: Context<'_>, plan: &mut Plan) -> Vec<&'a ReplicaSet> {
    let Context { meta, spec, .. } = context;
    let selects = |set: &&ReplicaSet| {
        set.metadata.as_ref().is_some_and(|meta| is_selected(spec.selector.as_ref(), meta))
    };
    let is_deleting =
        |set: &&ReplicaSet| set.metadata.as_ref().is_some_and(|meta| meta.deletion_timestamp.is_some());
    let (owned, left): (Vec<&ReplicaSet>, Vec<&ReplicaSet>) =
        workloads.sets_of(&meta.uid).into_iter().partition(selects);
    if meta.deletion_timestamp.is_some() {
        return owned;
    }
    for set in left.into_iter().filter(|set| !is_deleting(set)) {
        let owners = set.metadata.as_ref().map_or(&[][..], |meta| &meta.owner_references);
        let kept: Vec<&OwnerReference> = owners.iter().filter(|owner| owner.uid != meta.uid).collect();
        plan.writes.push(change_owners(set, json!(kept), "its labels are not selected any more"));
    }
    let free = workloads.free_sets(&meta.namespace).into_iter();
    for set in free.filter(|set| selects(set) && !is_deleting(set)) {
        let mut owners = set.metadata.as_ref().map_or(Vec::new(), |meta| meta.owner_references.clone());
        owners.push(owner::<Deployment>(meta));
        plan.writes.push(change_owners(set, json!(owners), "it is selected, and nothing controls it"));
        plan.confirm = Some((Deployment::TYPE, Version::of(meta)));
    }
    owned
}

fn change_owners(set: &ReplicaSet, owners: Value, reason: &str) -> Reasoned {
    let version = Version::of(&set.metadata.clone().unwrap_or_default());
    let fields = json!({ "metadata": { "ownerReferences": owners } });
    let change = Change::of(ReplicaSet::TYPE, &version, Subresource::None, fields);
    Reasoned::new(Write::Change(Box::new(change)), reason)
}

/// The Deployment controller.
#[derive(Debug, Default)]
pub(crate) struct DeploymentController {
    /// Why ReplicaSets could not be created.
    failures: HashMap<Key, String>,
}

impl Logic for DeploymentController {
    fn delay(&mut self, touched: &Touched, _: &Views) -> Option<Duration> {
        (touched.by == Cause::Deployment).then_some(Duration::ZERO)
    }

    fn reconcile(&mut self, views: &Views, key: &Key, clock: Clock) -> Plan {
        let Some(workloads) = &views.workloads else { return Plan::default() };
        if workloads.deployment(key).is_none() {
            self.failures.remove(key);
        }
        reconcile(workloads, key, self.failures.get(key).map(String::as_str), clock.wall)
    }

    fn succeeded(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    fn failed(&mut self, key: &Key, failure: &crate::execute::Failure) -> Option<Note> {
        if failure.operation != "create" {
            return None;
        }
        let text = format!("Failed to create new replica set: {}", failure.message);
        self.failures.insert(key.clone(), text.clone());
        Some(Note::warning(CREATE_ERROR, text))
    }

    fn subject(&self, views: &Views, key: &Key) -> Regarding {
        let deployment = views.workloads.as_ref().and_then(|workloads| workloads.deployment(key));
        let uid = deployment.and_then(|d| d.metadata.as_ref()).map(|meta| meta.uid.clone());
        key.regarding(Deployment::TYPE, uid.unwrap_or_default())
    }

    fn keys(&self, views: &Views) -> Vec<Key> {
        views.workloads.as_ref().map(Workloads::deployment_keys).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
