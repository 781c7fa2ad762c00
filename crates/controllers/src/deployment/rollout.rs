//! A rollout: how many Pods each ReplicaSet of a Deployment gets next.

use super::sets::{self, DESIRED, Draft, MAXIMUM, NewSet, Sets};
use super::status::{self, Progress};
use super::{Context, REVISION};
use crate::plan::{Change, Note, Object, Plan, Reasoned, Version, Write, status_fields};
use crate::replicaset::replicas;
use portway_api::{Deployment, IntOrString, ReplicaSet, Resource};
use portway_client::Subresource;
use serde_json::json;
use std::time::Duration;

/// The old ReplicaSets that are kept by default, for rollbacks.
const HISTORY_LIMIT: i32 = 10;

/// The decisions about one Deployment.
pub(super) struct Rollout<'a> {
    context: Context<'a>,
    sets: Sets<'a>,
    create: Option<NewSet>,
    /// The name of the new ReplicaSet is taken by one of another template or owner.
    collides: bool,
    /// Why the last creation of a ReplicaSet failed.
    failure: Option<&'a str>,
}

impl<'a> Rollout<'a> {
    pub(super) fn new(context: Context<'a>, sets: Sets<'a>, failure: Option<&'a str>) -> Rollout<'a> {
        Rollout { context, sets, create: None, collides: false, failure }
    }

    /// Decides the numbers of Pods.
    pub(super) fn decide(
        &mut self,
        old_pods_run: impl Fn(&ReplicaSet) -> bool,
        is_taken: impl Fn(&str) -> bool,
    ) {
        self.sets.update_new(self.context);
        if self.context.spec.paused {
            self.scale_proportionally();
            self.remove_old();
        } else if self.is_recreate() {
            self.recreate(old_pods_run, is_taken);
        } else if self.is_scaled() {
            self.scale_proportionally();
        } else {
            self.roll(is_taken);
        }
    }

    fn is_recreate(&self) -> bool {
        self.context.spec.strategy.as_ref().is_some_and(|strategy| strategy.kind == "Recreate")
    }

    /// Pods that there may be in addition, and that may be unavailable.
    fn limits(&self) -> (i32, i32) {
        limits(self.context)
    }

    fn maximum(&self) -> i32 {
        self.context.replicas() + self.limits().0
    }

    /// Whether the Deployment's number of Pods has changed since a ReplicaSet was last scaled.
    fn is_scaled(&self) -> bool {
        let active = self.sets.all().filter(|draft| draft.replicas > 0);
        let desired = active.filter_map(|draft| draft.number(DESIRED));
        desired.into_iter().any(|desired| desired != self.context.replicas())
    }

    /// Gives a ReplicaSet another number of Pods.
    fn scale(draft: &mut Draft<'_>, replicas: i32, desired: i32, maximum: i32) {
        draft.replicas = replicas.max(0);
        draft.annotate(desired, maximum);
    }

    /// Replaces Pods step by step, within the limits.
    fn roll(&mut self, is_taken: impl Fn(&str) -> bool) {
        let (desired, maximum) = (self.context.replicas(), self.maximum());
        let room = (maximum - self.sets.sum(|draft| draft.replicas)).max(0);
        let Some(new) = &mut self.sets.new else {
            return self.create_new(desired.min(room), is_taken);
        };
        if new.replicas != desired {
            let next = if new.replicas > desired { desired } else { desired.min(new.replicas + room) };
            if next != new.replicas {
                return Self::scale(new, next, desired, maximum);
            }
        }
        if self.reduce_old() {
            return;
        }
        self.remove_old();
    }

    /// Takes Pods from old ReplicaSets: first those that are not available, then as many as the limit allows. False if
    /// nothing changes.
    fn reduce_old(&mut self) -> bool {
        let (desired, maximum) = (self.context.replicas(), self.maximum());
        let least = desired - self.limits().1;
        let missing_new =
            self.sets.new.as_ref().map_or(0, |new| new.replicas - new.status().available_replicas);
        let all = self.sets.sum(|draft| draft.replicas);
        let available = self.sets.sum(|draft| draft.status().available_replicas);
        let mut unhealthy = all - least - missing_new;
        if unhealthy <= 0 {
            return false;
        }
        let mut reduced = false;
        for draft in self.sets.old.iter_mut().filter(|draft| draft.replicas > 0) {
            let count = (draft.replicas - draft.status().available_replicas).clamp(0, unhealthy);
            if count > 0 {
                unhealthy -= count;
                Self::scale(draft, draft.replicas - count, desired, maximum);
                reduced = true;
            }
        }
        let mut spare = available - least;
        for draft in self.sets.old.iter_mut().filter(|draft| draft.replicas > 0) {
            let count = draft.replicas.min(spare);
            if count > 0 {
                spare -= count;
                Self::scale(draft, draft.replicas - count, desired, maximum);
                reduced = true;
            }
        }
        reduced
    }

    /// Ends all old Pods before it starts new ones.
    fn recreate(&mut self, old_pods_run: impl Fn(&ReplicaSet) -> bool, is_taken: impl Fn(&str) -> bool) {
        let (desired, maximum) = (self.context.replicas(), self.maximum());
        let mut reduced = false;
        for draft in self.sets.old.iter_mut().filter(|draft| draft.replicas > 0) {
            Self::scale(draft, 0, desired, maximum);
            reduced = true;
        }
        if reduced || self.sets.old.iter().any(|draft| old_pods_run(draft.set)) {
            return;
        }
        match &mut self.sets.new {
            None => self.create_new(desired, is_taken),
            Some(new) if new.replicas != desired => Self::scale(new, desired, desired, maximum),
            Some(_) => self.remove_old(),
        }
    }

    fn create_new(&mut self, replicas: i32, is_taken: impl Fn(&str) -> bool) {
        let new = sets::create(self.context, replicas, self.maximum(), self.sets.next_revision());
        self.collides = is_taken(&new.name);
        self.create = (!self.collides).then_some(new);
    }

    /// Scales the only active ReplicaSet, or all of them in proportion to their sizes.
    fn scale_proportionally(&mut self) {
        let (desired, maximum) = (self.context.replicas(), self.maximum());
        let active = self.sets.all().filter(|draft| draft.replicas > 0).count();
        let is_only = |draft: &&mut Draft<'_>| active == 0 || draft.replicas > 0;
        if active <= 1 {
            // The newest one first, then the latest of the old ones.
            let new = self.sets.new.iter_mut();
            if let Some(draft) = new.chain(self.sets.old.iter_mut().rev()).find(is_only)
                && draft.replicas != desired
            {
                Self::scale(draft, desired, desired, maximum);
            }
            return;
        }
        let is_complete = self.sets.new.as_ref().is_some_and(|new| {
            let is_desired = |number: i32| number == desired;
            is_desired(new.replicas)
                && new.number(DESIRED).is_some_and(is_desired)
                && is_desired(new.status().available_replicas)
        });
        if is_complete {
            let old = self.sets.old.iter_mut().filter(|draft| draft.replicas > 0);
            return old.for_each(|draft| Self::scale(draft, 0, desired, maximum));
        }
        if !self.is_recreate() {
            self.share(desired, maximum);
        }
    }

    /// Distributes Pods over all active ReplicaSets, so that a scaled rollout goes on with the same proportions.
    fn share(&mut self, desired: i32, maximum: i32) {
        let status = self.context.deployment.status.clone().unwrap_or_default();
        let allowed = if desired > 0 { maximum } else { 0 };
        let add = allowed - self.sets.sum(|draft| draft.replicas);
        let mut active: Vec<&mut Draft<'a>> =
            self.sets.all_mut().filter(|draft| draft.replicas > 0).collect();
        // The largest first; of equal ones, the newer one gets more and the older one loses more.
        active.sort_by(|a, b| {
            let by_age = a.created().cmp(&b.created());
            b.replicas.cmp(&a.replicas).then(if add > 0 { by_age.reverse() } else { by_age })
        });
        let mut added = 0;
        for draft in &mut active {
            let before = draft.number(MAXIMUM).filter(|max| *max > 0).unwrap_or(status.replicas).max(1);
            let target = f64::from(draft.replicas) * f64::from(maximum) / f64::from(before);
            let share = if desired == 0 { -draft.replicas } else { target.round() as i32 - draft.replicas };
            let share = if add > 0 { share.min(add - added) } else { share.max(add - added) };
            let share = if add == 0 || add == added { 0 } else { share };
            added += share;
            Self::scale(draft, draft.replicas + share, desired, maximum);
        }
        if let Some(first) = active.first_mut() {
            first.replicas = (first.replicas + add - added).max(0);
        }
    }

    /// Deletes the oldest ReplicaSets beyond those that are kept for rollbacks, once the rollout is complete.
    fn remove_old(&mut self) {
        let status = status::counts(self.context, &self.sets);
        if !self.context.spec.paused && !status::is_complete(self.context, &status) {
            return;
        }
        let limit = self.context.spec.revision_history_limit.unwrap_or(HISTORY_LIMIT).max(0) as usize;
        let mut old: Vec<&mut Draft<'a>> =
            self.sets.old.iter_mut().filter(|draft| draft.meta.deletion_timestamp.is_none()).collect();
        old.sort_by_key(|draft| draft.revision());
        let surplus = old.len().saturating_sub(limit);
        for draft in old.into_iter().take(surplus) {
            let status = draft.status();
            let is_empty = status.replicas == 0 && draft.replicas == 0;
            draft.delete = is_empty && status.observed_generation >= draft.meta.generation;
        }
    }

    /// Plans the writes, the status of the Deployment included.
    pub(super) fn write(self, plan: &mut Plan) {
        let context = self.context;
        if let Some(new) = &self.create {
            let object = Object::Json(ReplicaSet::TYPE, Box::new(new.object.clone()));
            let number = &new.object["spec"]["replicas"];
            let text = format!("Scaled up replica set {} from 0 to {number}", new.name);
            let mut write = Reasoned::new(Write::Create(object), "the Deployment has a new template");
            write.note = (*number != 0).then(|| Note::report("ScalingReplicaSet", text));
            plan.writes.push(write);
        }
        for draft in self.sets.all() {
            plan.writes.extend(write_set(draft));
        }
        if let Some(revision) = self.sets.new.as_ref().map(|new| new.revision().to_string())
            && context.meta.annotations.get(REVISION) != Some(&revision)
            && context.meta.deletion_timestamp.is_none()
        {
            let fields = json!({ "metadata": { "annotations": { REVISION: revision } } });
            let change = Change::of(Deployment::TYPE, &Version::of(context.meta), Subresource::None, fields);
            plan.writes.push(Reasoned::new(Write::Change(Box::new(change)), format!("revision {revision}")));
            plan.again_after = Some(Duration::ZERO);
            return;
        }
        let progress = match &self.create {
            Some(_) if self.failure.is_some() => {
                Progress::CreateFailed(self.failure.unwrap_or_default().to_owned())
            }
            Some(new) => Progress::Created(new.name.clone()),
            None if self.collides => Progress::Collides,
            None => Progress::Observed,
        };
        let (status, again_after) = status::status(context, &self.sets, progress);
        if context.deployment.status.as_ref() != Some(&status) {
            let reason = format!("{} of {} available", status.available_replicas, context.replicas());
            let fields = status_fields(context.deployment.status.as_ref(), &status);
            let change =
                Change::of(Deployment::TYPE, &Version::of(context.meta), Subresource::Status, fields);
            let write = Reasoned::new(Write::Change(Box::new(change)), reason);
            // After a failure the status comes first, or it would never be written.
            let position = if self.failure.is_some() { 0 } else { plan.writes.len() };
            plan.writes.insert(position, write);
        }
        plan.again_after = if plan.writes.is_empty() { again_after } else { Some(Duration::ZERO) };
    }
}

/// The write of a ReplicaSet, if it changes.
fn write_set(draft: &Draft<'_>) -> Option<Reasoned> {
    let version = Version::of(draft.meta);
    if draft.delete {
        return Some(Reasoned::new(
            Write::delete::<ReplicaSet>(version),
            "more old ReplicaSets than revisionHistoryLimit",
        ));
    }
    let (old, new) = (replicas(draft.spec), draft.replicas);
    let change = Change::of(ReplicaSet::TYPE, &version, Subresource::None, draft.fields()?);
    let reason = if old == new { "annotations".to_owned() } else { format!("{old} to {new} replicas") };
    let mut write = Reasoned::new(Write::Change(Box::new(change)), reason);
    if old != new {
        let direction = if new > old { "up" } else { "down" };
        let text = format!("Scaled {direction} replica set {} from {old} to {new}", draft.meta.name);
        write.note = Some(Note::report("ScalingReplicaSet", text));
    }
    Some(write)
}

/// Pods that there may be in addition, and that may be unavailable.
pub(super) fn limits(context: Context<'_>) -> (i32, i32) {
    let desired = context.replicas();
    let strategy = context.spec.strategy.clone().unwrap_or_default();
    if strategy.kind == "Recreate" {
        return (0, 0);
    }
    let rolling = strategy.rolling_update.unwrap_or_default();
    let surge = number(rolling.max_surge.as_ref(), desired, true);
    let unavailable = number(rolling.max_unavailable.as_ref(), desired, false);
    // One of the two has to be possible.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    (surge, unavailable.min(desired))
}

/// A number, or a percentage of `total`; 25% if absent or malformed.
fn number(value: Option<&IntOrString>, total: i32, round_up: bool) -> i32 {
    let percent = match value {
        Some(value) => match value.as_name() {
            None => return value.number.max(0),
            Some(text) => text.strip_suffix('%').and_then(|number| number.parse().ok()).unwrap_or(25),
        },
        None => 25,
    };
    let share = i64::from(total) * i64::from(percent.max(0));
    (if round_up { (share + 99) / 100 } else { share / 100 }) as i32
}
