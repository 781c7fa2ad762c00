//! The behaviour of a list and watch, as one function.
//!
//! In: a state and what just happened. Out: the next state and what to do. No I/O, no clock, no randomness: waits
//! are named by how often it failed, and the time a response lasted is handed in. The model is kube-runtime's
//! watcher and client-go's reflector.
//!
//! ```text
//!            page, continue ──┐            bookmark, change ──┐
//!                  ┌──────────▼┐  last page   ┌───────────────▼┐
//!        start ───▶│  Listing  ├─────────────▶│    Watching    │──┐ closed, failed:
//!                  └▲─────────┬┘              └┬───────────────▲┘  │ again from the last version
//!                   └─────────┘ failed: the    │               └───┘
//!                   ▲           same page      │
//!                   └──────────────────────────┘ expired
//! ```
//!
//! What always holds: every input that ends a response ([`Input::PageEnd`], [`Input::Closed`], [`Input::Failed`])
//! asks for exactly one next, and no other input asks for any. `InitDone` follows an `Init` of the same list. No
//! failure removes anything.

use super::advice::{Failure, What};
use super::resource::Request;
use super::wire::ListMeta;
use crate::{Cause, Notice, Rejected, Trouble};
use portway_model::api::{Event, Kind, Object};
use std::time::Duration;

/// A response that lasted this long counts as a success, whatever came of it.
const HEALTHY: Duration = Duration::from_secs(5);

/// When to look again for a kind the server does not have.
const ABSENT: Duration = Duration::from_secs(600);

/// Refusals in a row after which the version watched from is suspected.
const SUSPICIOUS: u32 = 3;

/// Where a list and watch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    kind: Kind,
    phase: Phase,
    /// Failures in a row.
    failures: u32,
    /// Watches in a row that were told that their version has expired and nothing else.
    expired: u32,
    /// The trouble last reported and not yet over.
    trouble: Option<String>,
    /// A list was completed once.
    listed: bool,
    /// The server's lack of this kind has been noted.
    absent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for this page.
    Listing { continue_token: Option<String> },
    /// Waiting for what happens after this version; `heard` once this response said anything.
    Watching { version: String, heard: bool },
}

/// What happened.
#[derive(Debug, PartialEq)]
pub(super) enum Input {
    /// The server accepted the request.
    Opened,
    /// An item of a list.
    Item(Result<Box<Object>, Box<Rejected>>),
    /// A page is complete.
    PageEnd(ListMeta),
    /// Something changed; the version is empty if it could not be read.
    Change { version: String, change: Result<Event, Box<Rejected>> },
    /// Nothing changed up to this version.
    Bookmark { version: String },
    /// The server ended the watch in good order.
    Closed { lasted: Duration },
    /// The request failed, or the response broke off, or it was an error.
    Failed { failure: Failure, lasted: Duration },
}

/// What to do.
#[derive(Debug, PartialEq)]
pub(super) enum Output {
    /// Tell the consumer.
    Send(Notice),
    /// Note that the server does not have this kind. Comes once.
    NoteAbsent,
    /// Wait as long as so many failures in a row ask for, and at least so long.
    Wait { failures: u32, at_least: Duration },
    /// Drop the response, if there is one, and ask for this.
    Ask(Request),
}

impl State {
    /// The beginning: a list.
    pub(super) fn begin(kind: Kind) -> (State, Vec<Output>) {
        let phase = Phase::Listing { continue_token: None };
        let state =
            State { kind, phase, failures: 0, expired: 0, trouble: None, listed: false, absent: false };
        let outputs = vec![Output::Ask(state.request())];
        (state, outputs)
    }

    fn request(&self) -> Request {
        match &self.phase {
            Phase::Listing { continue_token } => Request::List { continue_token: continue_token.clone() },
            Phase::Watching { version, .. } => Request::Watch { version: version.clone() },
        }
    }

    /// Whether the response that has just ended did any good.
    fn was_healthy(&self, lasted: Duration) -> bool {
        lasted >= HEALTHY || matches!(self.phase, Phase::Watching { heard: true, .. })
    }
}

/// Decides.
pub(super) fn step(mut state: State, input: Input) -> (State, Vec<Output>) {
    let outputs = match input {
        Input::Opened => opened(&mut state),
        Input::Item(item) => vec![Output::Send(notice(item.map(Event::Apply)))],
        Input::PageEnd(meta) => page_end(&mut state, meta),
        Input::Change { version, change } => {
            heard(&mut state, version);
            vec![Output::Send(notice(change))]
        }
        Input::Bookmark { version } => {
            heard(&mut state, version);
            Vec::new()
        }
        Input::Closed { lasted } => closed(&mut state, lasted),
        Input::Failed { failure, lasted } => failed(&mut state, failure, lasted),
    };
    (state, outputs)
}

fn notice(change: Result<Event, Box<Rejected>>) -> Notice {
    match change {
        Ok(event) => Notice::Event(event),
        Err(rejected) => Notice::Rejected(*rejected),
    }
}

