//! Sets without their members: those to be made, and those that are there.

use super::wire::{DATA, FAMILY, NETWORK_ORDER, REVISION, REVISION_MIN, SET_NAME, TYPE_NAME};
use crate::Malformed;
use crate::message::{Attrs, Buffer};

const PORT_FROM: u16 = 4;
const PORT_TO: u16 = 5;
const TIMEOUT: u16 = 6;
const OPTIONS: u16 = 8;
const HASH_SIZE: u16 = 18;
const MAX_ELEMENTS: u16 = 19;
const NETMASK: u16 = 20;
const ELEMENTS: u16 = 24;
const REFERENCES: u16 = 25;

/// The members are counted.
const COUNTERS: u32 = 1 << 3;
/// The members have comments.
const COMMENTS: u32 = 1 << 4;
/// The members have marks (`IPSET_FLAG_WITH_SKBINFO`).
const MARKS: u32 = 1 << 6;

/// What the members of a set are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetKind {
    /// `hash:ip`
    Ip,
    /// `hash:ip,port`
    IpPort,
    /// `hash:ip,port,ip`
    IpPortIp,
    /// `hash:ip,port,net`
    IpPortNet,
    /// `bitmap:port`, with room for every port.
    Port,
}

impl SetKind {
    /// The kernel's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            SetKind::Ip => "hash:ip",
            SetKind::IpPort => "hash:ip,port",
            SetKind::IpPortIp => "hash:ip,port,ip",
            SetKind::IpPortNet => "hash:ip,port,net",
            SetKind::Port => "bitmap:port",
        }
    }

    /// The revision of the type that brought marks, in Linux 3.18. Newer ones have nothing that we use, and an older
    /// `ipset` could not list their sets.
    pub(super) const fn newest_revision(self) -> u8 {
        match self {
            SetKind::Ip => 4,
            SetKind::IpPort | SetKind::IpPortIp => 5,
            SetKind::IpPortNet => 7,
            SetKind::Port => 3,
        }
    }
}

/// A set to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSet {
    /// Its name, of at most 31 bytes.
    pub name: String,
    /// What its members are made of.
    pub kind: SetKind,
    /// Whether its addresses are IPv6 ones; a [`SetKind::Port`] has none.
    pub v6: bool,
    /// Whether its members have marks.
    pub marks: bool,
    /// How many members it takes; a [`SetKind::Port`] takes all there are.
    pub max_elements: u32,
}

impl NewSet {
    /// Number of its address family; 0 if it has none.
    fn family(&self) -> u8 {
        match (self.kind, self.v6) {
            (SetKind::Port, _) => 0,
            (_, false) => libc::AF_INET as u8,
            (_, true) => libc::AF_INET6 as u8,
        }
    }

    /// Writes what its type is found by.
    pub(super) fn encode_type(&self, b: &mut Buffer) {
        b.attr_str(TYPE_NAME, self.kind.name());
        b.attr_u8(FAMILY, self.family());
    }

    pub(super) fn encode(&self, revision: u8, b: &mut Buffer) {
        b.attr_str(SET_NAME, &self.name);
        self.encode_type(b);
        b.attr_u8(REVISION, revision);
        b.nest(DATA, |b| self.encode_options(b));
    }

    fn encode_options(&self, b: &mut Buffer) {
        if self.marks {
            b.attr_be32(OPTIONS | NETWORK_ORDER, MARKS);
        }
        if self.kind == SetKind::Port {
            b.attr_be16(PORT_FROM | NETWORK_ORDER, 0);
            b.attr_be16(PORT_TO | NETWORK_ORDER, u16::MAX);
        } else {
            // The kernel's default; it grows.
            b.attr_be32(HASH_SIZE | NETWORK_ORDER, 1024);
            b.attr_be32(MAX_ELEMENTS | NETWORK_ORDER, self.max_elements);
        }
    }
}

/// A set, without its members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetInfo {
    /// Its name.
    pub name: String,
    /// The name of its type, such as `hash:ip,port`.
    pub kind: String,
    /// Number of its address family; 0 for types without addresses.
    pub family: u8,
    /// How many rules and other sets refer to it: until there is none, it cannot be destroyed.
    pub references: u32,
    /// How many members it has; 0 from kernels that do not count them (before 4.9).
    pub elements: u32,
    /// What its members have besides what they match (`IPSET_FLAG_WITH_*`).
    pub options: u32,
    /// How many members it takes, if it is a hash.
    pub max_elements: Option<u32>,
    /// The ports it has room for, from and to, if it is a `bitmap:port`.
    pub ports: Option<(u16, u16)>,
    /// After how many seconds its members vanish; with 0 only those that say so themselves.
    pub timeout: Option<u32>,
    /// The length of the networks that it takes addresses for.
    pub netmask: Option<u8>,
}

impl SetInfo {
    /// Reads one set of a listing.
    pub fn decode(body: Attrs<'_>) -> Result<SetInfo, Malformed> {
        let data = body.clone().need(DATA, "set data")?;
        let find = |kind| data.nested().find(kind);
        let number = |kind, what| find(kind).map(|a| a.be32(what)).transpose();
        let port = |kind| find(kind).map(|a| a.be16("port range")).transpose();
        Ok(SetInfo {
            name: body.clone().need(SET_NAME, "set name")?.str("set name")?.to_owned(),
            kind: body.clone().need(TYPE_NAME, "set type")?.str("set type")?.to_owned(),
            family: body.need(FAMILY, "set family")?.u8("set family")?,
            references: number(REFERENCES, "references")?.ok_or(Malformed::Missing("references"))?,
            elements: number(ELEMENTS, "elements")?.unwrap_or(0),
            options: number(OPTIONS, "options")?.unwrap_or(0),
            max_elements: number(MAX_ELEMENTS, "largest number of elements")?,
            ports: port(PORT_FROM)?.zip(port(PORT_TO)?),
            timeout: number(TIMEOUT, "timeout")?,
            netmask: find(NETMASK).map(|a| a.u8("netmask")).transpose()?,
        })
    }

    /// Whether it does what `new` would do, whatever it is called: takes the same members, at least as many, and keeps
    /// them. That it counts them, or has comments on them, does no harm.
    pub fn fits(&self, new: &NewSet) -> bool {
        let room = match new.kind {
            SetKind::Port => self.ports == Some((0, u16::MAX)),
            _ => self.max_elements.is_some_and(|most| most >= new.max_elements),
        };
        let options = if new.marks { MARKS } else { 0 };
        self.kind == new.kind.name()
            && self.family == new.family()
            && self.options & !(COUNTERS | COMMENTS) == options
            && self.timeout.is_none()
            && self.netmask.is_none()
            && room
    }
}

/// The oldest and the newest revision of a type that the kernel has.
pub(super) fn decode_revisions(body: Attrs<'_>) -> Result<(u8, u8), Malformed> {
    let newest = body.clone().need(REVISION, "type revision")?.u8("type revision")?;
    let oldest = body.find(REVISION_MIN).map_or(Ok(newest), |a| a.u8("oldest type revision"))?;
    Ok((oldest, newest))
}
