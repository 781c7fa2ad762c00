//! Netlink messages as bytes: [`Buffer`] builds them, [`messages`] and [`attrs`] iterate over them.
//!
//! A message is a 16-byte header (`struct nlmsghdr`), a fixed body whose size its family defines, and attributes:
//! length, type, value, padded to four bytes; some are nested. Headers and lengths are in host order, nf_tables values
//! in network order. The constants have their names from `linux/netlink.h`.

use crate::DecodeError;
use std::mem::offset_of;

/// The message is a request.
pub const NLM_F_REQUEST: u16 = 0x1;
/// The request asks for an acknowledgement.
pub const NLM_F_ACK: u16 = 0x4;
/// The listed objects changed during the dump, so the list may be inconsistent.
pub const NLM_F_DUMP_INTR: u16 = 0x10;
/// The acknowledgement has attributes (extended ack).
pub(crate) const NLM_F_ACK_TLVS: u16 = 0x200;
/// The request asks for a list of all objects.
pub const NLM_F_DUMP: u16 = 0x300;
/// The request replaces an existing object.
pub const NLM_F_REPLACE: u16 = 0x100;
/// The request fails if the object exists.
pub const NLM_F_EXCL: u16 = 0x200;
/// The request creates the object if it does not exist.
pub const NLM_F_CREATE: u16 = 0x400;
/// The request appends the object to the end of a list.
pub const NLM_F_APPEND: u16 = 0x800;

/// Message type of acknowledgements and errors.
pub const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
/// Message type that ends a dump.
pub const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;

/// Size of `struct nlmsghdr`.
pub(crate) const NLMSG_HDRLEN: usize = size_of::<libc::nlmsghdr>();
const NLMSG_LEN_OFFSET: usize = offset_of!(libc::nlmsghdr, nlmsg_len);
const NLMSG_TYPE_OFFSET: usize = offset_of!(libc::nlmsghdr, nlmsg_type);
const NLMSG_FLAGS_OFFSET: usize = offset_of!(libc::nlmsghdr, nlmsg_flags);
const NLMSG_SEQ_OFFSET: usize = offset_of!(libc::nlmsghdr, nlmsg_seq);
/// The port of the socket that caused the message.
pub(crate) const NLMSG_PID_OFFSET: usize = offset_of!(libc::nlmsghdr, nlmsg_pid);
/// Size of `struct nlattr`.
const NLA_HDRLEN: usize = 4;
const NLA_F_NESTED: u16 = libc::NLA_F_NESTED as u16;
/// The attribute's value is in network order.
pub(crate) const NLA_F_NET_BYTEORDER: u16 = libc::NLA_F_NET_BYTEORDER as u16;
const NLA_TYPE_MASK: u16 = !(NLA_F_NESTED | NLA_F_NET_BYTEORDER);

/// Rounds up to a multiple of four, as `NLMSG_ALIGN` and `NLA_ALIGN` do.
fn align(n: usize) -> usize {
    (n + 3) & !3
}