/// `Init` waits for the server's answer, so that a consumer does not sit in a list that cannot begin.
fn opened(state: &mut State) -> Vec<Output> {
    let mut outputs = Vec::new();
    if state.trouble.take().is_some() {
        outputs.push(Output::Send(Notice::Recovered(Some(state.kind))));
    }
    if state.phase == (Phase::Listing { continue_token: None }) {
        outputs.push(Output::Send(Notice::Event(Event::Init(state.kind))));
    }
    outputs
}

fn page_end(state: &mut State, meta: ListMeta) -> Vec<Output> {
    let mut outputs = Vec::new();
    if meta.continue_token.is_empty() {
        state.phase = Phase::Watching { version: meta.resource_version, heard: false };
        state.listed = true;
        outputs.push(Output::Send(Notice::Event(Event::InitDone(state.kind))));
    } else {
        state.phase = Phase::Listing { continue_token: Some(meta.continue_token) };
    }
    outputs.push(Output::Ask(state.request()));
    outputs
}

fn heard(state: &mut State, new: String) {
    state.failures = 0;
    state.expired = 0;
    if let Phase::Watching { version, heard } = &mut state.phase {
        *heard = true;
        if !new.is_empty() {
            *version = new;
        }
    }
}

/// A server that closes at once without a word must not be asked again at once.
fn closed(state: &mut State, lasted: Duration) -> Vec<Output> {
    if state.was_healthy(lasted) {
        (state.failures, state.expired) = (0, 0);
        unhear(state);
        return vec![Output::Ask(state.request())];
    }
    again(state, Duration::ZERO)
}

fn failed(state: &mut State, failure: Failure, lasted: Duration) -> Vec<Output> {
    if state.was_healthy(lasted) {
        (state.failures, state.expired) = (0, 0);
    }
    let watching = matches!(state.phase, Phase::Watching { .. });
    match failure.what {
        What::Expired if watching => return expired(state),
        What::Expired => state.phase = Phase::Listing { continue_token: None },
        What::Trouble(Cause::NotServed) if watching => state.phase = Phase::Listing { continue_token: None },
        // A page's token is refused as such, a watch's version only by and by.
        What::Trouble(Cause::Refused) if !watching || state.failures >= SUSPICIOUS => {
            state.phase = Phase::Listing { continue_token: None };
        }
        What::Trouble(cause) if is_optional(state.kind) && !watching => {
            if let Some(outputs) = without(state, cause, &failure) {
                return outputs;
            }
        }
        What::Trouble(_) | What::Dropped => {}
    }
    let mut outputs = report(state, &failure);
    outputs.extend(again(state, failure.retry_after.unwrap_or_default()));
    outputs
}

/// A version expires when a server restarts, and then what we know is old: list at once. But a server that expires every
/// watch must not be listed from in a loop.
fn expired(state: &mut State) -> Vec<Output> {
    state.phase = Phase::Listing { continue_token: None };
    state.failures = state.expired;
    state.expired += 1;
    match state.failures {
        0 => vec![Output::Ask(state.request())],
        failures => vec![Output::Wait { failures, at_least: Duration::ZERO }, Output::Ask(state.request())],
    }
}

/// The same request again, after a wait.
fn again(state: &mut State, at_least: Duration) -> Vec<Output> {
    state.failures += 1;
    unhear(state);
    vec![Output::Wait { failures: state.failures, at_least }, Output::Ask(state.request())]
}

fn unhear(state: &mut State) {
    if let Phase::Watching { heard, .. } = &mut state.phase {
        *heard = false;
    }
}

/// Trouble is told when it is new. A response that broke off is told only if the next one does not do better.
fn report(state: &mut State, failure: &Failure) -> Vec<Output> {
    let cause = match failure.what {
        What::Trouble(cause) => cause,
        What::Dropped if state.failures > 0 => Cause::Unreachable,
        What::Dropped | What::Expired => return Vec::new(),
    };
    if state.trouble.as_ref() == Some(&failure.message) {
        return Vec::new();
    }
    state.trouble = Some(failure.message.clone());
    let trouble = Trouble { kind: Some(state.kind), cause, message: failure.message.clone() };
    vec![Output::Send(Notice::Trouble(trouble))]
}

/// ServiceCIDRs came with Kubernetes 1.33; older servers do not have them, and older roles do not allow them (RBAC
/// answers before anyone looks whether there is such a kind).
fn is_optional(kind: Kind) -> bool {
    kind == Kind::ServiceCidr
}

/// Goes on without an optional kind: an empty list, and a rare look whether it has come.
fn without(state: &mut State, cause: Cause, failure: &Failure) -> Option<Vec<Output>> {
    let mut outputs = Vec::new();
    match cause {
        Cause::NotServed if !state.absent => {
            state.absent = true;
            outputs.push(Output::NoteAbsent);
        }
        Cause::NotServed => {}
        // What was listed once stays while the right to list it is gone.
        Cause::Forbidden if !state.listed => outputs.extend(report(state, failure)),
        _ => return None,
    }
    outputs.push(Output::Send(Notice::Event(Event::Init(state.kind))));
    outputs.push(Output::Send(Notice::Event(Event::InitDone(state.kind))));
    state.phase = Phase::Listing { continue_token: None };
    outputs.push(Output::Wait { failures: 1, at_least: ABSENT });
    outputs.push(Output::Ask(state.request()));
    Some(outputs)
}

#[cfg(test)]
mod tests;
