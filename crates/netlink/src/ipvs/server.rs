//! Virtual and real servers as the kernel lists them (`ip_vs_genl_fill_service`, `ip_vs_genl_fill_dest`).

use super::wire::*;
use crate::DecodeError;
use crate::message::{Attrs, Buffer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `IP_VS_SVC_F_PERSISTENT`, a flag of a virtual server: all connections of a client go to the same real server.
pub const PERSISTENT: u32 = 1;

/// Identifies a virtual server: by its firewall mark, or by protocol, address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Transport protocol; 0 if a mark identifies it.
    pub protocol: u8,
    /// Address; the unspecified one of its family if a mark identifies it.
    pub address: IpAddr,
    /// Port; 0 if a mark identifies it, or if it serves all ports.
    pub port: u16,
    /// The firewall mark; 0 if protocol, address and port identify it.
    pub fwmark: u32,
}

/// The options of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceOptions<'a> {
    /// Name of its scheduler, such as `rr`. The kernel loads the module of that name, if there is one.
    pub scheduler: &'a str,
    /// `IP_VS_SVC_F_*`, such as [`PERSISTENT`].
    pub flags: u32,
    /// Persistence timeout in seconds, if the server is persistent.
    pub timeout: u32,
    /// Persistence granularity: for IPv4 the netmask as a number, for IPv6 the prefix length, which must not be 0 even
    /// if the server is not persistent.
    pub netmask: u32,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// Number of its address family.
    pub family: u8,
    /// Transport protocol; 0 if a mark identifies it.
    pub protocol: u8,
    /// Address; the unspecified one if a mark identifies it.
    pub address: IpAddr,
    /// Port; 0 if a mark identifies it, or if it serves all ports.
    pub port: u16,
    /// The firewall mark; 0 if protocol, address and port identify it.
    pub fwmark: u32,
    /// Name of its scheduler, such as `rr`.
    pub scheduler: String,
    /// `IP_VS_SVC_F_*`, such as [`PERSISTENT`].
    pub flags: u32,
    /// Persistence timeout in seconds.
    pub timeout: u32,
    /// Persistence granularity: for IPv4 the netmask as a number, for IPv6 the prefix length.
    pub netmask: u32,
}

/// The forwarding method of a real server (`IP_VS_CONN_F_FWD_MASK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// NAT.
    Masquerade,
    /// The real server is this host.
    Local,
    /// Through a tunnel.
    Tunnel,
    /// Direct routing, with an unchanged destination address.
    Route,
    /// To the packet's original destination (cache bypass).
    Bypass,
    /// Another method, by its number.
    Other(u32),
}

impl Forwarding {
    pub(super) fn from_code(code: u32) -> Forwarding {
        match code {
            IP_VS_CONN_F_MASQ => Forwarding::Masquerade,
            IP_VS_CONN_F_LOCALNODE => Forwarding::Local,
            IP_VS_CONN_F_TUNNEL => Forwarding::Tunnel,
            IP_VS_CONN_F_DROUTE => Forwarding::Route,
            IP_VS_CONN_F_BYPASS => Forwarding::Bypass,
            other => Forwarding::Other(other),
        }
    }
}

/// A real server of a virtual one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealServer {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Its weight in scheduling; with 0 it gets no new connections.
    pub weight: u32,
    /// Its forwarding method.
    pub forwarding: Forwarding,
    /// Number of established connections.
    pub active: u32,
    /// Number of connections that are not established.
    pub inactive: u32,
    /// Number of persistence entries.
    pub persistent: u32,
}

impl Key {
    /// The key of a virtual server with an address.
    pub fn new(protocol: u8, address: SocketAddr) -> Key {
        Key { protocol, address: address.ip(), port: address.port(), fwmark: 0 }
    }

    /// Number of its address family.
    pub fn family(&self) -> u8 {
        family(self.address)
    }

    pub(super) fn encode(&self, b: &mut Buffer) {
        b.attr_u16(IPVS_SVC_ATTR_AF, self.family().into());
        if self.fwmark != 0 {
            b.attr_u32(IPVS_SVC_ATTR_FWMARK, self.fwmark);
            return;
        }
        b.attr_u16(IPVS_SVC_ATTR_PROTOCOL, self.protocol.into());
        b.attr(IPVS_SVC_ATTR_ADDR, &encode_address(self.address));
        b.attr_be16(IPVS_SVC_ATTR_PORT, self.port);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fwmark != 0 {
            return write!(f, "virtual server fwmark {:#x}", self.fwmark);
        }
        let address = SocketAddr::new(self.address, self.port);
        match i32::from(self.protocol) {
            libc::IPPROTO_TCP => write!(f, "virtual server tcp {address}"),
            libc::IPPROTO_UDP => write!(f, "virtual server udp {address}"),
            libc::IPPROTO_SCTP => write!(f, "virtual server sctp {address}"),
            other => write!(f, "virtual server {other} {address}"),
        }
    }
}

impl ServiceOptions<'_> {
    /// Writes the options of a virtual server of this family.
    pub(super) fn encode(&self, family: u8, b: &mut Buffer) {
        b.attr_str(IPVS_SVC_ATTR_SCHED_NAME, self.scheduler);
        // `struct ip_vs_flags`: the flags, then the mask of the flags to set.
        b.attr(IPVS_SVC_ATTR_FLAGS, &[self.flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat());
        b.attr_u32(IPVS_SVC_ATTR_TIMEOUT, self.timeout);
        // The header declares network order, but for IPv6 the kernel uses a prefix length in host order.
        if family == AF_INET {
            b.attr_be32(IPVS_SVC_ATTR_NETMASK, self.netmask);
        } else {
            b.attr_u32(IPVS_SVC_ATTR_NETMASK, self.netmask);
        }
    }
}

