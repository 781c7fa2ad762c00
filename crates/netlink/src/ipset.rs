//! Sets of the `ipset` command (`linux/netfilter/ipset/ip_set.h`): which there are, what is in them, and removing
//! them.
//!
//! In goes a set's name, out come [`SetInfo`]s and [`Member`]s. Every request says which version of the protocol it
//! speaks, so each function asks the kernel first; that answer also tells whether the kernel has sets at all. One
//! that does not has no set of any name, which is no error. The subsystem has errors of its own above the system's
//! (4096 and up); they get words here, since the C library has none for them.

use crate::message::{Attr, Attrs, Buffer, EXCLUSIVE, Message, attrs};
use crate::{Error, Malformed, Result, Socket};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const SUBSYSTEM: u16 = 6 << 8;
const CMD_PROTOCOL: u16 = SUBSYSTEM | 1;
const CMD_DESTROY: u16 = SUBSYSTEM | 3;
const CMD_FLUSH: u16 = SUBSYSTEM | 4;
const CMD_LIST: u16 = SUBSYSTEM | 7;

const PROTOCOL: u16 = 1;
const SET_NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const FAMILY: u16 = 5;
const FLAGS: u16 = 6;
const DATA: u16 = 7;
const MEMBERS: u16 = 8;
const PROTOCOL_MIN: u16 = 10;

const DATA_IP: u16 = 1;
const DATA_PORT: u16 = 4;
const DATA_PROTOCOL: u16 = 7;
const DATA_ELEMENTS: u16 = 24;
const DATA_REFERENCES: u16 = 25;
const IP_V4: u16 = 1;
const IP_V6: u16 = 2;

/// Versions of the protocol that we speak; what we use of them is the same in both.
const OLDEST: u8 = 6;
const NEWEST: u8 = 7;
/// List no members.
const FLAG_HEADER: u32 = 1 << 2;

/// `struct nfgenmsg`. The subsystem ignores the family, and `ipset` itself always says this one.
const HEADER: [u8; 4] = [libc::AF_INET as u8, 0, 0, 0];

/// A set, without its members.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

/// A member of a set, as far as it is made of these: all there is in `hash:ip`, `hash:ip,port` and `bitmap:port`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Its address, or the first one if it has several.
    pub ip: Option<IpAddr>,
    /// Its port.
    pub port: Option<u16>,
    /// The transport protocol that the port belongs to; a `bitmap:port` does not know it.
    pub protocol: Option<u8>,
}

/// All sets of the namespace.
pub fn names(socket: &mut Socket) -> Result<Vec<SetInfo>> {
    let Some(version) = version(socket)? else { return Ok(Vec::new()) };
    let mut sets = Vec::new();
    let fill = |b: &mut Buffer| {
        begin(b, version);
        b.attr_be32(FLAGS, FLAG_HEADER);
    };
    let each = |sets: &mut Vec<SetInfo>, m: Message<'_>| {
        sets.push(SetInfo::decode(body(&m)?)?);
        Ok(())
    };
    socket.dump(CMD_LIST, "list sets", &mut sets, fill, Vec::clear, each).map_err(explain)?;
    Ok(sets)
}

/// The members of a set, in no order. A set that does not exist is an error ([`Error::is_not_found`]).
pub fn members(socket: &mut Socket, name: &str) -> Result<Vec<Member>> {
    let operation = format!("list the members of set {name}");
    let Some(version) = version(socket)? else {
        let source = io::Error::from_raw_os_error(libc::ENOENT);
        return Err(Error::Refused { operation, source, detail: Some("this kernel has no sets".into()) });
    };
    let mut members = Vec::new();
    let fill = |b: &mut Buffer| {
        begin(b, version);
        b.attr_str(SET_NAME, name);
    };
    let each = |members: &mut Vec<Member>, m: Message<'_>| decode_members(body(&m)?, members);
    socket.dump(CMD_LIST, &operation, &mut members, fill, Vec::clear, each).map_err(explain)?;
    Ok(members)
}

/// Removes a set and its members; false if there is none of that name. One that something refers to is refused.
pub fn destroy(socket: &mut Socket, name: &str) -> Result<bool> {
    on_set(socket, CMD_DESTROY, "destroy", name)
}

/// Removes all members of a set; false if there is no set of that name.
pub fn flush(socket: &mut Socket, name: &str) -> Result<bool> {
    on_set(socket, CMD_FLUSH, "flush", name)
}

/// A request that needs nothing but a name. It always has one: without, the kernel would take it for every set.
fn on_set(socket: &mut Socket, command: u16, verb: &str, name: &str) -> Result<bool> {
    let Some(version) = version(socket)? else { return Ok(false) };
    // Exclusive, or the kernel takes it for `ipset -exist` and keeps to itself that there was no such set.
    let result = socket.request(command, EXCLUSIVE, &format!("{verb} set {name}"), |b| {
        begin(b, version);
        b.attr_str(SET_NAME, name);
    });
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(explain(e)),
    }
}

