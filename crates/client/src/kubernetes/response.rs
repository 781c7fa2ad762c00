//! The response to a request of a list and watch, as a sequence of inputs for [`super::step`].
//!
//! In: a [`Request`]. Out: [`Input`]s, of which the last is `PageEnd`, `Silent`, `Closed` or `Failed`. Dropping a
//! response closes it. Bytes are read only when the next input needs them.

use super::access::{Client, Encoding};
use super::failure::{Failure, RequestContext};
use super::object::{self, Frame};
use super::request::{Request, Selection};
use super::status::Status;
use super::step::{HEALTHY, Input};
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

/// Time-out of a request. The server's own is a minute.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server that streams initial objects is never silent for so long before their end; one that does not support it may
/// be.
const INITIAL_SILENCE: Duration = Duration::from_secs(15);

/// How much of the body of a refusal is read. A `Status` has less than a kilobyte.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// The longest `Retry-After` that is obeyed, in seconds.
const MAX_RETRY_AFTER: u64 = 120;

/// A response, or the failure of its request.
pub(super) struct Response<'a> {
    context: RequestContext<'a>,
    since: Instant,
    content: Content,
    /// Size of the last object on the wire.
    size: usize,
}

enum Content {
    /// The request failed. `None` after the failure has been reported.
    Failed(Option<Failure>),
    /// The head of the response was received and has not been reported yet.
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
        /// The initial objects are still being streamed, so [`INITIAL_SILENCE`] applies.
        initial: bool,
        /// When the watch has lasted; none once that was reported.
        lasts_at: Option<Instant>,
    },
}

impl<'a> Response<'a> {
    /// Sends the request and waits for the head of the response. `seconds` is the time-out of a watch.
    pub(super) async fn open(
        client: &'a Client,
        resource: ResourceType,
        selection: &Selection,
        request: &Request,
        seconds: u32,
    ) -> Self {
        let context = RequestContext { origin: &client.origin, resource, verb: request.verb() };
        let since = Instant::now();
        let content = match head(client, selection, request, seconds, context).await {
            Ok(content) => Content::Opened(Box::new(content)),
            Err(failure) => Content::Failed(Some(failure)),
        };
        Response { context, since, content, size: 0 }
    }

    /// Size on the wire of the object in the last input.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The next input. After a failure, `Closed`.
    pub(super) async fn next<R: Resource>(&mut self) -> Input<R> {
        let size = &mut self.size;
        let context = self.context;
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
                next_item(body, *format, list, context, size).await.map(Some)
            }
            Content::Watch { body, format, frames, until, initial, lasts_at } => {
                let limits = Limits { until: *until, initial: *initial, lasts_at: *lasts_at };
                let next = next_frame(body, *format, frames, context, size, limits).await;
                match next {
                    Ok(Some(Input::InitialEnd { .. })) => {
                        // The watch begins now.
                        *initial = false;
                        self.since = Instant::now();
                        *lasts_at = Some(self.since + HEALTHY);
                    }
                    Ok(Some(Input::Lasted)) => *lasts_at = None,
                    _ => {}
                }
                next
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
    context: RequestContext<'_>,
) -> Result<Content, Failure> {
    let mut http = http::Request::get(request.uri(context.resource, selection, seconds))
        .header(ACCEPT, accept(client.encoding, context.resource, request))
        .body(Full::default())
        .map_err(|error| Failure::malformed(context, &error))?;
    if matches!(request, Request::Page { continue_token: Some(_) }) {
        http.extensions_mut().insert(Unlimited);
    }
    let response = match client.transport.send(http, TIMEOUT).await {
        Ok(response) => response,
        Err(SendError::Credential(reason)) => return Err(Failure::no_credential(context, &reason)),
        Err(error @ SendError::TimedOut(_)) => return Err(Failure::unanswered(context, &error)),
        Err(error) => return Err(Failure::unreachable(context, &error)),
    };
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let format = Format::of(content_type.unwrap_or_default());
    if !response.status().is_success() {
        return Err(refusal(response, format, context).await);
    }
    let body = response.into_body();
    if !request.is_watch() {
        return Ok(Content::List { body, format, list: List::new(format) });
    }
    // The server ends the watch after `seconds`; this limit is for a server that does not.
    let until = Instant::now() + Duration::from_secs(u64::from(seconds)) + TIMEOUT;
    let initial = matches!(request, Request::Stream { .. });
    let lasts_at = Some(Instant::now() + HEALTHY);
    Ok(Content::Watch { body, format, frames: Frames::new(format), until, initial, lasts_at })
}

/// The formats to ask for, the best one first. A server that does not know `PartialObjectMetadata` sends whole objects;
/// one that does refuses it for a list, whose kind has another name.
fn accept(encoding: Encoding, resource: ResourceType, request: &Request) -> String {
    let protobuf = encoding == Encoding::Protobuf && !resource.json_only();
    let list = if request.is_watch() { "" } else { "List" };
    let mut formats: Vec<String> = Vec::new();
    for partial in [true, false].into_iter().filter(|partial| resource.metadata_only() || !partial) {
        let partial = match partial {
            true => format!(";as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1"),
            false => String::new(),
        };
        if protobuf {
            let stream = if request.is_watch() { ";stream=watch" } else { "" };
            formats.push(format!("application/vnd.kubernetes.protobuf{stream}{partial}"));
        }
        formats.push(format!("application/json{partial}"));
    }
    formats.join(", ")
}

async fn refusal(response: http::Response<Body>, format: Format, context: RequestContext<'_>) -> Failure {
    let (head, body) = response.into_parts();
    let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = match timeout(TIMEOUT, Limited::new(body, MAX_REFUSAL_BYTES).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) | Err(_) => Bytes::new(),
    };
    let mut failure = Failure::refused(context, &Status::read(head.status.as_u16(), format, &body));
    let after = after.map(Duration::from_secs).or(failure.retry_after);
    failure.retry_after = after.map(|after| after.min(Duration::from_secs(MAX_RETRY_AFTER)));
    failure
}

