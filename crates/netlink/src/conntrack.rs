//! Connection tracking: lists, creates and deletes flows, and looks up the original destination of one flow.
//!
//! The kernel can filter a listing by protocol and original destination (`CTA_FILTER`, Linux 5.8); an older kernel
//! ignores the filter, so the caller has to filter again. A flow to delete is identified by its original direction; a
//! flow that has ended is not found. The constants have their names from `linux/netfilter/nfnetlink_conntrack.h`,
//! `linux/netfilter/nf_conntrack_common.h` (`IPS_*`) and, for the filter's bits, the kernel's
//! `net/netfilter/nf_internals.h`.

use crate::message::{Attrs, Buffer, attrs};
use crate::{DecodeError, Result, Socket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

mod create;

pub use create::{NewFlow, create};

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_GET: u16 = NFNL_SUBSYS_CTNETLINK << 8 | 1;
const IPCTNL_MSG_CT_DELETE: u16 = NFNL_SUBSYS_CTNETLINK << 8 | 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const IPS_DST_NAT: u32 = 1 << 5;

/// Size of `struct nfgenmsg`.
const NFGENMSG_LEN: usize = 4;

/// `IPPROTO_UDP`.
pub const UDP: u8 = libc::IPPROTO_UDP as u8;

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Transport protocol.
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl Tuple {
    /// The direction of UDP datagrams between two addresses.
    pub fn udp(source: SocketAddr, destination: SocketAddr) -> Tuple {
        Tuple {
            source: source.ip(),
            destination: destination.ip(),
            protocol: UDP,
            source_port: source.port(),
            destination_port: destination.port(),
        }
    }

    /// The other direction, without translation.
    pub fn reversed(&self) -> Tuple {
        Tuple {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// A tracked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The direction from the client, before translation.
    pub original: Tuple,
    /// The direction of the replies; its source is the endpoint that the flow was translated to.
    pub reply: Tuple,
    /// Its zone; 0 is the default zone.
    pub zone: u16,
    /// Whether a rule translated its destination (`IPS_DST_NAT`). IPVS translates destinations without this flag.
    pub translated: bool,
}

/// Selects the flows to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Transport protocol.
    pub protocol: u8,
    /// Only flows to this original destination.
    pub destination: Option<(IpAddr, u16)>,
}

/// `struct nfgenmsg`: family, version, resource id.
fn header(v6: bool) -> [u8; NFGENMSG_LEN] {
    [if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8, 0, 0, 0]
}

/// Lists the flows of one family and protocol. Flows to other destinations are left out only if the kernel filters.
pub fn list(socket: &mut Socket, v6: bool, filter: Filter) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    socket.dump(
        IPCTNL_MSG_CT_GET,
        "list connections",
        &mut flows,
        |b: &mut Buffer| {
            b.raw(&header(v6));
            encode_filter(b, filter);
        },
        Vec::clear,
        |flows, m| {
            let body = m.body.get(NFGENMSG_LEN..).ok_or(DecodeError::Truncated("conntrack message"))?;
            if let Some(flow) = decode(attrs(body))?
                && flow.original.protocol == filter.protocol
            {
                flows.push(flow);
            }
            Ok(())
        },
    )?;
    Ok(flows)
}

/// Deletes a flow; false if it no longer exists.
pub fn delete(socket: &mut Socket, flow: &Flow) -> Result<bool> {
    let operation = format!("delete the connection to {}", flow.original.destination);
    let result = socket.request(IPCTNL_MSG_CT_DELETE, 0, &operation, |b| {
        b.raw(&header(flow.original.source.is_ipv6()));
        encode_tuple(b, CTA_TUPLE_ORIG, &flow.original);
        if flow.zone != 0 {
            b.attr_be16(CTA_ZONE, flow.zone);
        }
    });
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(e),
    }
}

/// The flow with this reply direction, if there is one.
pub fn find(socket: &mut Socket, reply: &Tuple) -> Result<Option<Flow>> {
    let found = socket.query(
        IPCTNL_MSG_CT_GET,
        "look up a connection",
        |b| {
            b.raw(&header(reply.source.is_ipv6()));
            encode_tuple(b, CTA_TUPLE_REPLY, reply);
        },
        |m| decode(attrs(m.body.get(NFGENMSG_LEN..).ok_or(DecodeError::Truncated("conntrack message"))?)),
    );
    match found {
        Err(e) if e.is_not_found() => Ok(None),
        other => other,
    }
}

fn encode_filter(b: &mut Buffer, filter: Filter) {
    // The fields of the tuple that the kernel compares.
    const CTA_FILTER_F_CTA_IP_DST: u32 = 1 << 1;
    const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
    const CTA_FILTER_F_CTA_PROTO_DST_PORT: u32 = 1 << 5;
    let mut flags = CTA_FILTER_F_CTA_PROTO_NUM;
    // `ctnetlink_filter_match_tuple` treats equal IPv6 addresses as different (seen in 6.18), so for IPv6 the filter
    // has only the port.
    let address = filter.destination.map(|(address, _)| address).filter(IpAddr::is_ipv4);
    b.nest(CTA_TUPLE_ORIG, |b| {
        if let Some(address) = address {
            b.nest(CTA_TUPLE_IP, |b| encode_destination(b, address));
        }
        b.nest(CTA_TUPLE_PROTO, |b| {
            b.attr_u8(CTA_PROTO_NUM, filter.protocol);
            if let Some((_, port)) = filter.destination {
                b.attr_be16(CTA_PROTO_DST_PORT, port);
            }
        });
    });
    if filter.destination.is_some() {
        flags |= CTA_FILTER_F_CTA_PROTO_DST_PORT;
        flags |= if address.is_some() { CTA_FILTER_F_CTA_IP_DST } else { 0 };
    }
    b.nest(CTA_FILTER, |b| b.attr_u32(CTA_FILTER_ORIG_FLAGS, flags));
}

