//! Creates the conntrack entry of a flow together with its translation, as if a rule had translated its first packet.

use super::{
    CTA_STATUS, CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_ZONE, NFNL_SUBSYS_CTNETLINK, Tuple, encode_tuple, header,
};
use crate::message::{Buffer, NLM_F_CREATE, NLM_F_EXCL};
use crate::{Result, Socket};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const IPCTNL_MSG_CT_NEW: u16 = NFNL_SUBSYS_CTNETLINK << 8;

const CTA_NAT_SRC: u16 = 6;
const CTA_TIMEOUT: u16 = 7;
const CTA_NAT_DST: u16 = 13;
const CTA_NAT_V4_MINIP: u16 = 1;
const CTA_NAT_V4_MAXIP: u16 = 2;
const CTA_NAT_PROTO: u16 = 3;
const CTA_NAT_V6_MINIP: u16 = 4;
const CTA_NAT_V6_MAXIP: u16 = 5;
const CTA_PROTONAT_PORT_MIN: u16 = 1;
const CTA_PROTONAT_PORT_MAX: u16 = 2;
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
/// The kernel sets it before it compares the status, and refuses to clear it (`ctnetlink_change_status`).
const IPS_CONFIRMED: u32 = 1 << 3;

/// A flow to create. It counts as answered, so rules see its packets as those of an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFlow {
    /// The direction from the client, before translation.
    pub original: Tuple,
    /// The source that the endpoint sees.
    pub source: SocketAddr,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Its zone; 0 is the default zone.
    pub zone: u16,
    /// The entry expires if no packet arrives for this long.
    pub timeout: Duration,
}

/// Creates a flow; false if one with the same original direction exists.
pub fn create(socket: &mut Socket, flow: &NewFlow) -> Result<bool> {
    let operation = format!("create the connection to {}", flow.original.destination);
    let result =
        socket.request(IPCTNL_MSG_CT_NEW, NLM_F_CREATE | NLM_F_EXCL, &operation, |b| encode(b, flow));
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.is_exists() => Ok(false),
        Err(e) => Err(e),
    }
}

fn encode(b: &mut Buffer, flow: &NewFlow) {
    b.raw(&header(flow.original.source.is_ipv6()));
    encode_tuple(b, CTA_TUPLE_ORIG, &flow.original);
    // Without translation; the kernel changes this direction when it sets up the translation.
    encode_tuple(b, CTA_TUPLE_REPLY, &flow.original.reversed());
    b.attr_be32(CTA_STATUS, IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED);
    b.attr_be32(CTA_TIMEOUT, u32::try_from(flow.timeout.as_secs()).unwrap_or(u32::MAX));
    encode_nat(b, CTA_NAT_DST, flow.endpoint);
    encode_nat(b, CTA_NAT_SRC, flow.source);
    if flow.zone != 0 {
        b.attr_be16(CTA_ZONE, flow.zone);
    }
}

/// Translation to one address and port.
fn encode_nat(b: &mut Buffer, kind: u16, to: SocketAddr) {
    b.nest(kind, |b| {
        match to.ip() {
            IpAddr::V4(ip) => {
                b.attr(CTA_NAT_V4_MINIP, &ip.octets());
                b.attr(CTA_NAT_V4_MAXIP, &ip.octets());
            }
            IpAddr::V6(ip) => {
                b.attr(CTA_NAT_V6_MINIP, &ip.octets());
                b.attr(CTA_NAT_V6_MAXIP, &ip.octets());
            }
        }
        b.nest(CTA_NAT_PROTO, |b| {
            b.attr_be16(CTA_PROTONAT_PORT_MIN, to.port());
            b.attr_be16(CTA_PROTONAT_PORT_MAX, to.port());
        });
    });
}
