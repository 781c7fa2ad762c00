//! The behaviour of a list and watch, as one function.
//!
//! In: a state and an input. Out: the next state and what to do. No I/O, no clock, no randomness: waits are named by
//! the number of failures, and the time a response lasted is handed in. The model is client-go's reflector.
//!
//! ```text
//!                            end of the initial objects
//!            ┌───────────┐                              ┌──────────┐
//!  start ───▶│ Streaming ├─────────────────────────────▶│ Watching │◀─┐ closed, failed:
//!            └─────┬─────┘                              └┬───▲─────┘──┘ again from the last version
//!  not supported   │ ◀── expired: stream or list anew ───┘   │
//!            ┌─────▼─────┐                                   │
//!            │  Cached   ├───────────────────────────────────┤ complete
//!            └─────┬─────┘                                   │
//!  too new for the │   ┌───────┐ next page                   │
//!  cache, or fails ▼   ▼       │                             │
//!            ┌─────────────────┴─┐                           │
//!            │       Paged       ├───────────────────────────┘ last page
//!            └───────────────────┘
//! ```
//!
//! A stream costs the server least: it sends objects from its watch cache as it encodes them. A cached list has to be
//! encoded whole; pages are read from etcd, by every node of a cluster that restarts.
//!
//! What always holds: every input that ends a response ([`Input::PageEnd`], [`Input::Silent`], [`Input::Closed`],
//! [`Input::Failed`]) asks for exactly one next; of the others only a bookmark in a stream that does not end its
//! initial objects does. `InitDone` follows an `Init` of the same list. No failure removes anything.

use super::failure::{Failure, FailureKind};
use super::request::Request;
use super::wire::ListMeta;
use crate::{Notice, Outage, OutageReason, Rejected};
use portway_api::{Event, ResourceType};
use std::time::Duration;

/// A response that lasted this long counts as a success, however it ended.
const HEALTHY: Duration = Duration::from_secs(5);

/// When to look again for a resource the server does not have.
const ABSENT: Duration = Duration::from_secs(600);

/// Failures in a row after which another way to list, or another version to watch from, is tried.
const SUSPICIOUS: u32 = 3;

/// Where a list and watch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    resource: ResourceType,
    optional: bool,
    /// Whether the server streams initial lists, as far as is known.
    streaming: bool,
    phase: Phase,
    /// The newest version seen; empty before the first list.
    version: String,
    /// Failures in a row.
    failures: u32,
    /// Watches in a row that ended because their version has expired, without any change.
    expired: u32,
    /// The message of the outage last reported and not yet over.
    outage: Option<String>,
    /// A field selector may be left out if the server does not know the field.
    may_drop_fields: bool,
    /// A list was completed once.
    listed: bool,
    /// The server's lack of this resource has been noted.
    absent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for the initial objects of a stream.
    Streaming { version: String },
    /// Waiting for a list from the watch cache.
    Cached { version: String },
    /// Waiting for this page of a list from etcd.
    Paged { continue_token: Option<String> },
    /// Waiting for changes after [`State::version`]; `heard` once this response said anything.
    Watching { heard: bool },
}

/// What happened.
#[derive(Debug, PartialEq)]
pub(super) enum Input<R> {
    /// The server accepted the request.
    Opened,
    /// An item of a list.
    Item(Result<R, Box<Rejected>>),
    /// A list, or a page of one, is complete.
    PageEnd(ListMeta),
    /// An object changed, or, in a stream, existed at the beginning; the version is empty if it could not be read.
    Change { version: String, change: Result<Event<R>, Box<Rejected>> },
    /// No changes up to this version.
    Bookmark { version: String },
    /// All objects of a stream that existed at the beginning have been sent.
    InitialEnd { version: String },
    /// A stream has been silent for so long that the server does not seem to know that it should end its initial objects.
    Silent,
    /// The server ended the watch in good order.
    Closed { lasted: Duration },
    /// The request failed, or the response broke off, or it was an error.
    Failed { failure: Failure, lasted: Duration },
}

