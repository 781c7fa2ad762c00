//! The state machine of a candidate. The rules are those of client-go's `leaderelection`.
//!
//! In: a state, an input and the time. Out: the next state, changes of leadership, and the next action. Whether a Lease
//! is still held depends on how long ago this process observed a change of it, never on the times in the Lease, which
//! are from another process's clock.

use super::{Election, Leadership};
use portway_api::{Lease, LeaseSpec, MicroTime, ObjectMeta};
use std::time::{Duration, Instant};

/// Candidates that do not lead delay their attempts by a random time of up to this many retry periods.
const JITTER: f64 = 1.2;

/// The time, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) instant: Instant,
    /// Written to the Lease, for information.
    pub(super) wall: MicroTime,
}

/// The state of a candidate.
#[derive(Clone, Debug)]
pub(super) struct State {
    election: Election,
    /// The Lease at its last observed change, and the time of the observation.
    observed: Option<(LeaseSpec, Instant)>,
    /// The Lease as last read or written.
    lease: Option<Lease>,
    /// When the request of the last write was sent.
    sent: Instant,
    /// When this process sent the last request that renewed the Lease; `None` if it does not lead. Other candidates
    /// observe the renewal later than that, so the renew deadline is over before they acquire the Lease.
    renewed: Option<Instant>,
    stopping: bool,
}

/// An event that the candidate reacts to.
#[derive(Debug)]
pub(super) enum Input {
    /// The wait is over.
    Tick,
    /// The Lease was read; `None` if it does not exist.
    Read(Option<Lease>),
    /// The Lease was created or replaced.
    Written(Lease),
    /// A request failed.
    Failed,
    /// The process stops.
    Stop,
}

/// The next action.
#[derive(Debug, PartialEq)]
pub(super) enum Output {
    /// Read the Lease.
    Read,
    /// Create the Lease.
    Create(Lease),
    /// Replace the Lease, unless it has changed since it was read.
    Replace(Lease),
    /// Wait for the duration of [`State::wait`].
    Wait,
    /// The election is over.
    End,
}

impl State {
    pub(super) fn begin(election: Election, now: Instant) -> (State, Output) {
        let state =
            State { election, observed: None, lease: None, sent: now, renewed: None, stopping: false };
        (state, Output::Read)
    }

    /// The time until the next attempt; `random` is in `0.0..1.0`. A leader waits no longer than its renew deadline.
    pub(super) fn wait(&self, random: f64, now: Instant) -> Duration {
        let retry = self.election.retry_period;
        match self.renewed {
            Some(_) => retry.min(self.request_timeout(now)),
            None => retry.mul_f64(1.0 + JITTER * random),
        }
    }

    /// The time-out of the next request: a leader's ends with its renew deadline.
    pub(super) fn request_timeout(&self, now: Instant) -> Duration {
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

    /// The Lease with this candidate as its holder, renewed now.
    fn claim(&self, now: Now) -> Lease {
        let mut lease = self.lease.clone().unwrap_or_default();
        let Election { namespace, name, identity, lease_duration, .. } = &self.election;
        let meta = lease.metadata.get_or_insert_with(ObjectMeta::default);
        (meta.namespace, meta.name) = (namespace.clone(), name.clone());
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(identity) {
            // The first holder of a Lease does not count as a transition.
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

    /// The Lease without a holder, so that the next candidate can acquire it at once.
    fn release(&self, now: Now) -> Option<Lease> {
        let mut lease = self.lease.clone()?;
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        (spec.acquire_time, spec.renew_time) = (Some(now.wall), Some(now.wall));
        Some(lease)
    }
}

/// Processes one input.
pub(super) fn step(mut state: State, input: Input, now: Now) -> (State, Vec<Leadership>, Output) {
    let mut changes = Vec::new();
    if state.stopping {
        return (state, changes, Output::End);
    }
    let output = match input {
        Input::Tick if is_overdue(&state, now.instant) => {
            lose(&mut state, &mut changes);
            Output::Wait
        }
        Input::Tick => Output::Read,
        Input::Read(lease) => read(&mut state, lease, now, &mut changes),
        Input::Written(lease) => {
            observe(&mut state, &lease, now.instant, &mut changes);
            state.lease = Some(lease);
            if state.renewed.replace(state.sent).is_none() {
                changes.push(Leadership::Acquired);
            }
            Output::Wait
        }
        Input::Failed => {
            if is_overdue(&state, now.instant) {
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
    if matches!(output, Output::Create(_) | Output::Replace(_)) {
        state.sent = now.instant;
    }
    (state, changes, output)
}

/// Whether this process leads but has not renewed the Lease within the renew deadline.
fn is_overdue(state: &State, now: Instant) -> bool {
    let deadline = state.election.renew_deadline;
    state.renewed.is_some_and(|renewed| now.saturating_duration_since(renewed) >= deadline)
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

/// Records the time of an observed change of the Lease.
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
