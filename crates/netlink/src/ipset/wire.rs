//! The numbers of the protocol, how its messages begin, and the words for its errors.

use crate::message::{Attrs, Buffer, Message, attrs};
use crate::{Error, Malformed, Result};

const SUBSYSTEM: u16 = 6 << 8;
pub(super) const CMD_PROTOCOL: u16 = SUBSYSTEM | 1;
pub(super) const CMD_CREATE: u16 = SUBSYSTEM | 2;
pub(super) const CMD_DESTROY: u16 = SUBSYSTEM | 3;
pub(super) const CMD_FLUSH: u16 = SUBSYSTEM | 4;
pub(super) const CMD_LIST: u16 = SUBSYSTEM | 7;
pub(super) const CMD_ADD: u16 = SUBSYSTEM | 9;
pub(super) const CMD_REMOVE: u16 = SUBSYSTEM | 10;
pub(super) const CMD_TYPE: u16 = SUBSYSTEM | 13;

pub(super) const PROTOCOL: u16 = 1;
pub(super) const SET_NAME: u16 = 2;
pub(super) const TYPE_NAME: u16 = 3;
pub(super) const REVISION: u16 = 4;
pub(super) const FAMILY: u16 = 5;
pub(super) const FLAGS: u16 = 6;
pub(super) const DATA: u16 = 7;
pub(super) const MEMBERS: u16 = 8;
pub(super) const LINE: u16 = 9;
pub(super) const PROTOCOL_MIN: u16 = 10;
pub(super) const REVISION_MIN: u16 = 10;

/// Says of an attribute that its value is in network order, which the kernel insists on.
pub(super) const NETWORK_ORDER: u16 = 0x4000;

/// What a hash answers to one member more than it takes (`IPSET_ERR_HASH_FULL`).
pub(super) const HASH_FULL: i32 = 4352;

/// `struct nfgenmsg`. The subsystem ignores the family, and `ipset` itself always says this one.
const HEADER: [u8; 4] = [libc::AF_INET as u8, 0, 0, 0];
/// `struct nlmsghdr`.
const MESSAGE_HEADER: usize = 16;

/// How every request begins.
pub(super) fn begin(b: &mut Buffer, version: u8) {
    b.raw(&HEADER);
    b.attr_u8(PROTOCOL, version);
}

/// What is behind the `nfgenmsg` of a message.
pub(super) fn body<'a>(m: &Message<'a>) -> Result<Attrs<'a>, Malformed> {
    Ok(attrs(m.body.get(HEADER.len()..).ok_or(Malformed::Short("ipset message"))?))
}

/// Which member a refusal is about, as the line that the request gave it. The kernel sends the request back, with the
/// line in the place where the request had none.
pub(super) fn refused_line(refusal: &Message<'_>) -> Option<u32> {
    let request = refusal.body.get(4 + MESSAGE_HEADER + HEADER.len()..)?;
    let line = attrs(request).find(LINE)?.u32("line").ok()?;
    (line != 0).then_some(line)
}

/// Puts words to the subsystem's own errors (`enum ipset_errno`).
pub(super) fn explain(error: Error) -> Error {
    let Error::Refused { operation, source, detail: None } = error else { return error };
    let words = match source.raw_os_error() {
        Some(4097) => Some("the kernel makes no sense of it: is an address of the other family?"),
        Some(4098) => Some("the kernel has no sets of this type"),
        Some(4099) => Some("there are too many sets"),
        Some(4100) => Some("a rule or another set uses it"),
        Some(4103) => Some("it has this member already, or lacks the one to be removed"),
        Some(4104) => Some("a network's prefix has an impossible length"),
        Some(4106) => Some("the set is of another address family"),
        Some(4114) => Some("the set was made for members without marks"),
        // A bitmap has this number for what is outside of its range.
        Some(HASH_FULL) => Some("the set is full, or its range too small"),
        Some(4353) => Some("an address of nothing but zeroes cannot be a member"),
        Some(4354 | 4355) => Some("a port without a transport protocol that has ports"),
        _ => None,
    };
    Error::Refused { operation, source, detail: words.map(str::to_owned) }
}
