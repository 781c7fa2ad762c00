//! The loop around [`super::step`]: sends its requests and performs its outputs.
//!
//! In: a [`Client`] and a [`Selection`]. Out: [`Notice`]s, until the consumer drops the source.

use super::access::Client;
use super::backoff;
use super::request::{Request, Selection};
use super::response::Response;
use super::step::{Input, Output, State, step};
use crate::source::{Notice, Sink};
use portway_api::{Event, Resource, ResourceType};
use std::pin::pin;
use std::time::Duration;

/// Lists and watches objects of `R` until the source is dropped.
///
/// Sends `Init`, every object and `InitDone`, then each change. After a failure the watch resumes from the last
/// version, and lists again (with another `Init`) only if that version has expired or is refused. A failure is reported
/// as an [`Outage`](crate::Outage) and does not end the watch; the consumer keeps its objects. While the channel is
/// full, nothing is read from the server.
pub async fn watch<R, E>(client: Client, mut selection: Selection, mut sink: Sink<E>)
where
    R: Resource,
    E: From<Event<R>> + Send,
{
    let (state, request) = State::begin(R::TYPE, selection.optional, client.can_stream());
    let mut state = state.with_optional_fields(selection.fields_are_optional);
    let mut next = Some(Next { wait: Duration::ZERO, request });
    while let Some(Next { wait, request }) = next.take() {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = sink.flush_and_wait() => return,
        }
        tracing::debug!(resource = %R::TYPE, ?request, ?wait, "sending request");
        let seconds = backoff::watch_seconds(rand::random());
        let mut response = tokio::select! {
            response = Response::open(&client, R::TYPE, &selection, &request, seconds) => response,
            _ = sink.flush_and_wait() => return,
        };
        while next.is_none() {
            let Some(input) = next_input::<R, E>(&mut response, &mut sink).await else { return };
            let (stepped, outputs) = step(state, input);
            state = stepped;
            if outputs.contains(&Output::DropFieldSelector) {
                let fields = selection.field_selector.take().unwrap_or_default();
                tracing::info!(resource = %R::TYPE, fields, "the API server does not support this field selector; listing without it");
            }
            let mut full = false;
            next =
                perform(outputs, R::TYPE, &client, |notice| full |= push(&mut sink, notice, response.size()));
            if full && sink.flush().await.is_err() {
                return;
            }
        }
        // The response and its buffers are dropped here, before any wait.
    }
}

/// The next input. Sends the collected notices before it waits for more bytes. `None` if the consumer has dropped the
/// source.
async fn next_input<R: Resource, E>(response: &mut Response<'_>, sink: &mut Sink<E>) -> Option<Input<R>> {
    let mut next = pin!(response.next());
    tokio::select! {
        biased;
        input = &mut next => Some(input),
        _ = sink.flush_and_wait() => None,
    }
}

fn push<R, E: From<Event<R>>>(sink: &mut Sink<E>, notice: Notice<Event<R>>, bytes: usize) -> bool {
    let notice = match notice {
        Notice::Event(event) => Notice::Event(event.into()),
        Notice::Rejected(rejected) => Notice::Rejected(rejected),
        Notice::Outage(outage) => Notice::Outage(outage),
        Notice::Recovered(resource) => Notice::Recovered(resource),
    };
    sink.push(notice, bytes)
}

/// The next request, and how long to wait before it.
struct Next {
    wait: Duration,
    request: Request,
}

/// Performs the outputs. Returns the next request, if there is one.
fn perform<R>(
    outputs: Vec<Output<R>>,
    resource: ResourceType,
    client: &Client,
    mut push: impl FnMut(Notice<Event<R>>),
) -> Option<Next> {
    let mut wait = Duration::ZERO;
    for output in outputs {
        match output {
            Output::Send(notice) => push(notice),
            // The caller has dropped it.
            Output::DropFieldSelector => {}
            Output::LogAbsent(None) => {
                tracing::info!(%resource, "the API server does not serve this resource; continuing without it");
            }
            Output::LogAbsent(Some(refusal)) => {
                tracing::warn!(%resource, "{refusal}; continuing without this resource");
            }
            Output::LogNoStream(error) => {
                tracing::debug!(%resource, error, "the API server did not stream a list; requesting one");
            }
            Output::DisableStreaming => {
                if client.can_stream() {
                    tracing::debug!(server = client.server(), "the API server does not stream initial lists");
                }
                client.disable_streaming();
            }
            Output::Wait { failures, at_least } => {
                wait = backoff::wait(failures, rand::random()).max(at_least);
            }
            Output::Request(request) => return Some(Next { wait, request }),
        }
    }
    None
}