fn encode_source(b: &mut Buffer, address: IpAddr) {
    match address {
        IpAddr::V4(a) => b.attr(CTA_IP_V4_SRC, &a.octets()),
        IpAddr::V6(a) => b.attr(CTA_IP_V6_SRC, &a.octets()),
    }
}

fn encode_destination(b: &mut Buffer, address: IpAddr) {
    match address {
        IpAddr::V4(a) => b.attr(CTA_IP_V4_DST, &a.octets()),
        IpAddr::V6(a) => b.attr(CTA_IP_V6_DST, &a.octets()),
    }
}

fn encode_tuple(b: &mut Buffer, kind: u16, tuple: &Tuple) {
    b.nest(kind, |b| {
        b.nest(CTA_TUPLE_IP, |b| {
            encode_source(b, tuple.source);
            encode_destination(b, tuple.destination);
        });
        b.nest(CTA_TUPLE_PROTO, |b| {
            b.attr_u8(CTA_PROTO_NUM, tuple.protocol);
            b.attr_be16(CTA_PROTO_SRC_PORT, tuple.source_port);
            b.attr_be16(CTA_PROTO_DST_PORT, tuple.destination_port);
        });
    });
}

/// Decodes a flow; `None` for protocols without ports.
pub fn decode(body: Attrs<'_>) -> Result<Option<Flow>, DecodeError> {
    let tuple = |kind, field| decode_tuple(body.clone().need(kind, field)?.nested());
    let (Some(original), Some(reply)) =
        (tuple(CTA_TUPLE_ORIG, "original tuple")?, tuple(CTA_TUPLE_REPLY, "reply tuple")?)
    else {
        return Ok(None);
    };
    let zone = body.clone().find(CTA_ZONE).map_or(Ok(0), |a| a.be16("zone"))?;
    let status = body.clone().find(CTA_STATUS).map_or(Ok(0), |a| a.be32("status"))?;
    Ok(Some(Flow { original, reply, zone, translated: status & IPS_DST_NAT != 0 }))
}

fn decode_tuple(body: Attrs<'_>) -> Result<Option<Tuple>, DecodeError> {
    let ip = body.clone().need(CTA_TUPLE_IP, "addresses")?.nested();
    let proto = body.need(CTA_TUPLE_PROTO, "protocol")?.nested();
    let address = |v4: u16, v6: u16| -> Result<IpAddr, DecodeError> {
        if let Some(a) = ip.clone().find(v4) {
            return Ok(Ipv4Addr::from(a.be32("address")?).into());
        }
        let a = ip.clone().need(v6, "address")?.value;
        Ok(Ipv6Addr::from(<[u8; 16]>::try_from(a).map_err(|_| DecodeError::Truncated("address"))?).into())
    };
    let port = |kind| proto.clone().find(kind);
    let (Some(source_port), Some(destination_port)) = (port(CTA_PROTO_SRC_PORT), port(CTA_PROTO_DST_PORT))
    else {
        return Ok(None);
    };
    Ok(Some(Tuple {
        source: address(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?,
        destination: address(CTA_IP_V4_DST, CTA_IP_V6_DST)?,
        protocol: proto.clone().need(CTA_PROTO_NUM, "protocol number")?.u8("protocol number")?,
        source_port: source_port.be16("source port")?,
        destination_port: destination_port.be16("destination port")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPS_EXPECTED: u32 = 1;

    fn tuple(v6: bool) -> Tuple {
        let address = |n: u8| -> IpAddr {
            if v6 {
                Ipv6Addr::new(0xfd, 0, 0, 0, 0, 0, 0, n.into()).into()
            } else {
                Ipv4Addr::new(10, 0, 0, n).into()
            }
        };
        Tuple {
            source: address(1),
            destination: address(2),
            protocol: UDP,
            source_port: 4000,
            destination_port: 53,
        }
    }

    #[test]
    fn an_encoded_flow_decodes_to_an_equal_value() {
        for v6 in [false, true] {
            let flow = Flow { original: tuple(v6), reply: tuple(v6), zone: 3, translated: true };
            let mut b = Buffer::default();
            encode_tuple(&mut b, CTA_TUPLE_ORIG, &flow.original);
            encode_tuple(&mut b, CTA_TUPLE_REPLY, &flow.reply);
            b.attr_be16(CTA_ZONE, 3);
            b.attr_be32(CTA_STATUS, IPS_DST_NAT | IPS_EXPECTED);
            assert_eq!(decode(attrs(b.bytes())), Ok(Some(flow)));
        }
    }
}
