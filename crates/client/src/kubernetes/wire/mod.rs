//! Bytes of a response, in whatever chunks they arrive, to its parts.
//!
//! In: chunks. Out: the items of a list one by one and then its metadata, or the frames of a watch. What is held is
//! never more than one item and one chunk, so that a list costs the same memory at ten objects and at a hundred
//! thousand, and also when a server answers with everything at once. No I/O, and no objects yet: see
//! [`super::object`].

mod json;
mod protobuf;

use bytes::Bytes;
use prost::Message;
use serde::Deserialize;

/// The largest item or frame taken. etcd stores no object above 1.5 MB; this is only a bound on damage.
const LARGEST: usize = 16 << 20;

/// What every object and list in protobuf begins with.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// The two formats an API server answers in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Protobuf,
    Json,
}

impl Format {
    /// By the `Content-Type` of the response: anything that is not protobuf is tried as JSON.
    pub(super) fn of(content_type: &str) -> Self {
        match content_type.trim_start().starts_with("application/vnd.kubernetes.protobuf") {
            true => Format::Protobuf,
            false => Format::Json,
        }
    }
}

/// Bytes that are not what they should be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response is not understood: {0}")]
pub(super) struct Garbled(pub(super) &'static str);

/// `metadata` of a list.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMeta {
    /// Version to watch from.
    #[prost(string, tag = "2")]
    pub(super) resource_version: String,
    /// Leads to the next page; empty on the last.
    #[prost(string, tag = "3")]
    #[serde(rename = "continue")]
    pub(super) continue_token: String,
}

/// Takes a list apart.
#[derive(Debug)]
pub(super) enum List {
    Protobuf(protobuf::List),
    Json(json::List),
}

impl List {
    pub(super) fn new(format: Format) -> Self {
        match format {
            Format::Protobuf => List::Protobuf(protobuf::List::default()),
            Format::Json => List::Json(json::List::default()),
        }
    }

    /// Adds a chunk.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        match self {
            List::Protobuf(list) => list.push(chunk),
            List::Json(list) => list.push(chunk),
        }
    }

    /// The next item, or `None` if it takes another chunk.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Garbled> {
        match self {
            List::Protobuf(list) => list.next(),
            List::Json(list) => list.next(),
        }
    }

    /// The list's metadata; an error if the list is not complete.
    pub(super) fn finish(self) -> Result<ListMeta, Garbled> {
        match self {
            List::Protobuf(list) => list.finish(),
            List::Json(list) => list.finish(),
        }
    }
}

/// Takes the stream of a watch apart.
#[derive(Debug)]
pub(super) enum Frames {
    Protobuf(protobuf::Frames),
    Json(json::Frames),
}

impl Frames {
    pub(super) fn new(format: Format) -> Self {
        match format {
            Format::Protobuf => Frames::Protobuf(protobuf::Frames::default()),
            Format::Json => Frames::Json(json::Frames::default()),
        }
    }

    /// Adds a chunk.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        match self {
            Frames::Protobuf(frames) => frames.push(chunk),
            Frames::Json(frames) => frames.push(chunk),
        }
    }

    /// The next frame, or `None` if it takes another chunk.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Garbled> {
        match self {
            Frames::Protobuf(frames) => frames.next(),
            Frames::Json(frames) => frames.next(),
        }
    }
}

#[cfg(test)]
mod tests;
