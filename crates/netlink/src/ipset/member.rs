//! Members of sets, as values: each writes itself as the kernel wants it and reads what the kernel lists.

use super::wire::{DATA, LINE, MEMBERS, NETWORK_ORDER};
use crate::Malformed;
use crate::message::{Attr, Attrs, Buffer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const IP: u16 = 1;
const PORT: u16 = 4;
const TRANSPORT: u16 = 7;
const IP2: u16 = 20;
const CIDR2: u16 = 21;
const MARK: u16 = 27;
const V4: u16 = 1;
const V6: u16 = 2;

/// A member of a set, as far as it is made of these: all there is in the types of [`SetKind`](super::SetKind).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Its address, or the first one if it has several.
    pub ip: Option<IpAddr>,
    /// Its port.
    pub port: Option<u16>,
    /// The transport protocol that the port belongs to; a `bitmap:port` does not know it.
    pub protocol: Option<u8>,
    /// Its second address, or the network it has in place of one. The kernel takes no notice of the host's part.
    pub ip2: Option<IpAddr>,
    /// The length of the network's prefix. There is always one where the set's type has a network, and it is not 0:
    /// the kernel takes no such network, two halves of it make up for that.
    pub cidr2: Option<u8>,
    /// What it makes of the mark of a packet that matches: value and mask. Only sets that were made for it have this
    /// (`skbinfo`), and none of them can tell a value and mask of 0 from nothing.
    pub mark: Option<(u32, u32)>,
}

impl Member {
    /// Writes it as one of many; an error then tells its `line`.
    pub(super) fn encode(&self, line: u32, b: &mut Buffer) {
        b.nest(DATA, |b| {
            self.encode_fields(b);
            b.attr_u32(LINE, line);
        });
    }

    fn encode_fields(&self, b: &mut Buffer) {
        if let Some(ip) = self.ip {
            encode_ip(b, IP, ip);
        }
        if let Some(port) = self.port {
            b.attr_be16(PORT | NETWORK_ORDER, port);
        }
        if let Some(protocol) = self.protocol {
            b.attr_u8(TRANSPORT, protocol);
        }
        if let Some(ip) = self.ip2 {
            encode_ip(b, IP2, ip);
        }
        if let Some(cidr) = self.cidr2 {
            b.attr_u8(CIDR2, cidr);
        }
        if let Some((mark, mask)) = self.mark {
            b.attr_be64(MARK | NETWORK_ORDER, u64::from(mark) << 32 | u64::from(mask));
        }
    }

    /// Reads the attributes of one member.
    pub fn decode(data: Attrs<'_>) -> Result<Member, Malformed> {
        let find = |kind| data.clone().find(kind);
        let mark = find(MARK).map(|a| a.be64("member's mark")).transpose()?;
        Ok(Member {
            ip: find(IP).map(|a| decode_ip(&a)).transpose()?,
            port: find(PORT).map(|a| a.be16("member's port")).transpose()?,
            protocol: find(TRANSPORT).map(|a| a.u8("member's protocol")).transpose()?,
            ip2: find(IP2).map(|a| decode_ip(&a)).transpose()?,
            cidr2: find(CIDR2).map(|a| a.u8("member's prefix length")).transpose()?,
            mark: mark.map(|both| ((both >> 32) as u32, both as u32)),
        })
    }
}

/// As `ipset` writes it.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.map(|number| match i32::from(number) {
            libc::IPPROTO_TCP => "tcp:".to_owned(),
            libc::IPPROTO_UDP => "udp:".to_owned(),
            libc::IPPROTO_SCTP => "sctp:".to_owned(),
            _ => format!("{number}:"),
        });
        let port = self.port.map(|port| format!("{}{port}", protocol.unwrap_or_default()));
        let cidr = self.cidr2.map(|cidr| format!("/{cidr}")).unwrap_or_default();
        let ip2 = self.ip2.map(|ip| format!("{ip}{cidr}"));
        let parts = [self.ip.map(|ip| ip.to_string()), port, ip2];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(","))?;
        self.mark.map_or(Ok(()), |(mark, mask)| write!(f, " skbmark {mark:#x}/{mask:#x}"))
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

fn encode_ip(b: &mut Buffer, kind: u16, ip: IpAddr) {
    b.nest(kind, |b| match ip {
        IpAddr::V4(ip) => b.attr(V4 | NETWORK_ORDER, &ip.octets()),
        IpAddr::V6(ip) => b.attr(V6 | NETWORK_ORDER, &ip.octets()),
    });
}

fn decode_ip(ip: &Attr<'_>) -> Result<IpAddr, Malformed> {
    if let Some(v4) = ip.nested().find(V4) {
        return Ok(Ipv4Addr::from(v4.be32("member's address")?).into());
    }
    let v6 = ip.nested().need(V6, "member's address")?.value;
    let octets = <[u8; 16]>::try_from(v6).map_err(|_| Malformed::Short("member's address"))?;
    Ok(Ipv6Addr::from(octets).into())
}
