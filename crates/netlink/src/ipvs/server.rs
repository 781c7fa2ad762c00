//! Virtual and real servers, as the kernel lists them (`ip_vs_genl_fill_service`, `ip_vs_genl_fill_dest`).

use super::{SERVER, SERVICE};
use crate::Malformed;
use crate::message::{Attrs, Buffer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(super) const SERVICE_FAMILY: u16 = 1;
pub(super) const SERVICE_PROTOCOL: u16 = 2;
pub(super) const SERVICE_ADDRESS: u16 = 3;
pub(super) const SERVICE_PORT: u16 = 4;
pub(super) const SERVICE_FWMARK: u16 = 5;
pub(super) const SERVICE_SCHEDULER: u16 = 6;
pub(super) const SERVICE_FLAGS: u16 = 7;
pub(super) const SERVICE_TIMEOUT: u16 = 8;
pub(super) const SERVICE_NETMASK: u16 = 9;

pub(super) const SERVER_ADDRESS: u16 = 1;
pub(super) const SERVER_PORT: u16 = 2;
pub(super) const SERVER_FORWARDING: u16 = 3;
pub(super) const SERVER_WEIGHT: u16 = 4;
pub(super) const SERVER_UPPER: u16 = 5;
pub(super) const SERVER_LOWER: u16 = 6;
pub(super) const SERVER_ACTIVE: u16 = 7;
pub(super) const SERVER_INACTIVE: u16 = 8;
pub(super) const SERVER_PERSISTENT: u16 = 9;
pub(super) const SERVER_FAMILY: u16 = 11;

pub(super) const IPV4: u8 = libc::AF_INET as u8;
pub(super) const IPV6: u8 = libc::AF_INET6 as u8;

/// Flag of a virtual server: a client stays with its real server.
pub const PERSISTENT: u32 = 1;

/// What a virtual server is known by: its firewall mark, or else protocol, address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Transport protocol; 0 if it is known by its mark.
    pub protocol: u8,
    /// Address; unspecified, and of the right family, if it is known by its mark.
    pub address: IpAddr,
    /// Port; 0 if it is known by its mark, or for all ports.
    pub port: u16,
    /// The firewall mark; 0 if it is known by protocol, address and port.
    pub fwmark: u32,
}

/// How a virtual server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour<'a> {
    /// Name of its scheduler, such as `rr`. The kernel loads the module of that name, if there is one.
    pub scheduler: &'a str,
    /// `IP_VS_SVC_F_*`, such as [`PERSISTENT`].
    pub flags: u32,
    /// How many seconds a client stays with its real server, if it does.
    pub timeout: u32,
    /// Which clients count as one when they stay: for IPv4 the mask as a number, for IPv6 the prefix's length, which
    /// must not be 0 even if clients do not stay.
    pub netmask: u32,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// Number of its address family.
    pub family: u8,
    /// Transport protocol; 0 if it is known by its mark.
    pub protocol: u8,
    /// Address; unspecified if it is known by its mark.
    pub address: IpAddr,
    /// Port; 0 if it is known by its mark, or for all ports.
    pub port: u16,
    /// The firewall mark it is known by; 0 if it is known by protocol, address and port.
    pub fwmark: u32,
    /// Name of its scheduler, such as `rr`.
    pub scheduler: String,
    /// `IP_VS_SVC_F_*`, such as [`PERSISTENT`].
    pub flags: u32,
    /// How many seconds a client stays with its real server.
    pub timeout: u32,
    /// Which clients count as one when they stay: for IPv4 the mask as a number, for IPv6 the prefix's length.
    pub netmask: u32,
}

/// How packets get to a real server (`IP_VS_CONN_F_FWD_MASK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// By NAT.
    Masquerade,
    /// It is this host.
    Local,
    /// Through a tunnel.
    Tunnel,
    /// On the link, with the address left as it is.
    Route,
    /// Past the virtual server, to where the packet was going.
    Bypass,
    /// Another one, as a number.
    Other(u32),
}

impl Forwarding {
    pub(super) fn from_code(code: u32) -> Forwarding {
        match code {
            0 => Forwarding::Masquerade,
            1 => Forwarding::Local,
            2 => Forwarding::Tunnel,
            3 => Forwarding::Route,
            4 => Forwarding::Bypass,
            other => Forwarding::Other(other),
        }
    }
}

/// A real server behind a virtual one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealServer {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Its share among its like; with 0 it gets nothing new.
    pub weight: u32,
    /// How packets get there.
    pub forwarding: Forwarding,
    /// Connections that are established.
    pub active: u32,
    /// Connections that are opening or closing.
    pub inactive: u32,
    /// Clients that stay.
    pub persistent: u32,
}

impl Key {
    /// That of a server which answers at an address.
    pub fn new(protocol: u8, address: SocketAddr) -> Key {
        Key { protocol, address: address.ip(), port: address.port(), fwmark: 0 }
    }

    /// Number of its address family.
    pub fn family(&self) -> u8 {
        family(self.address)
    }

