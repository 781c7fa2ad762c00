//! Decodes the objects of a response.
//!
//! In: the bytes of an item of a list or of a frame of a watch. Out: an object of the requested resource, or a
//! [`Rejected`] with as much of its name as could be decoded. Pure.

use super::status::Status;
use super::wire::{Format, MAGIC, Malformed};
use crate::Rejected;
use bytes::Bytes;
use portway_api::{Event, ObjectMeta, Resource, ResourceType};
use prost::Message;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The annotation of the bookmark that ends the initial events of a stream (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// `runtime.Unknown`, the envelope of every object in protobuf.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) raw: Bytes,
}

/// `meta/v1 WatchEvent`.
#[derive(Clone, PartialEq, Message)]
struct WatchEvent {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

/// `runtime.RawExtension`.
#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

#[derive(Deserialize)]
struct JsonWatchEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// An object of which only the metadata is decoded.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct MetadataOnly {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

/// A decoded frame of a watch.
#[derive(Debug, PartialEq)]
pub(super) enum Frame<R> {
    /// An object changed. `version` is the version to resume from; empty if it could not be decoded.
    Change { version: String, change: Result<Event<R>, Box<Rejected>> },
    /// All changes up to this version have been sent. `initial_end`: so have all objects that existed when the watch
    /// began.
    Bookmark { version: String, initial_end: bool },
    /// The server ends this watch.
    Error(Status),
    /// An event type that this client does not know.
    Unknown(String),
}

/// Removes the envelope of an object in protobuf.
pub(super) fn unwrap(bytes: &[u8]) -> Option<Unknown> {
    Unknown::decode(bytes.strip_prefix(MAGIC)?).ok()
}

/// Decodes an item of a list.
pub(super) fn item<R: Resource>(format: Format, bytes: &Bytes) -> Result<R, Box<Rejected>> {
    let reject = |reason: String| reject(R::TYPE, format, bytes, reason);
    let object = match format {
        Format::Protobuf => R::from_protobuf(bytes.clone()).map_err(|error| reject(error.to_string()))?,
        Format::Json => R::from_json(bytes).map_err(|error| reject(error.to_string()))?,
    };
    match object.metadata() {
        Some(metadata) if !metadata.name.is_empty() => Ok(object),
        _ => Err(reject("it has no metadata.name".into())),
    }
}

/// Decodes a frame of a watch.
pub(super) fn frame<R: Resource>(format: Format, bytes: Bytes) -> Result<Frame<R>, Malformed> {
    let (change, bytes) = match format {
        Format::Protobuf => protobuf_event(bytes)?,
        Format::Json => {
            let event: JsonWatchEvent<'_> =
                serde_json::from_slice(&bytes).map_err(|_| Malformed("an event of a watch is not JSON"))?;
            (event.kind.to_owned(), bytes.slice_ref(event.object.get().as_bytes()))
        }
    };
    Ok(match change.as_str() {
        "ADDED" | "MODIFIED" => match item::<R>(format, &bytes) {
            Ok(object) => {
                let version = object.metadata().map(|m| m.resource_version.clone()).unwrap_or_default();
                Frame::Change { version, change: Ok(Event::Apply(object)) }
            }
            Err(rejected) => {
                Frame::Change { version: metadata_of(format, &bytes).resource_version, change: Err(rejected) }
            }
        },
        "DELETED" => {
            let metadata = metadata_of(format, &bytes);
            let change = if metadata.name.is_empty() {
                Err(reject(R::TYPE, format, &bytes, "a deleted object has no name".into()))
            } else {
                Ok(Event::Delete { namespace: metadata.namespace, name: metadata.name })
            };
            Frame::Change { version: metadata.resource_version, change }
        }
        "BOOKMARK" => {
            let metadata = metadata_of(format, &bytes);
            let initial_end =
                metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true");
            Frame::Bookmark { version: metadata.resource_version, initial_end }
        }
        "ERROR" => Frame::Error(match format {
            Format::Protobuf => Status::decode(bytes).unwrap_or_default(),
            Format::Json => serde_json::from_slice(&bytes).unwrap_or_default(),
        }),
        _ => Frame::Unknown(change),
    })
}

/// The frame itself may have an envelope; the object in it always has one.
fn protobuf_event(bytes: Bytes) -> Result<(String, Bytes), Malformed> {
    let malformed = Malformed("an event of a watch is not protobuf");
    let bytes = if bytes.starts_with(MAGIC) {
        unwrap(&bytes).ok_or(Malformed("an event of a watch has no envelope"))?.raw
    } else {
        bytes
    };
    let event = WatchEvent::decode(bytes).map_err(|_| malformed)?;
    let raw = event.object.unwrap_or_default().raw;
    let object = unwrap(&raw).ok_or(Malformed("the object of an event has no envelope"))?;
    Ok((event.kind, object.raw))
}

fn metadata_of(format: Format, bytes: &Bytes) -> ObjectMeta {
    let object = match format {
        Format::Protobuf => MetadataOnly::decode(bytes.clone()).ok(),
        Format::Json => serde_json::from_slice::<MetadataOnly>(bytes).ok(),
    };
    object.and_then(|object| object.metadata).unwrap_or_default()
}

fn reject(resource: ResourceType, format: Format, bytes: &Bytes, reason: String) -> Box<Rejected> {
    let ObjectMeta { namespace, name, uid, .. } = metadata_of(format, bytes);
    Box::new(Rejected { resource: Some(resource), namespace, name, uid, reason, ..Rejected::default() })
}

#[cfg(test)]
mod tests;
