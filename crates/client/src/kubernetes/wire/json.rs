//! Splits Kubernetes' JSON as it arrives.
//!
//! A list is one object with `metadata` and `items`; a watch is one object after another. This module only finds the
//! ends of values, by counting brackets outside of strings; serde decodes the values.

use super::{ListMeta, MAX_SIZE, Malformed};
use bytes::{Buf, Bytes, BytesMut};

/// Finds the end of one value.
#[derive(Debug, Default)]
struct Scanner {
    /// Bytes already scanned.
    scanned: usize,
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Scanner {
    /// The length of the value at the beginning of `bytes`, or `None` if its end has not arrived yet. A later call with
    /// more bytes continues the scan.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(&byte) = bytes.get(self.scanned) {
            self.scanned += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => continue,
                }
                if self.in_string || self.depth > 0 {
                    continue;
                }
                return Some(self.scanned);
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                // A number or literal ends before the next delimiter.
                b'}' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => {
                    return Some(self.scanned - 1);
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(self.scanned);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Buffered bytes, and the scanner of the value at their beginning.
#[derive(Debug, Default)]
struct Splitter {
    buffer: BytesMut,
    scanner: Scanner,
}

impl Splitter {
    /// Skips white space and returns the next byte without consuming it.
    fn peek(&mut self) -> Option<u8> {
        let blank = self.buffer.iter().take_while(|b| b.is_ascii_whitespace()).count();
        self.buffer.advance(blank);
        self.buffer.first().copied()
    }

    /// Removes the value at the beginning of the buffer, after [`Splitter::peek`], and returns it.
    fn value(&mut self) -> Result<Option<Bytes>, Malformed> {
        let Some(end) = self.scanner.end(&self.buffer) else {
            return if self.buffer.len() > MAX_SIZE {
                Err(Malformed("a value is larger than 16 MiB"))
            } else {
                Ok(None)
            };
        };
        if end == 0 {
            return Err(Malformed("a value is missing"));
        }
        self.scanner = Scanner::default();
        Ok(Some(self.buffer.split_to(end).freeze()))
    }
}

/// The parser's position in a list.
#[derive(Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Open,
    Key,
    /// Before the colon of this key.
    Colon(Field),
    Value(Field),
    AfterValue,
    Items,
    AfterItem,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Metadata,
    Items,
    Other,
}

/// Splits a list.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct List {
    splitter: Splitter,
    position: Position,
    meta: ListMeta,
}

impl List {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.splitter.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        while let Some(byte) = self.splitter.peek() {
            let next = match (&self.position, byte) {
                (Position::Open, b'{') => Position::Key,
                (Position::Key | Position::AfterValue, b'}') => Position::Done,
                (Position::Colon(field), b':') => Position::Value(*field),
                (Position::Value(Field::Items), b'[') => Position::Items,
                (Position::AfterValue, b',') => Position::Key,
                (Position::Items | Position::AfterItem, b']') => Position::AfterValue,
                (Position::AfterItem, b',') => Position::Items,
                (Position::Key, b'"') | (Position::Value(_) | Position::Items, _) => {
                    let Some(value) = self.splitter.value()? else { return Ok(None) };
                    if let Some(item) = self.take(value)? {
                        return Ok(Some(item));
                    }
                    continue;
                }
                _ => return Err(Malformed("a list is not JSON")),
            };
            self.splitter.buffer.advance(1);
            self.position = next;
        }
        Ok(None)
    }

    /// Stores a key or the metadata; returns an item.
    fn take(&mut self, value: Bytes) -> Result<Option<Bytes>, Malformed> {
        match self.position {
            Position::Key => {
                self.position = Position::Colon(match &*value {
                    b"\"metadata\"" => Field::Metadata,
                    b"\"items\"" => Field::Items,
                    _ => Field::Other,
                });
            }
            Position::Items => {
                self.position = Position::AfterItem;
                return Ok(Some(value));
            }
            Position::Value(Field::Metadata) => {
                self.meta = serde_json::from_slice(&value)
                    .map_err(|_| Malformed("metadata of a list is not JSON"))?;
                self.position = Position::AfterValue;
            }
            _ => self.position = Position::AfterValue,
        }
        Ok(None)
    }

    pub(super) fn finish(mut self) -> Result<ListMeta, Malformed> {
        match self.splitter.peek().is_none() && self.position == Position::Done {
            true => Ok(self.meta),
            false => Err(Malformed("a list is incomplete")),
        }
    }
}

/// Splits a watch.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct Frames {
    splitter: Splitter,
}

impl Frames {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.splitter.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        match self.splitter.peek() {
            None => Ok(None),
            Some(b'{') => self.splitter.value(),
            Some(_) => Err(Malformed("a watch is not a stream of JSON objects")),
        }
    }
}
