//! A request's response as a stream of inputs for [`super::step`].
//!
//! In: a [`Request`]. Out: [`Input`]s, of which the last is `PageEnd`, `Closed` or `Failed`. Dropping a response closes
//! it; nothing is read ahead.

use super::access::{Client, Encoding};
use super::advice::{Asked, Failure};
use super::object::{self, Frame};
use super::resource::{Request, Selection};
use super::status::Status;
use super::step::Input;
use super::throttle::Unlimited;
use super::transport::SendError;
use super::wire::{Format, Frames, List};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming as Body;
use portway_model::api::Kind;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// The server's own time-out for a request is a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a refusal that are read. A `Status` has less than a kilobyte.
const REFUSAL: usize = 64 * 1024;

/// The longest wait a server may ask for.
const LONGEST_WAIT: u64 = 120;

/// A response, or what became of it.
pub(super) struct Response<'a> {
    asked: Asked<'a>,
    since: Instant,
    content: Content,
}

enum Content {
    /// It failed before it began.
    Failed(Option<Failure>),
    /// The head is there and has not been reported yet.
    Opened(Box<Content>),
    List {
        body: Body,
        format: Format,
        list: List,
    },
    Watch {
        body: Body,
        format: Format,
        frames: Frames,
        until: Instant,
    },
}

impl<'a> Response<'a> {
    /// Asks, and waits for the head of the response. `seconds` is how long a watch may last.
    pub(super) async fn open(
        client: &'a Client,
        selection: &Selection,
        request: &Request,
        seconds: u32,
    ) -> Self {
        let asked = Asked { origin: &client.origin, kind: selection.kind, verb: request.verb() };
        let since = Instant::now();
        let content = match head(client, selection, request, seconds, asked).await {
            Ok(content) => Content::Opened(Box::new(content)),
            Err(failure) => Content::Failed(Some(failure)),
        };
        Response { asked, since, content }
    }

    /// What happens next. After the last input it says that the response is closed.
    pub(super) async fn next(&mut self) -> Input {
        let asked = self.asked;
        let next = match &mut self.content {
            Content::Failed(failure) => match failure.take() {
                Some(failure) => Err(failure),
                None => Ok(None),
            },
            Content::Opened(content) => {
                self.content = std::mem::replace(content, Content::Failed(None));
                Ok(Some(Input::Opened))
            }
            Content::List { body, format, list } => next_item(body, *format, list, asked).await.map(Some),
            Content::Watch { body, format, frames, until } => {
                let soon = *until;
                timeout_at(soon, next_frame(body, *format, frames, asked)).await.unwrap_or(Ok(None))
            }
        };
        let lasted = self.since.elapsed();
        match next {
            Ok(Some(input)) => input,
            Ok(None) => Input::Closed { lasted },
            Err(failure) => Input::Failed { failure, lasted },
        }
    }
}

async fn head(
    client: &Client,
    selection: &Selection,
    request: &Request,
    seconds: u32,
    asked: Asked<'_>,
) -> Result<Content, Failure> {
    let mut http = http::Request::get(request.uri(selection, seconds))
        .header(ACCEPT, accept(client.encoding, request))
        .body(Full::default())
        .map_err(|error| Failure::garbled(asked, &error))?;
    if matches!(request, Request::List { continue_token: Some(_) }) {
        http.extensions_mut().insert(Unlimited);
    }
    let response = match client.transport.send(http, PATIENCE).await {
        Ok(response) => response,
        Err(SendError::Credential(reason)) => return Err(Failure::no_credential(asked, &reason)),
        Err(error) => return Err(Failure::unreachable(asked, &error)),
    };
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let format = Format::of(content_type.unwrap_or_default());
    if !response.status().is_success() {
        return Err(refusal(response, format, asked).await);
    }
    let body = response.into_body();
    Ok(match request {
        Request::List { .. } => Content::List { body, format, list: List::new(format) },
        Request::Watch { .. } => {
            // The server ends the watch itself; this is for one that forgets to.
            let until = Instant::now() + Duration::from_secs(u64::from(seconds)) + PATIENCE;
            Content::Watch { body, format, frames: Frames::new(format), until }
        }
    })
}

fn accept(encoding: Encoding, request: &Request) -> &'static str {
    match (encoding, request) {
        (Encoding::Json, _) => "application/json",
        (Encoding::Protobuf, Request::List { .. }) => "application/vnd.kubernetes.protobuf, application/json",
        (Encoding::Protobuf, Request::Watch { .. }) => {
            "application/vnd.kubernetes.protobuf;stream=watch, application/json"
        }
    }
}

async fn refusal(response: http::Response<Body>, format: Format, asked: Asked<'_>) -> Failure {
    let (head, body) = response.into_parts();
    let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = match timeout(PATIENCE, Limited::new(body, REFUSAL).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) | Err(_) => Bytes::new(),
    };
    let mut failure = Failure::refused(asked, &Status::read(head.status.as_u16(), format, &body));
    let after = after.map(Duration::from_secs).or(failure.retry_after);
    failure.retry_after = after.map(|after| after.min(Duration::from_secs(LONGEST_WAIT)));
    failure
}

async fn next_item(
    body: &mut Body,
    format: Format,
    list: &mut List,
    asked: Asked<'_>,
) -> Result<Input, Failure> {
    loop {
        if let Some(bytes) = list.next().map_err(|error| Failure::garbled(asked, &error))? {
            return Ok(Input::Item(object::item(asked.kind, format, &bytes).map(Box::new)));
        }
        match timeout(PATIENCE, chunk(body)).await {
            Ok(Ok(Some(bytes))) => list.push(&bytes),
            Ok(Ok(None)) => break,
            Ok(Err(error)) => return Err(Failure::dropped(asked, &error)),
            Err(elapsed) => return Err(Failure::dropped(asked, &elapsed)),
        }
    }
    let complete = std::mem::replace(list, List::new(format));
    complete.finish().map(Input::PageEnd).map_err(|error| Failure::garbled(asked, &error))
}

/// The next input, or `None` at the end of the watch.
async fn next_frame(
    body: &mut Body,
    format: Format,
    frames: &mut Frames,
    asked: Asked<'_>,
) -> Result<Option<Input>, Failure> {
    loop {
        if let Some(bytes) = frames.next().map_err(|error| Failure::garbled(asked, &error))? {
            match read_frame(asked.kind, format, bytes, asked)? {
                Some(input) => return Ok(Some(input)),
                None => continue,
            }
        }
        match chunk(body).await {
            Ok(Some(bytes)) => frames.push(&bytes),
            Ok(None) => return Ok(None),
            Err(error) => return Err(Failure::dropped(asked, &error)),
        }
    }
}

fn read_frame(kind: Kind, format: Format, bytes: Bytes, asked: Asked<'_>) -> Result<Option<Input>, Failure> {
    match object::frame(kind, format, bytes).map_err(|error| Failure::garbled(asked, &error))? {
        Frame::Change { version, change } => Ok(Some(Input::Change { version, change })),
        Frame::Bookmark { version } => Ok(Some(Input::Bookmark { version })),
        Frame::Error(status) => Err(Failure::refused(asked, &status)),
        Frame::Unknown(change) => {
            tracing::debug!(%kind, change, "unknown event type skipped");
            Ok(None)
        }
    }
}

async fn chunk(body: &mut Body) -> Result<Option<Bytes>, hyper::Error> {
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame?.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}
