//! The behaviour of a candidate, as one function. The rules are client-go's `leaderelection`.
//!
//! In: a state, an input and the time. Out: the next state, changes of leadership, and what to do next. Whether a Lease
//! is still held follows from how long ago this process saw it change, never by the times in it, which are of another
//! process's clock.

use super::{Election, Leadership};
use portway_api::{Lease, LeaseSpec, MicroTime, ObjectMeta};
use std::time::{Duration, Instant};

/// The candidates that follow spread their attempts by up to this many periods.
const JITTER: f64 = 1.2;

/// The time, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) instant: Instant,
    /// Written into the Lease, for people.
    pub(super) wall: MicroTime,
}

/// Where a candidate is.
#[derive(Clone, Debug)]
pub(super) struct State {
    election: Election,
    /// The Lease as it was last seen to change, and when.
    observed: Option<(LeaseSpec, Instant)>,
    /// The Lease as it was last read or written.
    lease: Option<Lease>,
    /// When this process renewed last; none: it does not lead.
    renewed: Option<Instant>,
    stopping: bool,
}

/// What happened.
#[derive(Debug)]
pub(super) enum Input {
    /// It is time for the next attempt.
    Tick,
    /// The Lease, if there is one.
    Read(Option<Lease>),
    /// The Lease was created or replaced.
    Written(Lease),
    /// A request failed.
    Failed,
    /// The process ends.
    Stop,
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub(super) enum Output {
    /// Read the Lease.
    Read,
    /// Create it.
    Create(Lease),
    /// Replace it, if it has not changed.
    Replace(Lease),
    /// Wait for [`State::wait`].
    Wait,
    /// Nothing any more.
    End,
}

impl State {
    pub(super) fn begin(election: Election) -> (State, Output) {
        (State { election, observed: None, lease: None, renewed: None, stopping: false }, Output::Read)
    }

    /// The time until the next attempt; `random` is in `0.0..1.0`.
    pub(super) fn wait(&self, random: f64) -> Duration {
        let spread = if self.renewed.is_some() { 0.0 } else { JITTER * random };
        self.election.retry_period.mul_f64(1.0 + spread)
    }

    /// How long a request may take.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        let deadline = self.election.renew_deadline;
        let left = |renewed: Instant| (renewed + deadline).saturating_duration_since(now);
        self.renewed.map_or(deadline, left).max(Duration::from_millis(1))
    }

    fn holder(&self) -> &str {
        self.observed.as_ref().and_then(|(spec, _)| spec.holder_identity.as_deref()).unwrap_or_default()
    }

    /// Whether another candidate holds the Lease.
    fn is_held(&self, now: Instant) -> bool {
        let Some((spec, seen)) = &self.observed else { return false };
        let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let holder = self.holder();
        !holder.is_empty()
            && holder != self.election.identity
            && now.saturating_duration_since(*seen) < Duration::from_secs(seconds)
    }

    /// The Lease as this candidate wants it.
    fn claim(&self, now: Now) -> Lease {
        let mut lease = self.lease.clone().unwrap_or_default();
        let Election { namespace, name, identity, lease_duration, .. } = &self.election;
        let meta = lease.metadata.get_or_insert_with(ObjectMeta::default);
        (meta.namespace, meta.name) = (namespace.clone(), name.clone());
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(identity) {
            // The first holder is no transition.
            let before = if self.lease.is_none() { -1 } else { spec.lease_transitions.unwrap_or(0) };
            spec.lease_transitions = Some(before + 1);
            spec.acquire_time = Some(now.wall);
            spec.holder_identity = Some(identity.clone());
        }
        spec.renew_time = Some(now.wall);
        spec.lease_duration_seconds =
            Some(i32::try_from(lease_duration.as_secs()).unwrap_or(i32::MAX).max(1));
        lease
    }

    /// The Lease without a holder, so that the next candidate need not wait.
    fn release(&self, now: Now) -> Option<Lease> {
        let mut lease = self.lease.clone()?;
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        (spec.acquire_time, spec.renew_time) = (Some(now.wall), Some(now.wall));
        Some(lease)
    }
}

/// Decides.
pub(super) fn step(mut state: State, input: Input, now: Now) -> (State, Vec<Leadership>, Output) {
    let mut changes = Vec::new();
    if state.stopping {
        return (state, changes, Output::End);
    }
    let output = match input {
        Input::Tick => Output::Read,
        Input::Read(lease) => read(&mut state, lease, now, &mut changes),
        Input::Written(lease) => {
            observe(&mut state, &lease, now.instant, &mut changes);
            state.lease = Some(lease);
            if state.renewed.replace(now.instant).is_none() {
                changes.push(Leadership::Acquired);
            }
            Output::Wait
        }
        Input::Failed => {
            let deadline = state.election.renew_deadline;
            if state.renewed.is_some_and(|renewed| now.instant.saturating_duration_since(renewed) >= deadline)
            {
                lose(&mut state, &mut changes);
            }
            Output::Wait
        }
        Input::Stop => {
            state.stopping = true;
            let lease = state.renewed.and_then(|_| state.release(now));
            lose(&mut state, &mut changes);
            lease.map_or(Output::End, Output::Replace)
        }
    };
    (state, changes, output)
}

fn read(state: &mut State, lease: Option<Lease>, now: Now, changes: &mut Vec<Leadership>) -> Output {
    let Some(lease) = lease else {
        (state.lease, state.observed) = (None, None);
        return Output::Create(state.claim(now));
    };
    observe(state, &lease, now.instant, changes);
    state.lease = Some(lease);
    if state.holder() != state.election.identity {
        lose(state, changes);
    }
    if state.is_held(now.instant) { Output::Wait } else { Output::Replace(state.claim(now)) }
}

/// Notes when the Lease was seen to change.
fn observe(state: &mut State, lease: &Lease, now: Instant, changes: &mut Vec<Leadership>) {
    let spec = lease.spec.clone().unwrap_or_default();
    if state.observed.as_ref().is_some_and(|(known, _)| *known == spec) {
        return;
    }
    let before = state.holder().to_owned();
    state.observed = Some((spec, now));
    let holder = state.holder();
    if holder != before && !holder.is_empty() && holder != state.election.identity {
        changes.push(Leadership::Held { by: holder.to_owned() });
    }
}

fn lose(state: &mut State, changes: &mut Vec<Leadership>) {
    if state.renewed.take().is_some() {
        changes.push(Leadership::Lost);
    }
}

#[cfg(test)]
mod tests;
