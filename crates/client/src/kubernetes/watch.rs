//! The loop around [`super::step`]: does what it says.
//!
//! In: a [`Client`] and a [`Selection`]. Out: [`Notice`]s, for as long as someone takes them.

use super::access::Client;
use super::backoff;
use super::resource::{Request, Selection};
use super::response::Response;
use super::step::{Output, State, step};
use crate::Notice;
use portway_model::api::Kind;
use std::time::Duration;
use tokio::sync::mpsc::Sender;

/// Lists and watches until the receiving end of `notices` is dropped.
///
/// Sends `Init`, every object and `InitDone`, then what changes. After a failure it goes on from where it was, and
/// lists anew (`Init` again) only if the server has forgotten that place. A failure is a
/// [`Trouble`](crate::Trouble), never an end; the consumer keeps what it has. While `notices` is full nothing more is
/// read from the server.
pub async fn watch(client: Client, selection: Selection, notices: Sender<Notice>) {
    let (mut state, outputs) = State::begin(selection.kind);
    let mut next = perform(outputs, selection.kind, &notices).await;
    while let Ok(Some(Next { wait, request })) = next {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = notices.closed() => return,
        }
        tracing::debug!(kind = %selection.kind, ?request, ?wait, "asking");
        let seconds = backoff::watch_seconds(rand::random());
        let mut response = Response::open(&client, &selection, &request, seconds).await;
        next = loop {
            let input = tokio::select! {
                input = response.next() => input,
                () = notices.closed() => return,
            };
            let (stepped, outputs) = step(state, input);
            state = stepped;
            match perform(outputs, selection.kind, &notices).await {
                Ok(None) => {}
                next_or_closed => break next_or_closed,
            }
        };
        // The response ends here, before any wait, and its buffers with it.
    }
}

/// Nobody listens any more.
struct Closed;

/// What to ask for, and after how long.
struct Next {
    wait: Duration,
    request: Request,
}

/// Sends what is to be sent; what is to be asked for next, if anything, is left to the caller.
async fn perform(outputs: Vec<Output>, kind: Kind, notices: &Sender<Notice>) -> Result<Option<Next>, Closed> {
    let mut wait = Duration::ZERO;
    for output in outputs {
        match output {
            Output::Send(notice) => notices.send(notice).await.map_err(|_| Closed)?,
            Output::NoteAbsent => {
                tracing::info!(%kind, "the API server does not have this kind; going on without it");
            }
            Output::Wait { failures, at_least } => {
                wait = backoff::wait(failures, rand::random()).max(at_least);
            }
            Output::Ask(request) => return Ok(Some(Next { wait, request })),
        }
    }
    Ok(None)
}