    pub(super) fn encode(&self, b: &mut Buffer) {
        b.attr_u16(SERVICE_FAMILY, self.family().into());
        if self.fwmark != 0 {
            b.attr_u32(SERVICE_FWMARK, self.fwmark);
            return;
        }
        b.attr_u16(SERVICE_PROTOCOL, self.protocol.into());
        b.attr(SERVICE_ADDRESS, &encode_address(self.address));
        b.attr_be16(SERVICE_PORT, self.port);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fwmark != 0 {
            return write!(f, "the virtual server of mark {:#x}", self.fwmark);
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

impl Behaviour<'_> {
    /// Writes it, for a virtual server of this family.
    pub(super) fn encode(&self, family: u8, b: &mut Buffer) {
        b.attr_str(SERVICE_SCHEDULER, self.scheduler);
        // `struct ip_vs_flags`: the flags, then which of them count.
        b.attr(SERVICE_FLAGS, &[self.flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat());
        b.attr_u32(SERVICE_TIMEOUT, self.timeout);
        // Declared as in network order, but the kernel keeps an IPv6 prefix length there as it is.
        if family == IPV4 {
            b.attr_be32(SERVICE_NETMASK, self.netmask);
        } else {
            b.attr_u32(SERVICE_NETMASK, self.netmask);
        }
    }
}

impl VirtualServer {
    /// What it is known by.
    pub fn key(&self) -> Key {
        Key { protocol: self.protocol, address: self.address, port: self.port, fwmark: self.fwmark }
    }

    /// How it behaves.
    pub fn behaviour(&self) -> Behaviour<'_> {
        let VirtualServer { scheduler, flags, timeout, netmask, .. } = self;
        Behaviour { scheduler, flags: *flags, timeout: *timeout, netmask: *netmask }
    }

    /// Reads one virtual server of a listing.
    pub fn decode(body: Attrs<'_>) -> Result<VirtualServer, Malformed> {
        let body = body.need(SERVICE, "virtual server")?.nested();
        let need = |kind, what| body.clone().need(kind, what);
        let family =
            narrow(need(SERVICE_FAMILY, "address family")?.u16("address family")?, "address family")?;
        let fwmark = body.clone().find(SERVICE_FWMARK).map_or(Ok(0), |a| a.u32("firewall mark"))?;
        let (protocol, address, port) = if fwmark == 0 {
            let protocol = narrow(need(SERVICE_PROTOCOL, "protocol")?.u16("protocol")?, "protocol")?;
            let address = decode_address(family, need(SERVICE_ADDRESS, "virtual address")?.value)?;
            (protocol, address, need(SERVICE_PORT, "virtual port")?.be16("virtual port")?)
        } else {
            (0, unspecified(family)?, 0)
        };
        let netmask = need(SERVICE_NETMASK, "netmask")?;
        Ok(VirtualServer {
            family,
            protocol,
            address,
            port,
            fwmark,
            scheduler: need(SERVICE_SCHEDULER, "scheduler")?.str("scheduler")?.to_owned(),
            flags: need(SERVICE_FLAGS, "flags")?.u32("flags")?,
            timeout: need(SERVICE_TIMEOUT, "timeout")?.u32("timeout")?,
            // As it is written: see `Behaviour`.
            netmask: if family == IPV4 { netmask.be32("netmask")? } else { netmask.u32("netmask")? },
        })
    }
}

impl fmt::Display for VirtualServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key().fmt(f)
    }
}

impl RealServer {
    /// Reads one real server of a listing. One behind a tunnel may be of another family than the virtual server's;
    /// kernels too old for that (before 3.18) do not say which.
    pub fn decode(body: Attrs<'_>, family: u8) -> Result<RealServer, Malformed> {
        let body = body.need(SERVER, "real server")?.nested();
        let need = |kind, what| body.clone().need(kind, what);
        let number = |kind, what| need(kind, what)?.u32(what);
        let family = match body.clone().find(SERVER_FAMILY) {
            Some(own) => narrow(own.u16("address family")?, "address family")?,
            None => family,
        };
        Ok(RealServer {
            address: decode_address(family, need(SERVER_ADDRESS, "real address")?.value)?,
            port: need(SERVER_PORT, "real port")?.be16("real port")?,
            weight: number(SERVER_WEIGHT, "weight")?,
            forwarding: Forwarding::from_code(number(SERVER_FORWARDING, "forwarding method")?),
            active: number(SERVER_ACTIVE, "active connections")?,
            inactive: number(SERVER_INACTIVE, "inactive connections")?,
            persistent: number(SERVER_PERSISTENT, "persistent connections")?,
        })
    }
}

pub(super) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { IPV4 } else { IPV6 }
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

fn decode_address(family: u8, bytes: &[u8]) -> Result<IpAddr, Malformed> {
    let short = Malformed::Short("address");
    match family {
        IPV4 => {
            let octets = bytes.first_chunk::<4>().ok_or(short)?;
            Ok(Ipv4Addr::from(*octets).into())
        }
        IPV6 => {
            let octets = bytes.first_chunk::<16>().ok_or(short)?;
            Ok(Ipv6Addr::from(*octets).into())
        }
        other => Err(Malformed::Unknown { what: "address family", value: other.into() }),
    }
}

pub(super) fn unspecified(family: u8) -> Result<IpAddr, Malformed> {
    decode_address(family, &[0; 16])
}

/// Families and protocols have sixteen bits on this wire and eight everywhere else.
fn narrow(value: u16, what: &'static str) -> Result<u8, Malformed> {
    value.try_into().map_err(|_| Malformed::Unknown { what, value: value.into() })
}