/// What to do.
#[derive(Debug, PartialEq)]
pub(super) enum Output<R> {
    /// Tell the consumer.
    Send(Notice<Event<R>>),
    /// Note that the server does not have this resource. Comes once.
    NoteAbsent,
    /// Note that the server does not stream initial lists. Comes once.
    NoteNoStreaming,
    /// Leave the field selector out from now on. Comes once.
    DropFieldSelector,
    /// Wait as long as so many failures in a row ask for, and at least so long.
    Wait { failures: u32, at_least: Duration },
    /// Drop the response, if there is one, and ask for this.
    Ask(Request),
}

impl State {
    /// The beginning, with its first request. `optional`: the server may lack the resource; `streaming`: it may stream.
    pub(super) fn begin(resource: ResourceType, optional: bool, streaming: bool) -> (State, Request) {
        let mut state = State {
            resource,
            optional,
            streaming,
            phase: Phase::Watching { heard: false },
            version: String::new(),
            failures: 0,
            expired: 0,
            outage: None,
            may_drop_fields: false,
            listed: false,
            absent: false,
        };
        state.phase = state.first_list();
        let request = state.request();
        (state, request)
    }

    /// A server that does not know a field of the field selector is asked without it.
    pub(super) fn with_optional_fields(self, optional: bool) -> State {
        State { may_drop_fields: optional, ..self }
    }

    /// The cheapest list that the server has, not older than what is known.
    fn first_list(&self) -> Phase {
        match self.streaming {
            true => Phase::Streaming { version: self.version.clone() },
            false => self.cached_list(),
        }
    }

    fn cached_list(&self) -> Phase {
        let version = if self.version.is_empty() { "0".to_owned() } else { self.version.clone() };
        Phase::Cached { version }
    }

    fn request(&self) -> Request {
        match &self.phase {
            Phase::Streaming { version } => Request::Stream { version: version.clone() },
            Phase::Cached { version } => Request::CachedList { version: version.clone() },
            Phase::Paged { continue_token } => Request::Page { continue_token: continue_token.clone() },
            Phase::Watching { .. } => Request::Watch { version: self.version.clone() },
        }
    }

    fn is_watching(&self) -> bool {
        matches!(self.phase, Phase::Watching { .. })
    }

    /// Whether the response that has just ended did any good.
    fn was_healthy(&self, lasted: Duration) -> bool {
        self.is_watching() && (lasted >= HEALTHY || self.phase == Phase::Watching { heard: true })
    }
}

/// Decides.
pub(super) fn step<R>(mut state: State, input: Input<R>) -> (State, Vec<Output<R>>) {
    let outputs = match input {
        Input::Opened => opened(&mut state),
        Input::Item(item) => vec![Output::Send(notice(item.map(Event::Apply)))],
        Input::PageEnd(meta) => page_end(&mut state, meta),
        Input::Change { version, change } => {
            heard(&mut state, version);
            vec![Output::Send(notice(change))]
        }
        // A server that sends bookmarks, but did not end the initial objects, ignores that they were asked for.
        Input::Bookmark { .. } | Input::Silent if !state.is_watching() => list_without_streaming(&mut state),
        Input::Bookmark { version } => {
            heard(&mut state, version);
            Vec::new()
        }
        Input::InitialEnd { version } => initial_end(&mut state, version),
        Input::Silent => again(&mut state, Duration::ZERO),
        Input::Closed { lasted } => closed(&mut state, lasted),
        Input::Failed { failure, lasted } => failed(&mut state, failure, lasted),
    };
    (state, outputs)
}

fn notice<R>(change: Result<Event<R>, Box<Rejected>>) -> Notice<Event<R>> {
    match change {
        Ok(event) => Notice::Event(event),
        Err(rejected) => Notice::Rejected(*rejected),
    }
}

