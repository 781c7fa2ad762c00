//! The status of a Deployment: numbers of Pods, and whether the rollout progresses.

use super::rollout::limits;
use super::sets::Sets;
use super::{CREATE_ERROR, Context};
use portway_api::{DeploymentStatus, Time, WorkloadCondition};
use std::time::Duration;

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const FAILURE: &str = "ReplicaFailure";
const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
/// A deadline of this many seconds means none.
const NO_DEADLINE: i32 = i32::MAX;

/// What a plan knows of the rollout's progress besides the numbers of Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing.
    Observed,
    /// The ReplicaSet of this name is being created.
    Created(String),
    /// The name of the new ReplicaSet is taken.
    Collides,
    /// The new ReplicaSet could not be created, for this reason.
    CreateFailed(String),
}

/// The numbers of the status, without conditions.
pub(super) fn counts(context: Context<'_>, sets: &Sets<'_>) -> DeploymentStatus {
    let sum = |number: fn(&portway_api::ReplicaSetStatus) -> i32| sets.sum(|draft| number(&draft.status()));
    let (replicas, available) = (sum(|s| s.replicas), sum(|s| s.available_replicas));
    let wanted = sets.sum(|draft| crate::replicaset::replicas(draft.spec));
    DeploymentStatus {
        observed_generation: context.meta.generation,
        replicas,
        updated_replicas: sets.new.as_ref().map_or(0, |new| new.status().replicas),
        ready_replicas: sum(|s| s.ready_replicas),
        available_replicas: available,
        unavailable_replicas: (wanted - available).max(0),
        terminating_replicas: sets.all().map(|draft| draft.status().terminating_replicas).sum(),
        ..DeploymentStatus::default()
    }
}

/// Whether all Pods are of the newest template and available.
pub(super) fn is_complete(context: Context<'_>, status: &DeploymentStatus) -> bool {
    let desired = context.replicas();
    [status.updated_replicas, status.replicas, status.available_replicas].iter().all(|n| *n == desired)
        && status.observed_generation >= context.meta.generation
}

/// The status, and how long to wait before it has to be computed again.
pub(super) fn status(
    context: Context<'_>,
    sets: &Sets<'_>,
    progress: Progress,
) -> (DeploymentStatus, Option<Duration>) {
    let old = context.deployment.status.clone().unwrap_or_default();
    let mut status = counts(context, sets);
    // An API server before 1.35 does not store this number: by itself it is no reason to write.
    if old.terminating_replicas.is_none() {
        let rest = DeploymentStatus { terminating_replicas: None, ..status.clone() };
        let stored = DeploymentStatus { conditions: Vec::new(), collision_count: None, ..old };
        if rest == stored {
            status.terminating_replicas = None;
        }
    }
    status.collision_count = match progress {
        Progress::Collides => Some(old.collision_count.unwrap_or(0) + 1),
        _ => old.collision_count,
    };
    status.conditions = old.conditions.clone();
    let conditions = &mut Conditions { list: &mut status.conditions, wall: context.wall };
    let least = context.replicas() - limits(context).1;
    match status.available_replicas >= least {
        true => conditions.set(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        ),
        false => conditions.set(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        ),
    }
    let failures = sets.all().flat_map(|draft| draft.status().conditions);
    match failures.filter(|condition| condition.kind == FAILURE && condition.status == "True").last() {
        Some(failure) => conditions.set(FAILURE, "True", &failure.reason, &failure.message),
        None => conditions.remove(FAILURE),
    }
    let deadline = context.spec.progress_deadline_seconds.unwrap_or(600);
    if let Progress::CreateFailed(message) = &progress {
        conditions.set(PROGRESSING, "False", CREATE_ERROR, message);
        return (status, None);
    }
    if deadline == NO_DEADLINE || context.meta.deletion_timestamp.is_some() {
        if !context.spec.paused && context.meta.deletion_timestamp.is_none() {
            conditions.remove(PROGRESSING);
        }
        return (status, None);
    }
    let counted = DeploymentStatus { conditions: Vec::new(), ..status.clone() };
    let conditions = &mut Conditions { list: &mut status.conditions, wall: context.wall };
    let wait = set_progress(context, sets, &old, &counted, progress, deadline, conditions);
    (status, wait)
}

