//! Splits the bytes of a response, in chunks of any size, into items or frames.
//!
//! In: chunks. Out: the items of a list one by one and then its metadata, or the frames of a watch. At most one item
//! and one chunk are buffered, so that a list of a hundred thousand objects takes no more memory than one of ten, also
//! if the server sends all of them in one response. No I/O; objects are decoded by [`super::object`].

mod json;
mod protobuf;

use bytes::Bytes;
use prost::Message;
use serde::Deserialize;

/// The largest item or frame that is accepted. By default etcd stores no object above 1.5 MB; this only bounds memory.
const MAX_SIZE: usize = 16 << 20;

/// The prefix of every object and list in protobuf.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// The formats of an API server's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Protobuf,
    Json,
}

impl Format {
    /// The format for a `Content-Type`: anything but protobuf is decoded as JSON.
    pub(super) fn of(content_type: &str) -> Self {
        match content_type.trim_start().starts_with("application/vnd.kubernetes.protobuf") {
            true => Format::Protobuf,
            false => Format::Json,
        }
    }
}

/// A response that cannot be decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode the response: {0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// `metadata` of a list.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMeta {
    /// Version to watch from.
    #[prost(string, tag = "2")]
    pub(super) resource_version: String,
    /// Token for the next page; empty on the last page.
    #[prost(string, tag = "3")]
    #[serde(rename = "continue")]
    pub(super) continue_token: String,
}

/// Splits a list into its items.
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

    /// The next item, or `None` if it needs another chunk.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        match self {
            List::Protobuf(list) => list.next(),
            List::Json(list) => list.next(),
        }
    }

    /// The list's metadata; an error if the list is not complete.
    pub(super) fn finish(self) -> Result<ListMeta, Malformed> {
        match self {
            List::Protobuf(list) => list.finish(),
            List::Json(list) => list.finish(),
        }
    }
}

/// Splits the stream of a watch into frames.
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

    /// The next frame, or `None` if it needs another chunk.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        match self {
            Frames::Protobuf(frames) => frames.next(),
            Frames::Json(frames) => frames.next(),
        }
    }
}

#[cfg(test)]
mod tests;
