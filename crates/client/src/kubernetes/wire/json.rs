//! Kubernetes' JSON, taken apart as it arrives.
//!
//! A list is one object with `metadata` and `items`; a watch is one object after another. The bytes are only cut at
//! the right places here, by counting brackets outside of strings; serde reads the pieces.

use super::{Garbled, LARGEST, ListMeta};
use bytes::{Buf, Bytes, BytesMut};

/// Finds the end of one value.
#[derive(Debug, Default)]
struct Scanner {
    /// Bytes already looked at.
    seen: usize,
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Scanner {
    /// The length of the value at the beginning of `bytes`, or `None` if its end is not there yet. Called again with
    /// more bytes it goes on where it was.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(&byte) = bytes.get(self.seen) {
            self.seen += 1;
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
                return Some(self.seen);
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                // The end of a bare number or word is the beginning of what follows it.
                b'}' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => {
                    return Some(self.seen - 1);
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(self.seen);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Bytes and the scanner of the value at their beginning.
#[derive(Debug, Default)]
struct Cutter {
    buffer: BytesMut,
    scanner: Scanner,
}

impl Cutter {
    /// The next byte that is not white space; it stays where it is.
    fn peek(&mut self) -> Option<u8> {
        let blank = self.buffer.iter().take_while(|b| b.is_ascii_whitespace()).count();
        self.buffer.advance(blank);
        self.buffer.first().copied()
    }

    /// Cuts off the value that [`Cutter::peek`] stands at.
    fn value(&mut self) -> Result<Option<Bytes>, Garbled> {
        let Some(end) = self.scanner.end(&self.buffer) else {
            return if self.buffer.len() > LARGEST {
                Err(Garbled("a value is larger than 16 MiB"))
            } else {
                Ok(None)
            };
        };
        if end == 0 {
            return Err(Garbled("a value is missing"));
        }
        self.scanner = Scanner::default();
        Ok(Some(self.buffer.split_to(end).freeze()))
    }
}

/// Where in the list the next value is.
#[derive(Debug, Default, PartialEq, Eq)]
enum At {
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

/// A list.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct List {
    cutter: Cutter,
    at: At,
    meta: ListMeta,
}

impl List {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.cutter.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Garbled> {
        while let Some(byte) = self.cutter.peek() {
            let skip = match (&self.at, byte) {
                (At::Open, b'{') => At::Key,
                (At::Key | At::AfterValue, b'}') => At::Done,
                (At::Colon(field), b':') => At::Value(*field),
                (At::Value(Field::Items), b'[') => At::Items,
                (At::AfterValue, b',') => At::Key,
                (At::Items | At::AfterItem, b']') => At::AfterValue,
                (At::AfterItem, b',') => At::Items,
                (At::Key, b'"') | (At::Value(_) | At::Items, _) => {
                    let Some(value) = self.cutter.value()? else { return Ok(None) };
                    if let Some(item) = self.take(value)? {
                        return Ok(Some(item));
                    }
                    continue;
                }
                _ => return Err(Garbled("a list is not JSON")),
            };
            self.cutter.buffer.advance(1);
            self.at = skip;
        }
        Ok(None)
    }

    /// Puts a value where it belongs; an item is handed on.
    fn take(&mut self, value: Bytes) -> Result<Option<Bytes>, Garbled> {
        match self.at {
            At::Key => {
                self.at = At::Colon(match &*value {
                    b"\"metadata\"" => Field::Metadata,
                    b"\"items\"" => Field::Items,
                    _ => Field::Other,
                });
            }
            At::Items => {
                self.at = At::AfterItem;
                return Ok(Some(value));
            }
            At::Value(Field::Metadata) => {
                self.meta =
                    serde_json::from_slice(&value).map_err(|_| Garbled("metadata of a list is not JSON"))?;
                self.at = At::AfterValue;
            }
            _ => self.at = At::AfterValue,
        }
        Ok(None)
    }

    pub(super) fn finish(mut self) -> Result<ListMeta, Garbled> {
        match self.cutter.peek().is_none() && self.at == At::Done {
            true => Ok(self.meta),
            false => Err(Garbled("a list ended early")),
        }
    }
}

/// A watch.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct Frames {
    cutter: Cutter,
}

impl Frames {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.cutter.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Garbled> {
        match self.cutter.peek() {
            None => Ok(None),
            Some(b'{') => self.cutter.value(),
            Some(_) => Err(Garbled("a watch is not a stream of JSON objects")),
        }
    }
}
