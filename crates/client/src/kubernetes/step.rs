//! The state machine of a list and watch.
//!
//! In: a state and an input. Out: the next state and the actions to perform. No I/O, no clock, no randomness: a wait is
//! given as a number of failures, and inputs have the time that a response lasted. The model is client-go's reflector.
//!
//! ```text
//!                            end of the initial objects
//!            ┌───────────┐                              ┌──────────┐
//!  start ───▶│ Streaming ├─────────────────────────────▶│ Watching │◀─┐ closed, failed:
//!            └─────┬─────┘                              └┬───▲─────┘──┘ watch from the last version
//!  refused, broken │ ◀── expired: stream/list again ─────┘   │
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
//! A stream costs the server least: it sends objects from its watch cache as it encodes them. A cached list is encoded
//! as a whole. Pages are read from etcd, and when a cluster restarts, by all its nodes at once.
//!
//! What always holds: every input that ends a response ([`Input::PageEnd`], [`Input::Silent`], [`Input::Closed`],
//! [`Input::Failed`]) results in exactly one new request. No other input does, except a bookmark before the end of a
//! stream's initial objects. `InitDone` follows an `Init` of the same list. No failure deletes objects, except that an
//! optional resource that the server does not serve becomes an empty list.

mod outage;
mod pages;

use super::failure::{Failure, FailureKind};
use super::request::Request;
use super::wire::ListMeta;
use crate::{Notice, OutageReason, Rejected};
use outage::{End, Reported, USELESS_RESPONSES};
use pages::{PageCount, page_end};
use portway_api::{Event, ResourceType};
use std::time::Duration;

/// A watch that lasted this long counts as a success, however it ended.
pub(super) const HEALTHY: Duration = Duration::from_secs(5);

/// How long to wait before an optional resource that is not served, or may not be read, is requested again.
const ABSENT_RETRY: Duration = Duration::from_secs(600);

/// The consecutive failure on which a list falls back to the next method, if the method itself may be the cause. A
/// watch falls back to a list on the failure after that.
const FALLBACK_AFTER: u32 = 3;

/// Consecutive silent streams after which the server is taken for one that does not stream. A single one may be a
/// stalled connection.
const SILENT_STREAMS: u32 = 2;

/// The state of a list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    resource: ResourceType,
    /// Whether the server may lack the resource.
    optional: bool,
    /// Whether to request streamed initial lists: true until the server refuses or ignores such a request.
    streaming: bool,
    phase: Phase,
    /// The newest known version; empty before the first list.
    version: String,
    /// Consecutive failures.
    failures: u32,
    /// Consecutive failures of the current list method, without those that do not depend on the method.
    method_failures: u32,
    /// Consecutive streams that were silent before the end of their initial objects.
    silent_streams: u32,
    /// Consecutive watches that ended without an event because their version had expired.
    expired: u32,
    /// Consecutive paged lists that expired before they were complete.
    expired_lists: u32,
    /// Consecutive watches that the server ended at once, without an event.
    short_watches: u32,
    /// Whether the server accepted the current request.
    accepted: bool,
    outage: Option<Reported>,
    pages: PageCount,
    /// Whether the field selector may be dropped if the server does not support a field.
    may_drop_fields: bool,
    /// Whether any list has been completed.
    listed: bool,
    /// Whether [`Output::LogAbsent`] has been sent.
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
    /// Waiting for changes after [`State::version`]. `received`: this response has had at least one event.
    Watching { received: bool },
}

/// An event of the current response.
#[derive(Debug, PartialEq)]
pub(super) enum Input<R> {
    /// The server accepted the request.
    Opened,
    /// An item of a list.
    Item(Result<R, Box<Rejected>>),
    /// A list, or a page of one, is complete.
    PageEnd(ListMeta),
    /// An object changed or, in a stream, existed at the beginning. The version is empty if it could not be decoded.
    Change { version: String, change: Result<Event<R>, Box<Rejected>> },
    /// All changes up to this version have been sent.
    Bookmark { version: String },
    /// All objects of a stream that existed at the beginning have been sent.
    InitialEnd { version: String },
    /// A watch has lasted for [`HEALTHY`].
    Lasted,
    /// A stream was silent before the end of its initial objects.
    Silent,
    /// The server ended the watch regularly.
    Closed { lasted: Duration },
    /// The request failed, the connection broke, or the server sent an error.
    Failed { failure: Failure, lasted: Duration },
}