/// The version of the protocol to speak with this kernel; `None` if it has no sets.
fn version(socket: &mut Socket) -> Result<Option<u8>> {
    let operation = "agree on a version of the ipset protocol";
    let spoken = socket.ask(CMD_PROTOCOL, operation, |b| begin(b, NEWEST), |m| decode_versions(body(m)?));
    match spoken {
        Ok((oldest, newest)) if oldest <= NEWEST && newest >= OLDEST => Ok(Some(newest.min(NEWEST))),
        Ok((_, newest)) => Err(Error::Malformed {
            operation: operation.into(),
            source: Malformed::Unknown { what: "protocol version", value: newest.into() },
        }),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(explain(e)),
    }
}

/// Whether this is how a kernel refuses to speak about sets because it does not know them: `nfnetlink` says `EINVAL`
/// for a subsystem that is not there, containers and old kernels have their own words.
fn is_absent(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EINVAL | libc::ENOENT | libc::EPROTONOSUPPORT | libc::EOPNOTSUPP))
}

/// How every request begins.
fn begin(b: &mut Buffer, version: u8) {
    b.raw(&HEADER);
    b.attr_u8(PROTOCOL, version);
}

/// What is behind the `nfgenmsg` of a message.
fn body<'a>(m: &Message<'a>) -> Result<Attrs<'a>, Malformed> {
    Ok(attrs(m.body.get(HEADER.len()..).ok_or(Malformed::Short("ipset message"))?))
}

/// The oldest and the newest version the kernel speaks. The first kernels spoke one only.
fn decode_versions(body: Attrs<'_>) -> Result<(u8, u8), Malformed> {
    let newest = body.clone().need(PROTOCOL, "protocol version")?.u8("protocol version")?;
    let oldest = body.find(PROTOCOL_MIN).map_or(Ok(newest), |a| a.u8("oldest protocol version"))?;
    Ok((oldest, newest))
}

impl SetInfo {
    /// Reads one set of a listing.
    pub fn decode(body: Attrs<'_>) -> Result<SetInfo, Malformed> {
        let data = body.clone().need(DATA, "set data")?;
        let count = |kind, what| data.nested().find(kind).map(|a| a.be32(what)).transpose();
        Ok(SetInfo {
            name: body.clone().need(SET_NAME, "set name")?.str("set name")?.to_owned(),
            kind: body.clone().need(TYPE_NAME, "set type")?.str("set type")?.to_owned(),
            family: body.need(FAMILY, "set family")?.u8("set family")?,
            references: count(DATA_REFERENCES, "references")?.ok_or(Malformed::Missing("references"))?,
            elements: count(DATA_ELEMENTS, "elements")?.unwrap_or(0),
        })
    }
}

impl Member {
    /// Reads the attributes of one member.
    pub fn decode(data: Attrs<'_>) -> Result<Member, Malformed> {
        Ok(Member {
            ip: data.clone().find(DATA_IP).map(|a| decode_ip(&a)).transpose()?,
            port: data.clone().find(DATA_PORT).map(|a| a.be16("member's port")).transpose()?,
            protocol: data.find(DATA_PROTOCOL).map(|a| a.u8("member's protocol")).transpose()?,
        })
    }
}

/// Reads the members in one message of a listing.
pub fn decode_members(body: Attrs<'_>, into: &mut Vec<Member>) -> Result<(), Malformed> {
    let Some(list) = body.find(MEMBERS) else { return Ok(()) };
    for member in list.nested().filter(|a| a.kind == DATA) {
        into.push(Member::decode(member.nested())?);
    }
    Ok(())
}

fn decode_ip(ip: &Attr<'_>) -> Result<IpAddr, Malformed> {
    if let Some(v4) = ip.nested().find(IP_V4) {
        return Ok(Ipv4Addr::from(v4.be32("member's address")?).into());
    }
    let v6 = ip.nested().need(IP_V6, "member's address")?.value;
    let octets = <[u8; 16]>::try_from(v6).map_err(|_| Malformed::Short("member's address"))?;
    Ok(Ipv6Addr::from(octets).into())
}