impl VirtualServer {
    /// Its key.
    pub fn key(&self) -> Key {
        Key { protocol: self.protocol, address: self.address, port: self.port, fwmark: self.fwmark }
    }

    /// Its options.
    pub fn options(&self) -> ServiceOptions<'_> {
        let VirtualServer { scheduler, flags, timeout, netmask, .. } = self;
        ServiceOptions { scheduler, flags: *flags, timeout: *timeout, netmask: *netmask }
    }

    /// Decodes one virtual server of a listing.
    pub fn decode(body: Attrs<'_>) -> Result<VirtualServer, DecodeError> {
        let body = body.need(IPVS_CMD_ATTR_SERVICE, "virtual server")?.nested();
        let need = |kind, field| body.clone().need(kind, field);
        let family =
            narrow(need(IPVS_SVC_ATTR_AF, "address family")?.u16("address family")?, "address family")?;
        let fwmark = body.clone().find(IPVS_SVC_ATTR_FWMARK).map_or(Ok(0), |a| a.u32("firewall mark"))?;
        let (protocol, address, port) = if fwmark == 0 {
            let protocol = narrow(need(IPVS_SVC_ATTR_PROTOCOL, "protocol")?.u16("protocol")?, "protocol")?;
            let address = decode_address(family, need(IPVS_SVC_ATTR_ADDR, "virtual address")?.value)?;
            (protocol, address, need(IPVS_SVC_ATTR_PORT, "virtual port")?.be16("virtual port")?)
        } else {
            (0, unspecified(family)?, 0)
        };
        let netmask = need(IPVS_SVC_ATTR_NETMASK, "netmask")?;
        Ok(VirtualServer {
            family,
            protocol,
            address,
            port,
            fwmark,
            scheduler: need(IPVS_SVC_ATTR_SCHED_NAME, "scheduler")?.str("scheduler")?.to_owned(),
            flags: need(IPVS_SVC_ATTR_FLAGS, "flags")?.u32("flags")?,
            timeout: need(IPVS_SVC_ATTR_TIMEOUT, "timeout")?.u32("timeout")?,
            // In the byte order of `ServiceOptions::encode`.
            netmask: if family == AF_INET { netmask.be32("netmask")? } else { netmask.u32("netmask")? },
        })
    }
}

impl fmt::Display for VirtualServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key().fmt(f)
    }
}

impl RealServer {
    /// Decodes one real server of a listing. `family` is the virtual server's, for kernels that do not report the
    /// family of real servers (before 3.18). With tunnels the two may differ.
    pub fn decode(body: Attrs<'_>, family: u8) -> Result<RealServer, DecodeError> {
        let body = body.need(IPVS_CMD_ATTR_DEST, "real server")?.nested();
        let need = |kind, field| body.clone().need(kind, field);
        let number = |kind, field| need(kind, field)?.u32(field);
        let family = match body.clone().find(IPVS_DEST_ATTR_ADDR_FAMILY) {
            Some(own) => narrow(own.u16("address family")?, "address family")?,
            None => family,
        };
        Ok(RealServer {
            address: decode_address(family, need(IPVS_DEST_ATTR_ADDR, "real address")?.value)?,
            port: need(IPVS_DEST_ATTR_PORT, "real port")?.be16("real port")?,
            weight: number(IPVS_DEST_ATTR_WEIGHT, "weight")?,
            forwarding: Forwarding::from_code(number(IPVS_DEST_ATTR_FWD_METHOD, "forwarding method")?),
            active: number(IPVS_DEST_ATTR_ACTIVE_CONNS, "active connections")?,
            inactive: number(IPVS_DEST_ATTR_INACT_CONNS, "inactive connections")?,
            persistent: number(IPVS_DEST_ATTR_PERSIST_CONNS, "persistent connections")?,
        })
    }
}

pub(super) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// `union nf_inet_addr`.
pub(super) fn encode_address(address: IpAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(a) => octets[..4].copy_from_slice(&a.octets()),
        IpAddr::V6(a) => octets = a.octets(),
    }
    octets
}

fn decode_address(family: u8, bytes: &[u8]) -> Result<IpAddr, DecodeError> {
    let short = DecodeError::Truncated("address");
    match family {
        AF_INET => {
            let octets = bytes.first_chunk::<4>().ok_or(short)?;
            Ok(Ipv4Addr::from(*octets).into())
        }
        AF_INET6 => {
            let octets = bytes.first_chunk::<16>().ok_or(short)?;
            Ok(Ipv6Addr::from(*octets).into())
        }
        other => Err(DecodeError::Unknown { field: "address family", value: other.into() }),
    }
}

pub(super) fn unspecified(family: u8) -> Result<IpAddr, DecodeError> {
    decode_address(family, &[0; 16])
}

/// Families and protocols have 16 bits in IPVS messages and 8 bits elsewhere.
fn narrow(value: u16, field: &'static str) -> Result<u8, DecodeError> {
    value.try_into().map_err(|_| DecodeError::Unknown { field, value: value.into() })
}