/// An action to perform.
#[derive(Debug, PartialEq)]
pub(super) enum Output<R> {
    /// Send a notice to the consumer.
    Send(Notice<Event<R>>),
    /// Log that this resource is done without: the server does not serve it, or refuses it with this message. Occurs
    /// once.
    LogAbsent(Option<String>),
    /// Log why a list is requested instead of a stream.
    LogNoStream(String),
    /// Record that the server does not stream initial lists. Occurs once.
    DisableStreaming,
    /// Drop the field selector from now on. Occurs once.
    DropFieldSelector,
    /// Wait for the back-off after this number of failures, and at least for this duration.
    Wait { failures: u32, at_least: Duration },
    /// Drop the current response, if there is one, and send this request.
    Request(Request),
}

impl State {
    /// The initial state and the first request. `optional`: the server may lack the resource. `streaming`: request a
    /// streamed list.
    pub(super) fn begin(resource: ResourceType, optional: bool, streaming: bool) -> (State, Request) {
        let mut state = State {
            resource,
            optional,
            streaming,
            phase: Phase::Watching { received: false },
            version: String::new(),
            failures: 0,
            method_failures: 0,
            silent_streams: 0,
            expired: 0,
            outage: None,
            expired_lists: 0,
            short_watches: 0,
            accepted: false,
            pages: PageCount::default(),
            may_drop_fields: false,
            listed: false,
            absent: false,
        };
        state.phase = state.first_list();
        let request = state.request();
        (state, request)
    }

    /// Sets whether the field selector may be dropped if the server does not support a field.
    pub(super) fn with_optional_fields(self, optional: bool) -> State {
        State { may_drop_fields: optional, ..self }
    }

    /// The cheapest method that the server supports, for a list that is not older than the known version.
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

    /// Whether the response that has just ended was a watch that lasted or had events.
    fn was_healthy(&self, lasted: Duration) -> bool {
        self.is_watching() && (lasted >= HEALTHY || self.phase == Phase::Watching { received: true })
    }
}

/// Processes one input.
pub(super) fn step<R>(mut state: State, input: Input<R>) -> (State, Vec<Output<R>>) {
    let outputs = match input {
        Input::Opened => opened(&mut state),
        Input::Item(item) => {
            state.pages.count_object();
            vec![Output::Send(notice(item.map(Event::Apply)))]
        }
        Input::PageEnd(meta) => page_end(&mut state, meta),
        Input::Change { version, change } => {
            let mut outputs = record_event(&mut state, version);
            outputs.push(Output::Send(notice(change)));
            outputs
        }
        // A server that sends another bookmark before the end of the initial objects has ignored sendInitialEvents.
        Input::Bookmark { .. } if !state.is_watching() => list_without_streaming(&mut state),
        Input::Bookmark { version } => record_event(&mut state, version),
        Input::InitialEnd { version } => initial_end(&mut state, version),
        Input::Lasted => watch_works(&mut state).into_iter().collect(),
        Input::Silent => silent(&mut state),
        Input::Closed { lasted } => closed(&mut state, lasted),
        Input::Failed { failure, lasted } => failed(&mut state, failure, lasted),
    };
    if outputs.iter().any(|output| matches!(output, Output::Request(_))) {
        state.accepted = false;
    }
    (state, outputs)
}

fn notice<R>(change: Result<Event<R>, Box<Rejected>>) -> Notice<Event<R>> {
    match change {
        Ok(event) => Notice::Event(event),
        Err(rejected) => Notice::Rejected(*rejected),
    }
}

/// `Init` is sent only after the server has accepted the request, so that a consumer is not left in a list that cannot
/// begin.
fn opened<R>(state: &mut State) -> Vec<Output<R>> {
    state.accepted = true;
    let mut outputs: Vec<Output<R>> = state.end_outage(End::Accepted).into_iter().collect();
    if !state.is_watching() && !matches!(state.phase, Phase::Paged { continue_token: Some(_) }) {
        state.pages = PageCount::default();
        outputs.push(Output::Send(Notice::Event(Event::Init)));
    }
    outputs
}

fn initial_end<R>(state: &mut State, version: String) -> Vec<Output<R>> {
    if state.is_watching() {
        return record_event(state, version);
    }
    // `expired` is kept: the end of a list does not show that watches work, and a server on which every watch expires
    // must not be listed in a loop.
    (state.failures, state.silent_streams) = (0, 0);
    let mut outputs: Vec<Output<R>> = state.end_outage(End::List).into_iter().collect();
    outputs.push(listed(state, version));
    outputs
}

fn listed<R>(state: &mut State, version: String) -> Output<R> {
    state.version = version;
    state.phase = Phase::Watching { received: false };
    (state.method_failures, state.expired_lists) = (0, 0);
    state.listed = true;
    Output::Send(Notice::Event(Event::InitDone))
}

