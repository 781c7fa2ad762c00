//! Kubernetes' protobuf, taken apart as it arrives.
//!
//! A list is `k8s\0`, then `runtime.Unknown { typeMeta = 1, raw = 2, … }`, where `raw` is
//! `XList { metadata = 1, items = 2 }`. A watch is frames of a four-byte big-endian length and a `WatchEvent`.
//! See k8s.io/apimachinery `runtime/serializer/protobuf` and `util/framer`.

use super::{Garbled, LARGEST, ListMeta, MAGIC};
use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

/// Where in the list the next byte is.
#[derive(Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Magic,
    /// Between the fields of the envelope; `true` once the list has passed.
    Envelope(bool),
    /// Between the fields of the list, with so many bytes of it left.
    List(u64),
}

/// A list.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct List {
    buffer: BytesMut,
    at: At,
    /// Bytes of an unread field still to come.
    skip: u64,
    meta: ListMeta,
}

/// A field's number, wire type, the length of its content if it has one in front, and the length of all that.
struct Head {
    number: u64,
    wire: u64,
    length: u64,
    size: u64,
}

impl List {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Garbled> {
        loop {
            let skipped = self.skip.min(self.buffer.len() as u64);
            self.buffer.advance(skipped as usize);
            self.skip -= skipped;
            if self.skip > 0 {
                return Ok(None);
            }
            match self.at {
                At::Magic => {
                    if self.buffer.len() < MAGIC.len() {
                        return Ok(None);
                    }
                    if !self.buffer.starts_with(MAGIC) {
                        return Err(Garbled("a protobuf list does not begin with k8s\\0"));
                    }
                    self.buffer.advance(MAGIC.len());
                    self.at = At::Envelope(false);
                }
                At::Envelope(passed) => {
                    let Some(head) = head(&self.buffer)? else { return Ok(None) };
                    self.buffer.advance(head.size as usize);
                    if head.number == 2 && head.wire == LENGTH && !passed {
                        self.at = At::List(head.length);
                    } else {
                        self.skip = head.length;
                    }
                }
                At::List(0) => self.at = At::Envelope(true),
                At::List(left) => {
                    let Some(head) = head(&self.buffer)? else { return Ok(None) };
                    let field = head.size.saturating_add(head.length);
                    let rest = left.checked_sub(field).ok_or(Garbled("a field is longer than its list"))?;
                    let wanted = head.wire == LENGTH && matches!(head.number, 1 | 2);
                    if wanted && head.length > LARGEST as u64 {
                        return Err(Garbled("an item of a list is larger than 16 MiB"));
                    }
                    if wanted && (self.buffer.len() as u64) < field {
                        return Ok(None);
                    }
                    self.buffer.advance(head.size as usize);
                    self.at = At::List(rest);
                    if !wanted {
                        self.skip = head.length;
                        continue;
                    }
                    let content = self.buffer.split_to(head.length as usize).freeze();
                    if head.number == 2 {
                        return Ok(Some(content));
                    }
                    self.meta = ListMeta::decode(content)
                        .map_err(|_| Garbled("metadata of a list is not protobuf"))?;
                }
            }
        }
    }

    pub(super) fn finish(self) -> Result<ListMeta, Garbled> {
        let complete = self.at == At::List(0) || self.at == At::Envelope(true);
        match complete && self.skip == 0 && self.buffer.is_empty() {
            true => Ok(self.meta),
            false => Err(Garbled("a list ended early")),
        }
    }
}

/// Reads a field's head, or `None` if its bytes are not all there. Fixed and varint fields have no length in front:
/// theirs is the length of their value.
fn head(bytes: &[u8]) -> Result<Option<Head>, Garbled> {
    let Some((key, key_size)) = varint(bytes)? else { return Ok(None) };
    let (number, wire) = (key >> 3, key & 7);
    let length = match wire {
        FIXED64 => Some((8, 0)),
        FIXED32 => Some((4, 0)),
        VARINT => varint(&bytes[key_size..])?.map(|(_, size)| (size as u64, 0)),
        LENGTH => varint(&bytes[key_size..])?,
        _ => return Err(Garbled("a field has no known wire type")),
    };
    let Some((length, size)) = length else { return Ok(None) };
    Ok(Some(Head { number, wire, length, size: (key_size + size) as u64 }))
}

/// A varint and its size, or `None` if its bytes are not all there.
fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Garbled> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() < 10 { Ok(None) } else { Err(Garbled("a number is too long")) }
}

/// A watch.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct Frames {
    buffer: BytesMut,
}

impl Frames {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Garbled> {
        let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > LARGEST {
            return Err(Garbled("a frame of a watch is larger than 16 MiB"));
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}
