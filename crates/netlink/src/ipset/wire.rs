//! The kernel's names for the numbers of the ipset protocol, the header of its messages, and texts for its errnos.
//!
//! The constants come from `linux/netfilter/ipset/ip_set.h`, `ip_set_hash.h` and `ip_set_bitmap.h` in the same
//! directory.

use crate::message::{self, Attrs, Buffer, Message, attrs};
use crate::{DecodeError, Error, Result};

const NFNL_SUBSYS_IPSET: u16 = 6;
pub(super) const IPSET_CMD_PROTOCOL: u16 = message_type(1);
pub(super) const IPSET_CMD_CREATE: u16 = message_type(2);
pub(super) const IPSET_CMD_DESTROY: u16 = message_type(3);
pub(super) const IPSET_CMD_FLUSH: u16 = message_type(4);
pub(super) const IPSET_CMD_LIST: u16 = message_type(7);
pub(super) const IPSET_CMD_ADD: u16 = message_type(9);
pub(super) const IPSET_CMD_DEL: u16 = message_type(10);
pub(super) const IPSET_CMD_TYPE: u16 = message_type(13);

/// The protocol version; the newest one in the kernel's answer.
pub(super) const IPSET_ATTR_PROTOCOL: u16 = 1;
pub(super) const IPSET_ATTR_SETNAME: u16 = 2;
pub(super) const IPSET_ATTR_TYPENAME: u16 = 3;
pub(super) const IPSET_ATTR_REVISION: u16 = 4;
pub(super) const IPSET_ATTR_FAMILY: u16 = 5;
pub(super) const IPSET_ATTR_FLAGS: u16 = 6;
pub(super) const IPSET_ATTR_DATA: u16 = 7;
/// A list of members.
pub(super) const IPSET_ATTR_ADT: u16 = 8;
pub(super) const IPSET_ATTR_LINENO: u16 = 9;
pub(super) const IPSET_ATTR_PROTOCOL_MIN: u16 = 10;
pub(super) const IPSET_ATTR_REVISION_MIN: u16 = 10;

// Attributes in `IPSET_ATTR_DATA`, of a set or of a member.
pub(super) const IPSET_ATTR_IP: u16 = 1;
pub(super) const IPSET_ATTR_PORT: u16 = 4;
pub(super) const IPSET_ATTR_PORT_TO: u16 = 5;
pub(super) const IPSET_ATTR_TIMEOUT: u16 = 6;
pub(super) const IPSET_ATTR_PROTO: u16 = 7;
/// Options of a set: a mask of `IPSET_FLAG_WITH_*`.
pub(super) const IPSET_ATTR_CADT_FLAGS: u16 = 8;

// Attributes of a set only.
pub(super) const IPSET_ATTR_HASHSIZE: u16 = 18;
pub(super) const IPSET_ATTR_MAXELEM: u16 = 19;
pub(super) const IPSET_ATTR_NETMASK: u16 = 20;
pub(super) const IPSET_ATTR_ELEMENTS: u16 = 24;
pub(super) const IPSET_ATTR_REFERENCES: u16 = 25;

// Attributes of a member only.
pub(super) const IPSET_ATTR_IP2: u16 = 20;
pub(super) const IPSET_ATTR_CIDR2: u16 = 21;
pub(super) const IPSET_ATTR_SKBMARK: u16 = 27;

// Attributes in `IPSET_ATTR_IP` and `IPSET_ATTR_IP2`.
pub(super) const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
pub(super) const IPSET_ATTR_IPADDR_IPV6: u16 = 2;

/// List sets without their members.
pub(super) const IPSET_FLAG_LIST_HEADER: u32 = 1 << 2;
pub(super) const IPSET_FLAG_WITH_COUNTERS: u32 = 1 << 3;
pub(super) const IPSET_FLAG_WITH_COMMENT: u32 = 1 << 4;
/// Members may have marks.
pub(super) const IPSET_FLAG_WITH_SKBINFO: u32 = 1 << 6;