/// Records an event of a watch as a success. Initial objects of a stream are not a success, and their versions cannot
/// be resumed from.
fn record_event<R>(state: &mut State, version: String) -> Vec<Output<R>> {
    if !state.is_watching() {
        return Vec::new();
    }
    state.phase = Phase::Watching { received: true };
    if !version.is_empty() {
        state.version = version;
    }
    watch_works(state).into_iter().collect()
}

/// A watch had an event, or lasted.
fn watch_works<R>(state: &mut State) -> Option<Output<R>> {
    (state.failures, state.expired, state.short_watches) = (0, 0, 0);
    state.end_outage(End::Watch)
}

/// A watch that is closed early and without an event is repeated only after a wait.
fn closed<R>(state: &mut State, lasted: Duration) -> Vec<Output<R>> {
    if matches!(state.phase, Phase::Streaming { .. }) {
        state.phase = state.cached_list();
        return retry(state, Duration::ZERO);
    }
    if state.was_healthy(lasted) {
        state.phase = Phase::Watching { received: false };
        let mut outputs: Vec<Output<R>> = watch_works(state).into_iter().collect();
        outputs.push(Output::Request(state.request()));
        return outputs;
    }
    state.short_watches += 1;
    let mut outputs = Vec::new();
    if state.short_watches >= USELESS_RESPONSES {
        let (resource, times) = (state.resource, state.short_watches);
        let message =
            format!("{resource}: the server has ended {times} watches in a row at once, without an event");
        outputs.extend(state.begin_outage(OutageReason::Refused, message, End::Watch));
    }
    outputs.extend(retry(state, Duration::ZERO));
    outputs
}

fn failed<R>(state: &mut State, failure: Failure, lasted: Duration) -> Vec<Output<R>> {
    let end = state.end_of_outage();
    let mut outputs = Vec::new();
    if state.was_healthy(lasted) {
        outputs.extend(watch_works(state));
    }
    match (failure.kind, &state.phase) {
        (FailureKind::Expired, Phase::Watching { .. }) => {
            outputs.extend(expired(state));
            return outputs;
        }
        (FailureKind::Invalid, Phase::Streaming { .. }) => return list_without_streaming(state),
        (FailureKind::Invalid, Phase::Cached { .. } | Phase::Paged { .. }) if state.may_drop_fields => {
            state.may_drop_fields = false;
            return vec![Output::DropFieldSelector, Output::Request(state.request())];
        }
        (FailureKind::Outage(OutageReason::NotServed), Phase::Watching { .. }) => {
            state.phase = state.first_list();
        }
        // The newest known version may be the cause. It is given up only after several failures.
        (FailureKind::Invalid | FailureKind::Outage(OutageReason::Refused), Phase::Watching { .. }) => {
            if state.failures >= FALLBACK_AFTER {
                state.version.clear();
                state.phase = state.first_list();
            }
        }
        (FailureKind::Outage(reason), phase)
            if state.optional
                && (reason == OutageReason::NotServed || !matches!(phase, Phase::Streaming { .. }))
                && !matches!(phase, Phase::Watching { .. }) =>
        {
            if let Some(outputs) = continue_without(state, reason, &failure) {
                return outputs;
            }
            select_list_method(state, failure.kind);
        }
        (_, Phase::Watching { .. }) => {}
        (kind, phase) => {
            let paged = matches!(phase, Phase::Paged { .. });
            state.expired_lists += u32::from(paged && kind == FailureKind::Expired);
            let streamed = matches!(phase, Phase::Streaming { .. });
            select_list_method(state, kind);
            // Not an outage, unless the list fails too. A server over an old etcd, for instance, refuses every stream.
            let patient =
                matches!(kind, FailureKind::Dropped | FailureKind::Outage(OutageReason::Overloaded));
            if streamed && !patient && matches!(state.phase, Phase::Cached { .. }) {
                return vec![Output::LogNoStream(failure.message), Output::Request(state.request())];
            }
        }
    }
    outputs.extend(state.report(&failure, end));
    outputs.extend(retry(state, failure.retry_after.unwrap_or_default()));
    outputs
}

