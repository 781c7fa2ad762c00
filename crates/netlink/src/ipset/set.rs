//! Sets without their members: [`NewSet`] to create one, [`SetInfo`] for one that the kernel lists.

use super::wire::*;
use crate::DecodeError;
use crate::message::{Attrs, Buffer, NLA_F_NET_BYTEORDER};

/// The type of a set: the fields of its members.
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
    /// `bitmap:port`, with a range of all ports.
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

    /// The revision of the type that introduced marks, in Linux 3.18. Portway uses no feature of newer revisions, and
    /// an old `ipset` command could not list sets of them.
    pub(super) const fn newest_revision(self) -> u8 {
        match self {
            SetKind::Ip => 4,
            SetKind::IpPort | SetKind::IpPortIp => 5,
            SetKind::IpPortNet => 7,
            SetKind::Port => 3,
        }
    }
}

/// A set to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSet {
    /// Its name, of at most 31 bytes.
    pub name: String,
    /// Its type.
    pub kind: SetKind,
    /// Whether its addresses are IPv6 addresses; a [`SetKind::Port`] has no addresses.
    pub v6: bool,
    /// Whether its members may have marks.
    pub marks: bool,
    /// Largest number of members; ignored for a [`SetKind::Port`], which has room for all ports.
    pub max_elements: u32,
}

impl NewSet {
    /// Number of its address family; `AF_UNSPEC` if it has none.
    fn family(&self) -> u8 {
        match (self.kind, self.v6) {
            (SetKind::Port, _) => libc::AF_UNSPEC as u8,
            (_, false) => libc::AF_INET as u8,
            (_, true) => libc::AF_INET6 as u8,
        }
    }

    /// Writes type name and family, by which the kernel finds the type.
    pub(super) fn encode_type(&self, b: &mut Buffer) {
        b.attr_str(IPSET_ATTR_TYPENAME, self.kind.name());
        b.attr_u8(IPSET_ATTR_FAMILY, self.family());
    }

    pub(super) fn encode(&self, revision: u8, b: &mut Buffer) {
        b.attr_str(IPSET_ATTR_SETNAME, &self.name);
        self.encode_type(b);
        b.attr_u8(IPSET_ATTR_REVISION, revision);
        b.nest(IPSET_ATTR_DATA, |b| self.encode_options(b));
    }

    fn encode_options(&self, b: &mut Buffer) {
        if self.marks {
            b.attr_be32(IPSET_ATTR_CADT_FLAGS | NLA_F_NET_BYTEORDER, IPSET_FLAG_WITH_SKBINFO);
        }
        if self.kind == SetKind::Port {
            b.attr_be16(IPSET_ATTR_PORT | NLA_F_NET_BYTEORDER, 0);
            b.attr_be16(IPSET_ATTR_PORT_TO | NLA_F_NET_BYTEORDER, u16::MAX);
        } else {
            // The default of the kernel, which enlarges the hash table when necessary.
            b.attr_be32(IPSET_ATTR_HASHSIZE | NLA_F_NET_BYTEORDER, 1024);
            b.attr_be32(IPSET_ATTR_MAXELEM | NLA_F_NET_BYTEORDER, self.max_elements);
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
    /// Number of its address family; `AF_UNSPEC` for types without addresses.
    pub family: u8,
    /// Number of rules and other sets that refer to it; it can be destroyed only if there are none.
    pub references: u32,
    /// Number of members; 0 from kernels that do not report it (before 4.9).
    pub elements: u32,
    /// Options of its members (`IPSET_FLAG_WITH_*`).
    pub options: u32,
    /// Largest number of members, if it is a hash.
    pub max_elements: Option<u32>,
    /// First and last port of its range, if it is a `bitmap:port`.
    pub ports: Option<(u16, u16)>,
    /// Default lifetime of its members in seconds; with 0 only members with their own timeout expire.
    pub timeout: Option<u32>,
    /// Prefix length to which it truncates addresses.
    pub netmask: Option<u8>,
}

impl SetInfo {
    /// Decodes one set of a listing.
    pub fn decode(body: Attrs<'_>) -> Result<SetInfo, DecodeError> {
        let data = body.clone().need(IPSET_ATTR_DATA, "set data")?;
        let find = |kind| data.nested().find(kind);
        let number = |kind, field| find(kind).map(|a| a.be32(field)).transpose();
        let port = |kind| find(kind).map(|a| a.be16("port range")).transpose();
        Ok(SetInfo {
            name: body.clone().need(IPSET_ATTR_SETNAME, "set name")?.str("set name")?.to_owned(),
            kind: body.clone().need(IPSET_ATTR_TYPENAME, "set type")?.str("set type")?.to_owned(),
            family: body.need(IPSET_ATTR_FAMILY, "set family")?.u8("set family")?,
            references: number(IPSET_ATTR_REFERENCES, "references")?
                .ok_or(DecodeError::Missing("references"))?,
            elements: number(IPSET_ATTR_ELEMENTS, "elements")?.unwrap_or(0),
            options: number(IPSET_ATTR_CADT_FLAGS, "options")?.unwrap_or(0),
            max_elements: number(IPSET_ATTR_MAXELEM, "largest number of elements")?,
            ports: port(IPSET_ATTR_PORT)?.zip(port(IPSET_ATTR_PORT_TO)?),
            timeout: number(IPSET_ATTR_TIMEOUT, "timeout")?,
            netmask: find(IPSET_ATTR_NETMASK).map(|a| a.u8("netmask")).transpose()?,
        })
    }

    /// Whether the set can be used instead of `new`: it has the same type, family and mark support, room for at least
    /// as many members, and no timeout and no netmask. Its name is not compared; counters and comments are allowed.
    pub fn fits(&self, new: &NewSet) -> bool {
        let room = match new.kind {
            SetKind::Port => self.ports == Some((0, u16::MAX)),
            _ => self.max_elements.is_some_and(|max| max >= new.max_elements),
        };
        let options = if new.marks { IPSET_FLAG_WITH_SKBINFO } else { 0 };
        self.kind == new.kind.name()
            && self.family == new.family()
            && self.options & !(IPSET_FLAG_WITH_COUNTERS | IPSET_FLAG_WITH_COMMENT) == options
            && self.timeout.is_none()
            && self.netmask.is_none()
            && room
    }
}

/// The oldest and the newest revision of a type that the kernel supports.
pub(super) fn decode_revisions(body: Attrs<'_>) -> Result<(u8, u8), DecodeError> {
    let newest = body.clone().need(IPSET_ATTR_REVISION, "type revision")?.u8("type revision")?;
    let oldest = body.find(IPSET_ATTR_REVISION_MIN).map_or(Ok(newest), |a| a.u8("oldest type revision"))?;
    Ok((oldest, newest))
}