async fn next_item<R: Resource>(
    body: &mut Body,
    format: Format,
    list: &mut List,
    context: RequestContext<'_>,
    size: &mut usize,
) -> Result<Input<R>, Failure> {
    loop {
        if let Some(bytes) = list.next().map_err(|error| Failure::malformed(context, &error))? {
            *size = bytes.len();
            return Ok(Input::Item(object::item(format, &bytes)));
        }
        match timeout(TIMEOUT, chunk(body)).await {
            Ok(Ok(Some(bytes))) => list.push(&bytes),
            Ok(Ok(None)) => break,
            Ok(Err(error)) => return Err(Failure::dropped(context, &error)),
            Err(elapsed) => return Err(Failure::dropped(context, &elapsed)),
        }
    }
    let complete = std::mem::replace(list, List::new(format));
    complete.finish().map(Input::PageEnd).map_err(|error| Failure::malformed(context, &error))
}

/// How long to wait for the next frame of a watch.
#[derive(Clone, Copy)]
struct Limits {
    until: Instant,
    /// [`INITIAL_SILENCE`] applies between chunks.
    initial: bool,
    lasts_at: Option<Instant>,
}

impl Limits {
    /// When to stop waiting, and the input then; none for the end of the watch.
    fn next<R>(self) -> (Instant, Option<Input<R>>) {
        if self.initial {
            return (self.until.min(Instant::now() + INITIAL_SILENCE), Some(Input::Silent));
        }
        match self.lasts_at {
            Some(at) => (at, Some(Input::Lasted)),
            None => (self.until, None),
        }
    }
}

/// The next input, or `None` at the end of the watch.
async fn next_frame<R: Resource>(
    body: &mut Body,
    format: Format,
    frames: &mut Frames,
    context: RequestContext<'_>,
    size: &mut usize,
    limits: Limits,
) -> Result<Option<Input<R>>, Failure> {
    loop {
        if let Some(bytes) = frames.next().map_err(|error| Failure::malformed(context, &error))? {
            *size = bytes.len();
            match read_frame(format, bytes, context)? {
                Some(input) => return Ok(Some(input)),
                None => continue,
            }
        }
        let (end, input) = limits.next();
        match timeout_at(end, chunk(body)).await {
            Ok(Ok(Some(bytes))) => frames.push(&bytes),
            Ok(Ok(None)) => return Ok(None),
            Ok(Err(error)) => return Err(Failure::dropped(context, &error)),
            Err(_) => return Ok(input),
        }
    }
}

fn read_frame<R: Resource>(
    format: Format,
    bytes: Bytes,
    context: RequestContext<'_>,
) -> Result<Option<Input<R>>, Failure> {
    match object::frame(format, bytes).map_err(|error| Failure::malformed(context, &error))? {
        Frame::Change { version, change } => Ok(Some(Input::Change { version, change })),
        Frame::Bookmark { version, initial_end: true } => Ok(Some(Input::InitialEnd { version })),
        Frame::Bookmark { version, initial_end: false } => Ok(Some(Input::Bookmark { version })),
        Frame::Error(status) => Err(Failure::refused(context, &status)),
        Frame::Unknown(change) => {
            tracing::debug!(resource = %R::TYPE, change, "skipped an event of unknown type");
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