/// Selects the method of the next list after one has failed: the same or the next one. The next relist begins with a
/// stream again.
fn select_list_method(state: &mut State, kind: FailureKind) {
    let refused = matches!(kind, FailureKind::Invalid | FailureKind::Outage(OutageReason::Refused));
    let unrelated =
        matches!(kind, FailureKind::Outage(OutageReason::Unreachable | OutageReason::Unauthorized));
    state.method_failures += u32::from(!unrelated);
    let failed_at_least = |times: u32| !unrelated && state.method_failures >= times;
    let next = match &state.phase {
        // The version may be newer than any that the server has, as after a restore of etcd.
        Phase::Streaming { version } if kind == FailureKind::Expired && !version.is_empty() => {
            Phase::Streaming { version: String::new() }
        }
        // An overloaded server asks for patience, and a connection breaks whenever a server restarts. Any other failure
        // may be one of streams alone: a role may allow lists but not watches.
        Phase::Streaming { .. } => {
            let patience = match kind {
                FailureKind::Outage(OutageReason::Overloaded) => FALLBACK_AFTER,
                FailureKind::Dropped => 2,
                _ => 1,
            };
            if failed_at_least(patience) { state.cached_list() } else { return }
        }
        Phase::Cached { .. } => {
            let broken = refused || matches!(kind, FailureKind::Dropped | FailureKind::Unanswered);
            let fall_back = kind == FailureKind::Expired || (broken && failed_at_least(FALLBACK_AFTER));
            if fall_back { Phase::Paged { continue_token: None } } else { return }
        }
        Phase::Paged { .. } if kind == FailureKind::Expired || refused => {
            Phase::Paged { continue_token: None }
        }
        Phase::Paged { .. } | Phase::Watching { .. } => return,
    };
    state.phase = next;
    state.method_failures = 0;
}

/// A stalled connection, or a server that ignored sendInitialEvents and has no changes to send: list at once. Only
/// after several such streams no more are requested, because a list costs the server more.
fn silent<R>(state: &mut State) -> Vec<Output<R>> {
    if state.is_watching() {
        return retry(state, Duration::ZERO);
    }
    state.silent_streams += 1;
    if state.silent_streams >= SILENT_STREAMS {
        return list_without_streaming(state);
    }
    state.phase = state.cached_list();
    vec![Output::Request(state.request())]
}

/// The server does not stream: list at once, and do not request a stream again.
fn list_without_streaming<R>(state: &mut State) -> Vec<Output<R>> {
    state.streaming = false;
    state.phase = state.cached_list();
    vec![Output::DisableStreaming, Output::Request(state.request())]
}

/// A version expires for instance when a server restarts, and then the consumer's objects may be outdated: list at
/// once. But a server on which every watch expires must not be listed in a loop.
fn expired<R>(state: &mut State) -> Vec<Output<R>> {
    state.phase = state.first_list();
    state.failures = state.expired;
    state.expired += 1;
    let mut outputs = Vec::new();
    if state.expired >= USELESS_RESPONSES {
        let (resource, times) = (state.resource, state.expired);
        let message = format!(
            "{resource}: the version of {times} watches in a row had expired: each begins with a new list"
        );
        outputs.extend(state.begin_outage(OutageReason::Refused, message, End::Watch));
    }
    if state.failures > 0 {
        outputs.push(Output::Wait { failures: state.failures, at_least: Duration::ZERO });
    }
    outputs.push(Output::Request(state.request()));
    outputs
}

/// Repeats the request after a wait.
fn retry<R>(state: &mut State, at_least: Duration) -> Vec<Output<R>> {
    state.failures += 1;
    if state.is_watching() {
        state.phase = Phase::Watching { received: false };
    }
    vec![Output::Wait { failures: state.failures, at_least }, Output::Request(state.request())]
}

/// Continues without an optional resource: sends an empty list, and requests the resource again after [`ABSENT_RETRY`].
/// ServiceCIDRs, for instance, are in `v1` since Kubernetes 1.33; older servers do not serve them, and older roles do
/// not allow them (RBAC is checked before the server checks whether it serves the resource).
fn continue_without<R>(state: &mut State, reason: OutageReason, failure: &Failure) -> Option<Vec<Output<R>>> {
    let refusal = match reason {
        OutageReason::NotServed => None,
        // The objects of a resource that was listed before are kept while the permission is missing.
        OutageReason::Forbidden if !state.listed => Some(failure.message.clone()),
        _ => return None,
    };
    let mut outputs = Vec::new();
    outputs.extend(state.end_outage(End::Watch));
    if !std::mem::replace(&mut state.absent, true) {
        outputs.push(Output::LogAbsent(refusal));
    }
    outputs.push(Output::Send(Notice::Event(Event::Init)));
    outputs.push(Output::Send(Notice::Event(Event::InitDone)));
    state.phase = state.first_list();
    outputs.push(Output::Wait { failures: 1, at_least: ABSENT_RETRY });
    outputs.push(Output::Request(state.request()));
    Some(outputs)
}

#[cfg(test)]
mod tests;
