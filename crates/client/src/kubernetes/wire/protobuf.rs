//! Splits Kubernetes' protobuf as it arrives.
//!
//! A list is `k8s\0`, then `runtime.Unknown { typeMeta = 1, raw = 2, … }`, where `raw` is
//! `XList { metadata = 1, items = 2 }`. A watch is frames of a four-byte big-endian length and a `WatchEvent`.
//! See k8s.io/apimachinery `runtime/serializer/protobuf` and `util/framer`.

use super::{ListMeta, MAGIC, MAX_SIZE, Malformed};
use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

/// The parser's position in a list.
#[derive(Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Magic,
    /// Between the fields of the envelope; `true` after the list.
    Envelope(bool),
    /// Between the fields of the list, with the number of bytes left in it.
    List(u64),
}

/// Splits a list.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct List {
    buffer: BytesMut,
    position: Position,
    /// Bytes of a skipped field that are still to arrive.
    skip: u64,
    meta: ListMeta,
}

/// The header of a field.
struct FieldHeader {
    number: u64,
    wire: u64,
    /// Length of the content.
    length: u64,
    /// Length of the header itself.
    size: u64,
}

impl List {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        loop {
            let skipped = self.skip.min(self.buffer.len() as u64);
            self.buffer.advance(skipped as usize);
            self.skip -= skipped;
            if self.skip > 0 {
                return Ok(None);
            }
            match self.position {
                Position::Magic => {
                    if self.buffer.len() < MAGIC.len() {
                        return Ok(None);
                    }
                    if !self.buffer.starts_with(MAGIC) {
                        return Err(Malformed("a protobuf list does not begin with k8s\\0"));
                    }
                    self.buffer.advance(MAGIC.len());
                    self.position = Position::Envelope(false);
                }
                Position::Envelope(list_done) => {
                    let Some(header) = header(&self.buffer)? else { return Ok(None) };
                    self.buffer.advance(header.size as usize);
                    if header.number == 2 && header.wire == LENGTH && !list_done {
                        self.position = Position::List(header.length);
                    } else {
                        self.skip = header.length;
                    }
                }
                Position::List(0) => self.position = Position::Envelope(true),
                Position::List(left) => {
                    let Some(header) = header(&self.buffer)? else { return Ok(None) };
                    let field = header.size.saturating_add(header.length);
                    let rest = left.checked_sub(field).ok_or(Malformed("a field is longer than its list"))?;
                    let wanted = header.wire == LENGTH && matches!(header.number, 1 | 2);
                    if wanted && header.length > MAX_SIZE as u64 {
                        return Err(Malformed("an item of a list is larger than 16 MiB"));
                    }
                    if wanted && (self.buffer.len() as u64) < field {
                        return Ok(None);
                    }
                    self.buffer.advance(header.size as usize);
                    self.position = Position::List(rest);
                    if !wanted {
                        self.skip = header.length;
                        continue;
                    }
                    let content = self.buffer.split_to(header.length as usize).freeze();
                    if header.number == 2 {
                        return Ok(Some(content));
                    }
                    self.meta = ListMeta::decode(content)
                        .map_err(|_| Malformed("metadata of a list is not protobuf"))?;
                }
            }
        }
    }

    pub(super) fn finish(self) -> Result<ListMeta, Malformed> {
        let complete = self.position == Position::List(0) || self.position == Position::Envelope(true);
        match complete && self.skip == 0 && self.buffer.is_empty() {
            true => Ok(self.meta),
            false => Err(Malformed("a list is incomplete")),
        }
    }
}

/// Reads a field's header, or `None` if it is not complete. Fixed and varint fields have no length prefix: their length
/// is that of the value.
fn header(bytes: &[u8]) -> Result<Option<FieldHeader>, Malformed> {
    let Some((key, key_size)) = varint(bytes)? else { return Ok(None) };
    let (number, wire) = (key >> 3, key & 7);
    let length = match wire {
        FIXED64 => Some((8, 0)),
        FIXED32 => Some((4, 0)),
        VARINT => varint(&bytes[key_size..])?.map(|(_, size)| (size as u64, 0)),
        LENGTH => varint(&bytes[key_size..])?,
        _ => return Err(Malformed("a field has an unknown wire type")),
    };
    let Some((length, size)) = length else { return Ok(None) };
    Ok(Some(FieldHeader { number, wire, length, size: (key_size + size) as u64 }))
}

/// A varint and its size, or `None` if it is not complete.
fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() < 10 { Ok(None) } else { Err(Malformed("a number is too long")) }
}

/// Splits a watch.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct Frames {
    buffer: BytesMut,
}

impl Frames {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_SIZE {
            return Err(Malformed("a frame of a watch is larger than 16 MiB"));
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}