/// Messages under construction, one after another.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    /// An empty buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Buffer { bytes: Vec::with_capacity(capacity) }
    }

    /// The bytes of all messages so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends a message whose body `fill` writes.
    pub fn message(&mut self, kind: u16, flags: u16, seq: u32, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&seq.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
        self.pad();
    }

    /// Sets flags in the header of the message that begins at `offset`.
    pub fn add_flags(&mut self, offset: usize, flags: u16) {
        let start = offset + NLMSG_FLAGS_OFFSET;
        let old = u16::from_ne_bytes([self.bytes[start], self.bytes[start + 1]]);
        self.bytes[start..start + 2].copy_from_slice(&(old | flags).to_ne_bytes());
    }

    /// Appends bytes without an attribute header: a family's fixed body.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an attribute.
    pub fn attr(&mut self, kind: u16, value: &[u8]) {
        self.attr_header(kind, value.len());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Appends an attribute of one byte.
    pub fn attr_u8(&mut self, kind: u16, value: u8) {
        self.attr(kind, &[value]);
    }

    /// Appends an attribute with a 16-bit number in network order.
    pub fn attr_be16(&mut self, kind: u16, value: u16) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Appends an attribute with a 16-bit number in host order.
    pub fn attr_u16(&mut self, kind: u16, value: u16) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute with a 32-bit number in network order.
    pub fn attr_be32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Appends an attribute with a 32-bit number in host order.
    pub fn attr_u32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute with a 64-bit number in network order.
    pub fn attr_be64(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Appends an attribute with a string and its terminating NUL.
    pub fn attr_str(&mut self, kind: u16, value: &str) {
        self.attr_header(kind, value.len() + 1);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Appends a nested attribute; `fill` writes the attributes in it.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.begin_nest(kind);
        fill(self);
        self.end_nest(start);
    }

    /// Begins a nested attribute, and returns its offset for [`Buffer::end_nest`].
    pub fn begin_nest(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        start
    }

    /// Ends the nested attribute that begins at `start`.
    pub fn end_nest(&mut self, start: usize) {
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }

    fn attr_header(&mut self, kind: u16, len: usize) {
        self.bytes.extend_from_slice(&((len + NLA_HDRLEN) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its type.
    pub kind: u16,
    /// Its flags.
    pub flags: u16,
    /// Sequence number; an answer has that of its request.
    pub seq: u32,
    /// Port of the socket that caused it (`nlmsg_pid`).
    pub port: u32,
    /// The bytes after the header.
    pub body: &'a [u8],
}

/// Iterates over the messages of one datagram.
pub fn messages(bytes: &[u8]) -> Messages<'_> {
    Messages { rest: bytes }
}

/// Iterator of [`messages`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let u32_at = |i: usize| u32::from_ne_bytes(self.rest[i..i + 4].try_into().unwrap_or_default());
        let u16_at = |i: usize| u16::from_ne_bytes([self.rest[i], self.rest[i + 1]]);
        let len = if self.rest.len() < NLMSG_HDRLEN { 0 } else { u32_at(NLMSG_LEN_OFFSET) as usize };
        if len < NLMSG_HDRLEN || len > self.rest.len() {
            self.rest = &[];
            return Some(Err(DecodeError::Truncated("netlink message")));
        }
        let message = Message {
            kind: u16_at(NLMSG_TYPE_OFFSET),
            flags: u16_at(NLMSG_FLAGS_OFFSET),
            seq: u32_at(NLMSG_SEQ_OFFSET),
            port: u32_at(NLMSG_PID_OFFSET),
            body: &self.rest[NLMSG_HDRLEN..len],
        };
        self.rest = self.rest.get(align(len)..).unwrap_or_default();
        Some(Ok(message))
    }
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Its type, without the flags.
    pub kind: u16,
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Attr<'a> {
    /// Its value as attributes.
    pub fn nested(&self) -> Attrs<'a> {
        attrs(self.value)
    }

    /// Its value as a byte.
    pub fn u8(&self, field: &'static str) -> Result<u8, DecodeError> {
        self.value.first().copied().ok_or(DecodeError::Truncated(field))
    }

    /// Its value as a 16-bit number in network order.
    pub fn be16(&self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    /// Its value as a 16-bit number in host order.
    pub fn u16(&self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_ne_bytes)
    }

    /// Its value as a 32-bit number in network order.
    pub fn be32(&self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// Its value as a 32-bit number in host order.
    pub fn u32(&self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_ne_bytes)
    }

    /// Its value as a 64-bit number in network order.
    pub fn be64(&self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// Its value as a string, without the terminating NUL.
    pub fn str(&self, field: &'static str) -> Result<&'a str, DecodeError> {
        let end = self.value.iter().position(|&b| b == 0).unwrap_or(self.value.len());
        std::str::from_utf8(&self.value[..end]).map_err(|_| DecodeError::NotUtf8(field))
    }

    fn array<const N: usize>(&self, field: &'static str) -> Result<[u8; N], DecodeError> {
        self.value.get(..N).and_then(|v| v.try_into().ok()).ok_or(DecodeError::Truncated(field))
    }
}

/// Iterates over the attributes in `bytes`. The iteration ends at a truncated attribute; a decoder that needs it
/// reports it as missing.
pub fn attrs(bytes: &[u8]) -> Attrs<'_> {
    Attrs { rest: bytes }
}

/// Iterator of [`attrs`].
#[derive(Clone, Debug)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// The attribute of type `kind`, if it is present.
    pub fn find(self, kind: u16) -> Option<Attr<'a>> {
        let mut all = self;
        all.by_ref().find(|a| a.kind == kind)
    }

    /// The attribute of type `kind`; an error that names `field` if it is missing.
    pub fn need(self, kind: u16, field: &'static str) -> Result<Attr<'a>, DecodeError> {
        self.find(kind).ok_or(DecodeError::Missing(field))
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Attr<'a>> {
        let len = u16::from_ne_bytes([*self.rest.first()?, *self.rest.get(1)?]) as usize;
        let kind = u16::from_ne_bytes([*self.rest.get(2)?, *self.rest.get(3)?]) & NLA_TYPE_MASK;
        let value = self.rest.get(NLA_HDRLEN..len)?;
        self.rest = self.rest.get(align(len)..).unwrap_or_default();
        Some(Attr { kind, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_messages_parse_to_the_same_values() {
        let mut b = Buffer::default();
        b.message(7, NLM_F_REQUEST, 42, |b| {
            b.raw(&[1, 2, 3, 4]);
            b.attr_str(1, "portway");
            b.nest(2, |b| {
                b.attr_be32(1, 0xdead_beef);
                b.attr_u8(2, 9);
            });
        });
        b.message(8, NLM_F_ACK, 43, |_| {});
        let all: Vec<_> = messages(b.bytes()).map(|m| m.unwrap()).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].kind, all[0].flags, all[0].seq), (7, NLM_F_REQUEST, 42));
        let body = attrs(&all[0].body[4..]);
        assert_eq!(body.clone().need(1, "name").unwrap().str("name").unwrap(), "portway");
        let inner = body.need(2, "inner").unwrap();
        assert_eq!(inner.nested().need(1, "n").unwrap().be32("n").unwrap(), 0xdead_beef);
        assert_eq!(inner.nested().need(2, "b").unwrap().u8("b").unwrap(), 9);
        assert_eq!(all[1].kind, 8);
    }

    #[test]
    fn a_truncated_message_is_an_error_and_ends_the_iteration() {
        let mut b = Buffer::default();
        b.message(7, NLM_F_REQUEST, 1, |b| b.attr_be32(1, 5));
        let cut = &b.bytes()[..b.len() - 2];
        let mut parsed = messages(cut);
        assert!(matches!(parsed.next(), Some(Err(DecodeError::Truncated(_)))));
        assert!(parsed.next().is_none());
    }
}
