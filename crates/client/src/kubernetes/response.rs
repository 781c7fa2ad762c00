//! A request's response as a stream of inputs for [`super::step`].
//!
//! In: a [`Request`]. Out: [`Input`]s, of which the last is `PageEnd`, `Closed` or `Failed`. Dropping a response closes
//! it; nothing is read ahead.

use super::access::{Client, Encoding};
use super::failure::{Asked, Failure};
use super::object::{self, Frame};
use super::request::{Request, Selection};
use super::status::Status;
use super::step::Input;
use super::throttle::Unlimited;
use super::transport::SendError;
use super::wire::{Format, Frames, List};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming as Body;
use portway_api::{Resource, ResourceType};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// The server's own time-out for a request is a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that streams initial objects is never silent for so long while it does; one that does not know how to is.
const INITIAL_SILENCE: Duration = Duration::from_secs(15);

/// Bytes of a refusal that are read. A `Status` has less than a kilobyte.
const REFUSAL: usize = 64 * 1024;

/// The longest wait a server may ask for.
const LONGEST_WAIT: u64 = 120;

/// A response, or the failure in its place.
pub(super) struct Response<'a> {
    asked: Asked<'a>,
    since: Instant,
    content: Content,
    /// Bytes of the last object.
    size: usize,
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
        /// The initial objects are still being streamed: silence is suspicious.
        initial: bool,
    },
}

impl<'a> Response<'a> {
    /// Asks, and waits for the head of the response. `seconds` is how long a watch may last.
    pub(super) async fn open(
        client: &'a Client,
        resource: ResourceType,
        selection: &Selection,
        request: &Request,
        seconds: u32,
    ) -> Self {
        let asked = Asked { origin: &client.origin, resource, verb: request.verb() };
        let since = Instant::now();
        let content = match head(client, selection, request, seconds, asked).await {
            Ok(content) => Content::Opened(Box::new(content)),
            Err(failure) => Content::Failed(Some(failure)),
        };
        Response { asked, since, content, size: 0 }
    }

    /// Bytes on the wire of the object of the last input.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The next input. After the last one it says that the response is closed.
    pub(super) async fn next<R: Resource>(&mut self) -> Input<R> {
        let size = &mut self.size;
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
            Content::List { body, format, list } => {
                next_item(body, *format, list, asked, size).await.map(Some)
            }
            Content::Watch { body, format, frames, until, initial } => {
                let (silence, last) = (Instant::now() + INITIAL_SILENCE, *until);
                let end = if *initial { silence.min(last) } else { last };
                let next = timeout_at(end, next_frame(body, *format, frames, asked, size)).await;
                match next {
                    Ok(Ok(Some(Input::InitialEnd { version }))) => {
                        *initial = false;
                        Ok(Some(Input::InitialEnd { version }))
                    }
                    Ok(next) => next,
                    Err(_) if *initial => Ok(Some(Input::Silent)),
                    Err(_) => Ok(None),
                }
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
    let mut http = http::Request::get(request.uri(asked.resource, selection, seconds))
        .header(ACCEPT, accept(client.encoding, request))
        .body(Full::default())
        .map_err(|error| Failure::garbled(asked, &error))?;
    if matches!(request, Request::Page { continue_token: Some(_) }) {
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
    if !request.is_watch() {
        return Ok(Content::List { body, format, list: List::new(format) });
    }
    // The server ends the watch itself; this is for one that forgets to.
    let until = Instant::now() + Duration::from_secs(u64::from(seconds)) + PATIENCE;
    let initial = matches!(request, Request::Stream { .. });
    Ok(Content::Watch { body, format, frames: Frames::new(format), until, initial })
}

fn accept(encoding: Encoding, request: &Request) -> &'static str {
    match (encoding, request.is_watch()) {
        (Encoding::Json, _) => "application/json",
        (Encoding::Protobuf, false) => "application/vnd.kubernetes.protobuf, application/json",
        (Encoding::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch, application/json",
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

async fn next_item<R: Resource>(
    body: &mut Body,
    format: Format,
    list: &mut List,
    asked: Asked<'_>,
    size: &mut usize,
) -> Result<Input<R>, Failure> {
    loop {
        if let Some(bytes) = list.next().map_err(|error| Failure::garbled(asked, &error))? {
            *size = bytes.len();
            return Ok(Input::Item(object::item(format, &bytes)));
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
async fn next_frame<R: Resource>(
    body: &mut Body,
    format: Format,
    frames: &mut Frames,
    asked: Asked<'_>,
    size: &mut usize,
) -> Result<Option<Input<R>>, Failure> {
    loop {
        if let Some(bytes) = frames.next().map_err(|error| Failure::garbled(asked, &error))? {
            *size = bytes.len();
            match read_frame(format, bytes, asked)? {
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

fn read_frame<R: Resource>(
    format: Format,
    bytes: Bytes,
    asked: Asked<'_>,
) -> Result<Option<Input<R>>, Failure> {
    match object::frame(format, bytes).map_err(|error| Failure::garbled(asked, &error))? {
        Frame::Change { version, change } => Ok(Some(Input::Change { version, change })),
        Frame::Bookmark { version, initial_end: true } => Ok(Some(Input::InitialEnd { version })),
        Frame::Bookmark { version, initial_end: false } => Ok(Some(Input::Bookmark { version })),
        Frame::Error(status) => Err(Failure::refused(asked, &status)),
        Frame::Unknown(change) => {
            tracing::debug!(resource = %R::TYPE, change, "unknown event type skipped");
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