/// Sets the condition `Progressing`. Returns how long it takes until a rollout without progress counts as failed.
fn set_progress(
    context: Context<'_>,
    sets: &Sets<'_>,
    old: &DeploymentStatus,
    new: &DeploymentStatus,
    progress: Progress,
    deadline: i32,
    conditions: &mut Conditions<'_>,
) -> Option<Duration> {
    let known = conditions.get(PROGRESSING).cloned();
    let reason = known.as_ref().map_or("", |condition| condition.reason.as_str());
    if let Progress::Created(name) = &progress {
        let text = format!("Created new replica set \"{name}\"");
        conditions.renew(PROGRESSING, "True", "NewReplicaSetCreated", &text);
        return None;
    }
    if context.spec.paused {
        if reason != TIMED_OUT {
            conditions.set(PROGRESSING, "Unknown", PAUSED, "Deployment is paused");
        }
        return None;
    }
    if reason == PAUSED {
        conditions.renew(PROGRESSING, "Unknown", "DeploymentResumed", "Deployment is resumed");
        return None;
    }
    let set = match &sets.new {
        Some(set) => format!("ReplicaSet \"{}\"", set.meta.name),
        None => format!("Deployment \"{}\"", context.meta.name),
    };
    let was_complete = new.replicas == new.updated_replicas && reason == NEW_SET_AVAILABLE;
    if was_complete {
        return None;
    }
    let progresses = new.updated_replicas > old.updated_replicas
        || new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        || new.ready_replicas > old.ready_replicas
        || new.available_replicas > old.available_replicas;
    if is_complete(context, new) {
        let text = format!("{set} has successfully progressed.");
        conditions.renew(PROGRESSING, "True", NEW_SET_AVAILABLE, &text);
        return None;
    }
    if progresses {
        conditions.renew(PROGRESSING, "True", "ReplicaSetUpdated", &format!("{set} is progressing."));
    } else if let (None, Some(new)) = (&known, &sets.new) {
        let text = format!("Found new replica set \"{}\"", new.meta.name);
        conditions.renew(PROGRESSING, "True", "FoundNewReplicaSet", &text);
    }
    let current = conditions.get(PROGRESSING)?;
    if current.reason == NEW_SET_AVAILABLE || current.reason == TIMED_OUT {
        return None;
    }
    let since = current.last_update_time.map_or(context.wall, |time| time.seconds);
    let left = since + i64::from(deadline) - context.wall;
    if left > 0 {
        return Some(Duration::from_secs(left.unsigned_abs() + 1));
    }
    conditions.set(PROGRESSING, "False", TIMED_OUT, &format!("{set} has timed out progressing."));
    None
}

/// The conditions of a status.
struct Conditions<'a> {
    list: &'a mut Vec<WorkloadCondition>,
    wall: i64,
}

impl Conditions<'_> {
    fn get(&self, kind: &str) -> Option<&WorkloadCondition> {
        self.list.iter().find(|condition| condition.kind == kind)
    }

    fn remove(&mut self, kind: &str) {
        self.list.retain(|condition| condition.kind != kind);
    }

    /// Sets a condition, unless it has this status and reason.
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        if self.get(kind).is_none_or(|known| known.status != status || known.reason != reason) {
            self.renew(kind, status, reason, message);
        }
    }

    /// Sets a condition with the current time; the time of its transition stays if its status does.
    fn renew(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let now = Some(Time { seconds: self.wall });
        let unchanged = self.get(kind).filter(|known| known.status == status);
        let since = unchanged.and_then(|known| known.last_transition_time).or(now);
        let condition = WorkloadCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_update_time: now,
            last_transition_time: since,
        };
        match self.list.iter_mut().find(|known| known.kind == kind) {
            Some(known) => *known = condition,
            None => self.list.push(condition),
        }
    }
}