const IPSET_ERR_PROTOCOL: i32 = 4097;
const IPSET_ERR_FIND_TYPE: i32 = 4098;
const IPSET_ERR_MAX_SETS: i32 = 4099;
pub(super) const IPSET_ERR_BUSY: i32 = 4100;
const IPSET_ERR_EXIST: i32 = 4103;
const IPSET_ERR_INVALID_CIDR: i32 = 4104;
const IPSET_ERR_INVALID_FAMILY: i32 = 4106;
const IPSET_ERR_SKBINFO: i32 = 4114;
/// `IPSET_ERR_BITMAP_RANGE` has the same number.
pub(super) const IPSET_ERR_HASH_FULL: i32 = 4352;
const IPSET_ERR_HASH_ELEM: i32 = 4353;
const IPSET_ERR_INVALID_PROTO: i32 = 4354;
const IPSET_ERR_MISSING_PROTO: i32 = 4355;

/// `struct nfgenmsg`. The subsystem ignores the family; the `ipset` command always sends `AF_INET`.
const NFGENMSG: [u8; 4] = [libc::AF_INET as u8, 0, 0, 0];
/// Size of the errno at the start of `struct nlmsgerr`.
const ERRNO_LEN: usize = 4;

const fn message_type(command: u16) -> u16 {
    NFNL_SUBSYS_IPSET << 8 | command
}

/// Writes the beginning of a request: the `nfgenmsg` and the protocol version.
pub(super) fn begin(b: &mut Buffer, version: u8) {
    b.raw(&NFGENMSG);
    b.attr_u8(IPSET_ATTR_PROTOCOL, version);
}

/// The attributes of a message, which follow its `nfgenmsg`.
pub(super) fn body<'a>(m: &Message<'a>) -> Result<Attrs<'a>, DecodeError> {
    Ok(attrs(m.body.get(NFGENMSG.len()..).ok_or(DecodeError::Truncated("ipset message"))?))
}

/// The line number of the refused member, as numbered in the request. The kernel sends the request
/// back with that number in the request's own `IPSET_ATTR_LINENO`, where it was 0.
pub(super) fn refused_line(refusal: &Message<'_>) -> Option<u32> {
    let request = refusal.body.get(ERRNO_LEN + message::NLMSG_HDRLEN + NFGENMSG.len()..)?;
    let line = attrs(request).find(IPSET_ATTR_LINENO)?.u32("line").ok()?;
    (line != 0).then_some(line)
}

/// Adds a text to an error with a private errno of ipset (`enum ipset_errno`), for which the C library has no text.
pub(super) fn explain(error: Error) -> Error {
    let Error::Refused { operation, source, detail: None } = error else { return error };
    let text = match source.raw_os_error() {
        Some(IPSET_ERR_PROTOCOL) => Some("the request is invalid; an address may be of the other family"),
        Some(IPSET_ERR_FIND_TYPE) => Some("the kernel does not have this set type"),
        Some(IPSET_ERR_MAX_SETS) => Some("there are too many sets"),
        Some(IPSET_ERR_BUSY) => Some("a rule or another set uses the set"),
        Some(IPSET_ERR_EXIST) => Some("the member to be added exists, or the one to be removed does not"),
        Some(IPSET_ERR_INVALID_CIDR) => Some("the prefix length of a network is invalid"),
        Some(IPSET_ERR_INVALID_FAMILY) => Some("the set is of another address family"),
        Some(IPSET_ERR_SKBINFO) => Some("the set was created without support for marks"),
        Some(IPSET_ERR_HASH_FULL) => Some("the set is full, or the port is outside of its range"),
        Some(IPSET_ERR_HASH_ELEM) => Some("the all-zero address cannot be a member"),
        Some(IPSET_ERR_INVALID_PROTO | IPSET_ERR_MISSING_PROTO) => {
            Some("a member with a port needs a transport protocol that has ports")
        }
        _ => None,
    };
    Error::Refused { operation, source, detail: text.map(str::to_owned) }
}