/// `Init` waits for the server's answer, so that a consumer does not wait in a list that cannot begin.
fn opened<R>(state: &mut State) -> Vec<Output<R>> {
    let mut outputs = Vec::new();
    if state.outage.take().is_some() {
        outputs.push(Output::Send(Notice::Recovered(Some(state.resource))));
    }
    if !state.is_watching() && !matches!(state.phase, Phase::Paged { continue_token: Some(_) }) {
        outputs.push(Output::Send(Notice::Event(Event::Init)));
    }
    outputs
}

fn page_end<R>(state: &mut State, meta: ListMeta) -> Vec<Output<R>> {
    let mut outputs = Vec::new();
    if meta.continue_token.is_empty() {
        outputs.push(listed(state, meta.resource_version, false));
    } else {
        state.failures = 0;
        state.phase = Phase::Paged { continue_token: Some(meta.continue_token) };
    }
    outputs.push(Output::Ask(state.request()));
    outputs
}

fn initial_end<R>(state: &mut State, version: String) -> Vec<Output<R>> {
    if state.is_watching() {
        heard(state, version);
        return Vec::new();
    }
    // Not a sign that watches work: a server that expires each of them must not be listed from in a loop.
    state.failures = 0;
    vec![listed(state, version, false)]
}

fn listed<R>(state: &mut State, version: String, heard: bool) -> Output<R> {
    state.version = version;
    state.phase = Phase::Watching { heard };
    state.listed = true;
    Output::Send(Notice::Event(Event::InitDone))
}

/// A change in a watch. The objects of a stream that has not ended are no success yet, and leave the version alone.
fn heard(state: &mut State, version: String) {
    if !state.is_watching() {
        return;
    }
    (state.failures, state.expired) = (0, 0);
    state.phase = Phase::Watching { heard: true };
    if !version.is_empty() {
        state.version = version;
    }
}

/// A server that closes at once without a word must not be asked again at once.
fn closed<R>(state: &mut State, lasted: Duration) -> Vec<Output<R>> {
    if matches!(state.phase, Phase::Streaming { .. }) {
        state.phase = state.cached_list();
        return again(state, Duration::ZERO);
    }
    if state.was_healthy(lasted) {
        (state.failures, state.expired) = (0, 0);
        state.phase = Phase::Watching { heard: false };
        return vec![Output::Ask(state.request())];
    }
    again(state, Duration::ZERO)
}

fn failed<R>(state: &mut State, failure: Failure, lasted: Duration) -> Vec<Output<R>> {
    if state.was_healthy(lasted) {
        (state.failures, state.expired) = (0, 0);
    }
    let suspicious = state.failures + 1 >= SUSPICIOUS;
    match (failure.kind, &state.phase) {
        (FailureKind::Expired, Phase::Watching { .. }) => return expired(state),
        (FailureKind::Invalid, Phase::Streaming { .. }) => return list_without_streaming(state),
        (FailureKind::Invalid, Phase::Cached { .. } | Phase::Paged { .. }) if state.may_drop_fields => {
            state.may_drop_fields = false;
            return vec![Output::DropFieldSelector, Output::Ask(state.request())];
        }
        (FailureKind::Outage(OutageReason::NotServed), Phase::Watching { .. }) => {
            state.phase = state.first_list();
        }
        // A version is refused as such only by and by; the newest seen may be what is wrong.
        (FailureKind::Invalid | FailureKind::Outage(OutageReason::Refused), Phase::Watching { .. }) => {
            if state.failures >= SUSPICIOUS {
                state.version.clear();
                state.phase = state.first_list();
            }
        }
        (FailureKind::Outage(reason), phase)
            if state.optional && !matches!(phase, Phase::Watching { .. }) =>
        {
            if let Some(outputs) = without(state, reason, &failure) {
                return outputs;
            }
            next_way_to_list(state, failure.kind, suspicious);
        }
        (_, Phase::Watching { .. }) => {}
        (kind, _) => next_way_to_list(state, kind, suspicious),
    }
    let mut outputs = report(state, &failure);
    outputs.extend(again(state, failure.retry_after.unwrap_or_default()));
    outputs
}

