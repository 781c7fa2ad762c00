//! The status of a ReplicaSet.

use super::{Failed, replicas};
use crate::key::Key;
use crate::workloads::pod::PodState;
use portway_api::{ReplicaSet, ReplicaSetSpec, ReplicaSetStatus, Time, WorkloadCondition};
use serde_json::Value;
use std::time::Duration;

const FAILURE: &str = "ReplicaFailure";

/// The status with these active Pods.
pub(super) fn status(
    set: &ReplicaSet,
    spec: &ReplicaSetSpec,
    active: &[(&Key, &PodState)],
    terminating: i32,
    failure: Option<&Failed>,
    wall: i64,
) -> ReplicaSetStatus {
    let template: Value = serde_json::from_str(&spec.template).unwrap_or_default();
    let labels = template["metadata"]["labels"].as_object();
    let has_all = |pod: &PodState| {
        labels.is_none_or(|labels| labels.iter().all(|(name, value)| pod.label(name) == value.as_str()))
    };
    let available = |pod: &PodState| pod.available_at(spec.min_ready_seconds).is_some_and(|at| at <= wall);
    let number =
        |selected: &dyn Fn(&PodState) -> bool| active.iter().filter(|(_, pod)| selected(pod)).count() as i32;
    let old = set.status.clone().unwrap_or_default();
    let status = ReplicaSetStatus {
        replicas: active.len() as i32,
        fully_labeled_replicas: number(&has_all),
        observed_generation: set.metadata.as_ref().map_or(0, |meta| meta.generation),
        ready_replicas: number(&|pod| pod.ready),
        available_replicas: number(&available),
        conditions: conditions(old.conditions.clone(), failure, active.len() as i32 != replicas(spec), wall),
        terminating_replicas: old.terminating_replicas,
    };
    // An API server before 1.35 does not store this number: by itself it is no reason to write.
    let is_stored = old.terminating_replicas.is_some();
    match is_stored || status != old {
        true => ReplicaSetStatus { terminating_replicas: Some(terminating), ..status },
        false => status,
    }
}

/// A failure is reported until a plan has succeeded; the condition keeps the time at which it began.
fn conditions(
    mut conditions: Vec<WorkloadCondition>,
    failure: Option<&Failed>,
    is_incomplete: bool,
    wall: i64,
) -> Vec<WorkloadCondition> {
    let known = conditions.iter().position(|condition| condition.kind == FAILURE);
    match (failure, known) {
        // The message names a Pod, and would be another one after each attempt.
        (Some(failure), Some(known)) if conditions[known].reason == failure.reason => {}
        (Some(failure), known) => {
            let old = known.map(|known| conditions.remove(known));
            let since = old.and_then(|old| old.last_transition_time).unwrap_or(Time { seconds: wall });
            conditions.push(WorkloadCondition {
                kind: FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: failure.reason.to_owned(),
                message: failure.message.clone(),
                last_transition_time: Some(since),
                ..WorkloadCondition::default()
            });
        }
        (None, Some(known)) if !is_incomplete => _ = conditions.remove(known),
        (None, _) => {}
    }
    conditions
}

/// How long it takes until the next Pod that is ready becomes available.
pub(super) fn next_available(
    spec: &ReplicaSetSpec,
    active: &[(&Key, &PodState)],
    wall: i64,
) -> Option<Duration> {
    let times = active.iter().filter_map(|(_, pod)| pod.available_at(spec.min_ready_seconds));
    let wait = times.filter(|at| *at > wall).min()? - wall;
    Some(Duration::from_secs(wait.unsigned_abs()))
}
