//! Connection tracking: listing UDP flows and deleting those that lead nowhere; where one was meant to go.
//!
//! The kernel can filter a listing by protocol and original destination (`CTA_FILTER`, Linux 5.8); where it
//! cannot, it sends more than was asked, and the reader sorts out. Deleting names a flow by its original
//! direction, so a flow that ended meanwhile is simply not found.

use crate::message::{Attrs, Buffer, attrs};
use crate::{Malformed, Result, Socket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// `IPS_DST_NAT`
const DST_NAT: u32 = 1 << 5;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;

/// UDP's protocol number.
pub const UDP: u8 = 17;

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// Transport protocol.
    pub protocol: u8,
    /// From port.
    pub source_port: u16,
    /// To port.
    pub destination_port: u16,
}

/// A tracked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// As the client sent it.
    pub original: Tuple,
    /// As its answer comes back: from where the flow was led to.
    pub reply: Tuple,
    /// Its zone; 0 is everybody's.
    pub zone: u16,
    /// Its destination was translated by a rule. What ipvs leads elsewhere is not.
    pub translated: bool,
}

/// Which flows to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Transport protocol.
    pub protocol: u8,
    /// Original destination, if only one is of interest.
    pub destination: Option<(IpAddr, u16)>,
}

fn header(v6: bool) -> [u8; 4] {
    [if v6 { 10 } else { 2 }, 0, 0, 0]
}

/// Lists the flows of one family that match, as far as the kernel can tell.
pub fn list(socket: &mut Socket, v6: bool, filter: Filter) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    socket.dump(
        GET,
        "list connections",
        &mut flows,
        |b: &mut Buffer| {
            b.raw(&header(v6));
            encode_filter(b, filter);
        },
        Vec::clear,
        |flows, m| {
            let body = m.body.get(4..).ok_or(Malformed::Short("conntrack message"))?;
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

/// Deletes a flow. Whether it was still there comes back.
pub fn delete(socket: &mut Socket, flow: &Flow) -> Result<bool> {
    let operation = format!("delete the connection to {}", flow.original.destination);
    let result = socket.request(DELETE, 0, &operation, |b| {
        b.raw(&header(flow.original.source.is_ipv6()));
        encode_tuple(b, TUPLE_ORIG, &flow.original);
        if flow.zone != 0 {
            b.attr_be16(ZONE, flow.zone);
        }
    });
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(e),
    }
}

/// The flow whose answers look like `reply`; none if there is none.
pub fn find(socket: &mut Socket, reply: &Tuple) -> Result<Option<Flow>> {
    let found = socket.ask(
        GET,
        "look up a connection",
        |b| {
            b.raw(&header(reply.source.is_ipv6()));
            encode_tuple(b, TUPLE_REPLY, reply);
        },
        |m| decode(attrs(m.body.get(4..).ok_or(Malformed::Short("conntrack message"))?)),
    );
    match found {
        Err(e) if e.is_not_found() => Ok(None),
        other => other,
    }
}

fn encode_filter(b: &mut Buffer, filter: Filter) {
    // Bits of `CTA_FILTER_F_CTA_*` (nf_internals.h): which parts of the tuple below are to be compared.
    const IP_DST: u32 = 1 << 1;
    const PROTO_NUM: u32 = 1 << 3;
    const PROTO_DST_PORT: u32 = 1 << 5;
    let mut flags = PROTO_NUM;
    // The kernel compares IPv6 addresses the wrong way round (`ctnetlink_filter_match_tuple` takes equal ones for
    // different, seen in 6.18), so there only the port is left to it.
    let address = filter.destination.map(|(address, _)| address).filter(IpAddr::is_ipv4);
    b.nest(TUPLE_ORIG, |b| {
        if let Some(address) = address {
            b.nest(TUPLE_IP, |b| encode_address(b, 2, address));
        }
        b.nest(TUPLE_PROTO, |b| {
            b.attr_u8(1, filter.protocol);
            if let Some((_, port)) = filter.destination {
                b.attr_be16(3, port);
            }
        });
    });
    if filter.destination.is_some() {
        flags |= PROTO_DST_PORT | if address.is_some() { IP_DST } else { 0 };
    }
    b.nest(FILTER, |b| b.attr_u32(1, flags));
}

fn encode_address(b: &mut Buffer, kind: u16, address: IpAddr) {
    // v4: source 1, destination 2; v6: source 3, destination 4.
    match address {
        IpAddr::V4(a) => b.attr(kind, &a.octets()),
        IpAddr::V6(a) => b.attr(kind + 2, &a.octets()),
    }
}

fn encode_tuple(b: &mut Buffer, kind: u16, tuple: &Tuple) {
    b.nest(kind, |b| {
        b.nest(TUPLE_IP, |b| {
            encode_address(b, 1, tuple.source);
            encode_address(b, 2, tuple.destination);
        });
        b.nest(TUPLE_PROTO, |b| {
            b.attr_u8(1, tuple.protocol);
            b.attr_be16(2, tuple.source_port);
            b.attr_be16(3, tuple.destination_port);
        });
    });
}

/// Reads a flow; `None` for protocols without ports.
pub fn decode(body: Attrs<'_>) -> Result<Option<Flow>, Malformed> {
    let tuple = |kind, what| decode_tuple(body.clone().need(kind, what)?.nested());
    let (Some(original), Some(reply)) =
        (tuple(TUPLE_ORIG, "original tuple")?, tuple(TUPLE_REPLY, "reply tuple")?)
    else {
        return Ok(None);
    };
    let zone = body.clone().find(ZONE).map_or(Ok(0), |a| a.be16("zone"))?;
    let status = body.clone().find(STATUS).map_or(Ok(0), |a| a.be32("status"))?;
    Ok(Some(Flow { original, reply, zone, translated: status & DST_NAT != 0 }))
}

fn decode_tuple(body: Attrs<'_>) -> Result<Option<Tuple>, Malformed> {
    let ip = body.clone().need(TUPLE_IP, "addresses")?.nested();
    let proto = body.need(TUPLE_PROTO, "protocol")?.nested();
    let address = |v4: u16| -> Result<IpAddr, Malformed> {
        if let Some(a) = ip.clone().find(v4) {
            return Ok(Ipv4Addr::from(a.be32("address")?).into());
        }
        let a = ip.clone().need(v4 + 2, "address")?.value;
        Ok(Ipv6Addr::from(<[u8; 16]>::try_from(a).map_err(|_| Malformed::Short("address"))?).into())
    };
    let (Some(source_port), Some(destination_port)) = (proto.clone().find(2), proto.clone().find(3)) else {
        return Ok(None);
    };
    Ok(Some(Tuple {
        source: address(1)?,
        destination: address(2)?,
        protocol: proto.need(1, "protocol number")?.u8("protocol number")?,
        source_port: source_port.be16("source port")?,
        destination_port: destination_port.be16("destination port")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_flow_reads_back_as_it_was_written() {
        for v6 in [false, true] {
            let flow = Flow { original: tuple(v6), reply: tuple(v6), zone: 3, translated: true };
            let mut b = Buffer::default();
            encode_tuple(&mut b, TUPLE_ORIG, &flow.original);
            encode_tuple(&mut b, TUPLE_REPLY, &flow.reply);
            b.attr_be16(ZONE, 3);
            b.attr_be32(STATUS, DST_NAT | 1);
            assert_eq!(decode(attrs(b.bytes())), Ok(Some(flow)));
        }
    }
}