/// A list failed: whether it is tried again in the same way.
fn next_way_to_list(state: &mut State, kind: FailureKind, suspicious: bool) {
    let refused = matches!(kind, FailureKind::Invalid | FailureKind::Outage(OutageReason::Refused));
    let broken = refused || kind == FailureKind::Dropped;
    state.phase = match &state.phase {
        // The version may be newer than all that the server has, as after a restored etcd.
        Phase::Streaming { version } if kind == FailureKind::Expired && !version.is_empty() => {
            Phase::Streaming { version: String::new() }
        }
        Phase::Streaming { .. } if kind == FailureKind::Expired || (broken && suspicious) => {
            state.cached_list()
        }
        Phase::Cached { .. } if kind == FailureKind::Expired || (broken && suspicious) => {
            Phase::Paged { continue_token: None }
        }
        Phase::Paged { .. } if kind == FailureKind::Expired || refused => {
            Phase::Paged { continue_token: None }
        }
        same => same.clone(),
    };
}

/// The server does not stream: list at once, and never ask it to stream again.
fn list_without_streaming<R>(state: &mut State) -> Vec<Output<R>> {
    state.streaming = false;
    state.phase = state.cached_list();
    vec![Output::NoteNoStreaming, Output::Ask(state.request())]
}

/// A version expires when a server restarts, and then what is known is old: list at once. But a server that expires every
/// watch must not be listed from in a loop.
fn expired<R>(state: &mut State) -> Vec<Output<R>> {
    state.phase = state.first_list();
    state.failures = state.expired;
    state.expired += 1;
    match state.failures {
        0 => vec![Output::Ask(state.request())],
        failures => vec![Output::Wait { failures, at_least: Duration::ZERO }, Output::Ask(state.request())],
    }
}

/// The same request again, after a wait.
fn again<R>(state: &mut State, at_least: Duration) -> Vec<Output<R>> {
    state.failures += 1;
    if state.is_watching() {
        state.phase = Phase::Watching { heard: false };
    }
    vec![Output::Wait { failures: state.failures, at_least }, Output::Ask(state.request())]
}

/// An outage is reported when it is new. A response that broke off is reported only if the next one does not do better.
fn report<R>(state: &mut State, failure: &Failure) -> Vec<Output<R>> {
    let reason = match failure.kind {
        FailureKind::Outage(reason) => reason,
        FailureKind::Invalid => OutageReason::Refused,
        FailureKind::Dropped if state.failures > 0 => OutageReason::Unreachable,
        FailureKind::Dropped | FailureKind::Expired => return Vec::new(),
    };
    if state.outage.as_ref() == Some(&failure.message) {
        return Vec::new();
    }
    state.outage = Some(failure.message.clone());
    let outage = Outage { resource: Some(state.resource), reason, message: failure.message.clone() };
    vec![Output::Send(Notice::Outage(outage))]
}

/// Goes on without an optional resource: an empty list, and a rare look whether it has come. ServiceCIDRs, for
/// instance, came with Kubernetes 1.33; older servers do not have them, and older roles do not allow them (RBAC answers
/// before the server looks whether there is such a resource).
fn without<R>(state: &mut State, reason: OutageReason, failure: &Failure) -> Option<Vec<Output<R>>> {
    let mut outputs = Vec::new();
    if reason == OutageReason::NotServed && state.outage.take().is_some() {
        outputs.push(Output::Send(Notice::Recovered(Some(state.resource))));
    }
    match reason {
        OutageReason::NotServed if !state.absent => {
            state.absent = true;
            outputs.push(Output::NoteAbsent);
        }
        OutageReason::NotServed => {}
        // A resource that was listed once stays while the right to list it is gone.
        OutageReason::Forbidden if !state.listed => outputs.extend(report(state, failure)),
        _ => return None,
    }
    outputs.push(Output::Send(Notice::Event(Event::Init)));
    outputs.push(Output::Send(Notice::Event(Event::InitDone)));
    state.phase = state.first_list();
    outputs.push(Output::Wait { failures: 1, at_least: ABSENT });
    outputs.push(Output::Ask(state.request()));
    Some(outputs)
}

#[cfg(test)]
mod tests;
