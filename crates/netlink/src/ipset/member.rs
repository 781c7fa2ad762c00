//! Members of sets as values, encoded for requests and decoded from listings.

use super::wire::*;
use crate::DecodeError;
use crate::message::{Attr, Attrs, Buffer, NLA_F_NET_BYTEORDER};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A member of a set, with the fields of all types of [`SetKind`](super::SetKind). Decoding ignores other attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Its address, or the first of its addresses.
    pub ip: Option<IpAddr>,
    /// Its port.
    pub port: Option<u16>,
    /// The transport protocol of the port; members of a `bitmap:port` have none.
    pub protocol: Option<u8>,
    /// Its second address, or its network. The kernel ignores the host bits of a network.
    pub ip2: Option<IpAddr>,
    /// The prefix length of the network. The kernel always reports it for set types with a network, and refuses 0: all
    /// addresses are two networks of prefix length 1.
    pub cidr2: Option<u8>,
    /// Value and mask that are applied to the mark of a matching packet. Only members of sets created with `skbinfo`
    /// have it, and the kernel does not distinguish a value and mask of 0 from none.
    pub mark: Option<(u32, u32)>,
}

impl Member {
    /// Appends the member to a list of members; the kernel reports `line` if it refuses the member.
    pub(super) fn encode(&self, line: u32, b: &mut Buffer) {
        b.nest(IPSET_ATTR_DATA, |b| {
            self.encode_fields(b);
            b.attr_u32(IPSET_ATTR_LINENO, line);
        });
    }

    fn encode_fields(&self, b: &mut Buffer) {
        if let Some(ip) = self.ip {
            encode_ip(b, IPSET_ATTR_IP, ip);
        }
        if let Some(port) = self.port {
            b.attr_be16(IPSET_ATTR_PORT | NLA_F_NET_BYTEORDER, port);
        }
        if let Some(protocol) = self.protocol {
            b.attr_u8(IPSET_ATTR_PROTO, protocol);
        }
        if let Some(ip) = self.ip2 {
            encode_ip(b, IPSET_ATTR_IP2, ip);
        }
        if let Some(cidr) = self.cidr2 {
            b.attr_u8(IPSET_ATTR_CIDR2, cidr);
        }
        if let Some((mark, mask)) = self.mark {
            b.attr_be64(IPSET_ATTR_SKBMARK | NLA_F_NET_BYTEORDER, u64::from(mark) << 32 | u64::from(mask));
        }
    }

    /// Decodes the attributes of one member.
    pub fn decode(data: Attrs<'_>) -> Result<Member, DecodeError> {
        let find = |kind| data.clone().find(kind);
        let mark = find(IPSET_ATTR_SKBMARK).map(|a| a.be64("member's mark")).transpose()?;
        Ok(Member {
            ip: find(IPSET_ATTR_IP).map(|a| decode_ip(&a)).transpose()?,
            port: find(IPSET_ATTR_PORT).map(|a| a.be16("member's port")).transpose()?,
            protocol: find(IPSET_ATTR_PROTO).map(|a| a.u8("member's protocol")).transpose()?,
            ip2: find(IPSET_ATTR_IP2).map(|a| decode_ip(&a)).transpose()?,
            cidr2: find(IPSET_ATTR_CIDR2).map(|a| a.u8("member's prefix length")).transpose()?,
            mark: mark.map(|both| ((both >> 32) as u32, both as u32)),
        })
    }
}

/// Prints the member as `ipset save` does.
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

/// Decodes the members in one message of a listing.
pub fn decode_members(body: Attrs<'_>, into: &mut Vec<Member>) -> Result<(), DecodeError> {
    let Some(list) = body.find(IPSET_ATTR_ADT) else { return Ok(()) };
    for member in list.nested().filter(|a| a.kind == IPSET_ATTR_DATA) {
        into.push(Member::decode(member.nested())?);
    }
    Ok(())
}

fn encode_ip(b: &mut Buffer, kind: u16, ip: IpAddr) {
    b.nest(kind, |b| match ip {
        IpAddr::V4(ip) => b.attr(IPSET_ATTR_IPADDR_IPV4 | NLA_F_NET_BYTEORDER, &ip.octets()),
        IpAddr::V6(ip) => b.attr(IPSET_ATTR_IPADDR_IPV6 | NLA_F_NET_BYTEORDER, &ip.octets()),
    });
}

fn decode_ip(ip: &Attr<'_>) -> Result<IpAddr, DecodeError> {
    if let Some(v4) = ip.nested().find(IPSET_ATTR_IPADDR_IPV4) {
        return Ok(Ipv4Addr::from(v4.be32("member's address")?).into());
    }
    let v6 = ip.nested().need(IPSET_ATTR_IPADDR_IPV6, "member's address")?.value;
    let octets = <[u8; 16]>::try_from(v6).map_err(|_| DecodeError::Truncated("member's address"))?;
    Ok(Ipv6Addr::from(octets).into())
}