/// Puts words to the subsystem's own errors (`enum ipset_errno`).
fn explain(error: Error) -> Error {
    let Error::Refused { operation, source, detail: None } = error else { return error };
    let words = match source.raw_os_error() {
        Some(4097) => Some("the kernel speaks another version of the protocol"),
        Some(4098) => Some("the kernel has no sets of this type"),
        Some(4099) => Some("there are too many sets"),
        Some(4100) => Some("a rule or another set uses it"),
        Some(4103) => Some("it has this member already, or lacks the one to be removed"),
        _ => None,
    };
    Error::Refused { operation, source, detail: words.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As the kernel writes a member: every value marked as in network order, addresses in a nest of their own.
    fn encode(b: &mut Buffer, member: &Member) {
        const NETWORK_ORDER: u16 = 0x4000;
        b.nest(DATA, |b| {
            match member.ip {
                Some(IpAddr::V4(ip)) => b.nest(DATA_IP, |b| b.attr(IP_V4 | NETWORK_ORDER, &ip.octets())),
                Some(IpAddr::V6(ip)) => b.nest(DATA_IP, |b| b.attr(IP_V6 | NETWORK_ORDER, &ip.octets())),
                None => {}
            }
            if let Some(port) = member.port {
                b.attr_be16(DATA_PORT | NETWORK_ORDER, port);
            }
            if let Some(protocol) = member.protocol {
                b.attr_u8(DATA_PROTOCOL, protocol);
            }
        });
    }

    prop_compose! {
        fn member()(ip: Option<IpAddr>, port: Option<u16>, protocol: Option<u8>) -> Member {
            Member { ip, port, protocol }
        }
    }

    fn set(b: &mut Buffer, elements: Option<u32>) {
        b.attr_u8(PROTOCOL, 7);
        b.attr_str(SET_NAME, "KUBE-CLUSTER-IP");
        b.attr_str(TYPE_NAME, "hash:ip,port");
        b.attr_u8(FAMILY, 10);
        b.nest(DATA, |b| {
            b.attr_be32(DATA_REFERENCES, 3);
            if let Some(elements) = elements {
                b.attr_be32(DATA_ELEMENTS, elements);
            }
        });
    }

    proptest! {
        #[test]
        fn members_read_back(all in prop::collection::vec(member(), 0..20)) {
            let mut b = Buffer::default();
            b.attr_str(SET_NAME, "set");
            b.nest(MEMBERS, |b| all.iter().for_each(|m| encode(b, m)));
            let mut read = Vec::new();
            decode_members(attrs(b.bytes()), &mut read).unwrap();
            prop_assert_eq!(read, all);
        }

        #[test]
        fn noise_is_no_panic(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SetInfo::decode(attrs(&garbage));
            let _ = decode_members(attrs(&garbage), &mut Vec::new());
            let _ = decode_versions(attrs(&garbage));
        }

        #[test]
        fn what_is_cut_short_is_no_panic(all in prop::collection::vec(member(), 1..5), cut: prop::sample::Index) {
            let mut b = Buffer::default();
            set(&mut b, Some(1));
            b.nest(MEMBERS, |b| all.iter().for_each(|m| encode(b, m)));
            let cut = &b.bytes()[..cut.index(b.len())];
            let _ = SetInfo::decode(attrs(cut));
            let _ = decode_members(attrs(cut), &mut Vec::new());
        }
    }

    #[test]
    fn a_set_reads_back_and_an_old_kernel_does_not_count() {
        for elements in [Some(5), None] {
            let mut b = Buffer::default();
            set(&mut b, elements);
            let info = SetInfo::decode(attrs(b.bytes())).unwrap();
            assert_eq!((info.name.as_str(), info.kind.as_str()), ("KUBE-CLUSTER-IP", "hash:ip,port"));
            assert_eq!((info.family, info.references, info.elements), (10, 3, elements.unwrap_or(0)));
        }
    }

    #[test]
    fn an_address_of_an_odd_length_is_an_error() {
        let mut b = Buffer::default();
        b.nest(DATA_IP, |b| b.attr(IP_V6, &[0; 4]));
        assert_eq!(Member::decode(attrs(b.bytes())), Err(Malformed::Short("member's address")));
    }

    #[test]
    fn kernels_of_one_version_and_of_several_are_understood() {
        let mut b = Buffer::default();
        b.attr_u8(PROTOCOL, 6);
        assert_eq!(decode_versions(attrs(b.bytes())), Ok((6, 6)));
        b.attr_u8(PROTOCOL_MIN, 5);
        assert_eq!(decode_versions(attrs(b.bytes())), Ok((5, 6)));
    }

    #[test]
    fn a_kernel_without_sets_is_told_from_one_that_refuses() {
        let refused = |errno| Error::Refused {
            operation: "ask".into(),
            source: io::Error::from_raw_os_error(errno),
            detail: None,
        };
        assert!(is_absent(&refused(libc::EINVAL)));
        assert!(!is_absent(&refused(libc::EPERM)));
        assert!(explain(refused(4100)).to_string().contains("a rule or another set uses it"));
    }
}
