//! IPVS: which virtual servers there are, what is behind them, and removing them (`linux/ip_vs.h`).
//!
//! In goes a [`VirtualServer`] as the name of itself, out come the kernel's virtual servers and their
//! [`RealServer`]s. A virtual server is found by its firewall mark, or else by protocol, address and port; the rest
//! of it says how it behaves. Addresses take sixteen bytes on the wire, of which IPv4 uses the first four; ports and
//! masks are in network order, everything else in the host's.

use crate::genl::Genl;
use crate::message::{Attrs, Buffer};
use crate::{Malformed, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

#[cfg(test)]
mod tests;

const NAME: &str = "IPVS";
const VERSION: u8 = 1;

const DELETE_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;
const GET_SERVER: u8 = 8;

const SERVICE: u16 = 1;
const SERVER: u16 = 2;

const SERVICE_FAMILY: u16 = 1;
const SERVICE_PROTOCOL: u16 = 2;
const SERVICE_ADDRESS: u16 = 3;
const SERVICE_PORT: u16 = 4;
const SERVICE_FWMARK: u16 = 5;
const SERVICE_SCHEDULER: u16 = 6;
const SERVICE_FLAGS: u16 = 7;
const SERVICE_TIMEOUT: u16 = 8;
const SERVICE_NETMASK: u16 = 9;

const SERVER_ADDRESS: u16 = 1;
const SERVER_PORT: u16 = 2;
const SERVER_FORWARDING: u16 = 3;
const SERVER_WEIGHT: u16 = 4;
const SERVER_ACTIVE: u16 = 7;
const SERVER_INACTIVE: u16 = 8;
const SERVER_PERSISTENT: u16 = 9;
const SERVER_FAMILY: u16 = 11;

const IPV4: u8 = libc::AF_INET as u8;
const IPV6: u8 = libc::AF_INET6 as u8;

/// Flag of a virtual server: a client stays with its real server.
pub const PERSISTENT: u32 = 1;

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
    fn from_code(code: u32) -> Forwarding {
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

/// Whether IPVS is loaded, and so may have something to tell. Unlike [`open`], this loads nothing.
pub fn is_loaded() -> bool {
    Path::new("/proc/thread-self/net/ip_vs").exists()
}

/// Opens the conversation; `None` if the kernel has no IPVS. It declares itself under the family's name, so a kernel
/// that has it as a module loads it.
pub fn open() -> Result<Option<Genl>> {
    Genl::open(NAME, VERSION)
}

/// All virtual servers of the namespace.
pub fn services(genl: &mut Genl) -> Result<Vec<VirtualServer>> {
    genl.list(GET_SERVICE, "list virtual servers", |_| {}, VirtualServer::decode)
}

/// The real servers behind a virtual one; none if that does not exist.
pub fn servers(genl: &mut Genl, service: &VirtualServer) -> Result<Vec<RealServer>> {
    let operation = format!("list what is behind {service}");
    let decode = |body: Attrs<'_>| RealServer::decode(body, service.family);
    genl.list(GET_SERVER, &operation, |b| b.nest(SERVICE, |b| service.encode_key(b)), decode)
}

/// Removes a virtual server with all that is behind it; false if it was gone already.
pub fn delete_service(genl: &mut Genl, service: &VirtualServer) -> Result<bool> {
    let operation = format!("delete {service}");
    let result = genl.request(DELETE_SERVICE, &operation, |b| b.nest(SERVICE, |b| service.encode_key(b)));
    match result {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.errno(), Some(libc::ESRCH | libc::ENOENT)) => Ok(false),
        Err(e) => Err(e),
    }
}

impl VirtualServer {
    /// Writes what it is known by.
    fn encode_key(&self, b: &mut Buffer) {
        b.attr_u16(SERVICE_FAMILY, self.family.into());
        if self.fwmark != 0 {
            b.attr_u32(SERVICE_FWMARK, self.fwmark);
            return;
        }
        b.attr_u16(SERVICE_PROTOCOL, self.protocol.into());
        b.attr(SERVICE_ADDRESS, &encode_address(self.address));
        b.attr_be16(SERVICE_PORT, self.port);
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
            // `struct ip_vs_flags`: the flags, then which of them count.
            flags: need(SERVICE_FLAGS, "flags")?.u32("flags")?,
            timeout: need(SERVICE_TIMEOUT, "timeout")?.u32("timeout")?,
            // Declared as in network order, but the kernel keeps an IPv6 prefix length there as it is.
            netmask: if family == IPV4 { netmask.be32("netmask")? } else { netmask.u32("netmask")? },
        })
    }
}

impl std::fmt::Display for VirtualServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.fwmark != 0 {
            return write!(f, "the virtual server of mark {:#x}", self.fwmark);
        }
        let address = std::net::SocketAddr::new(self.address, self.port);
        match i32::from(self.protocol) {
            libc::IPPROTO_TCP => write!(f, "virtual server tcp {address}"),
            libc::IPPROTO_UDP => write!(f, "virtual server udp {address}"),
            libc::IPPROTO_SCTP => write!(f, "virtual server sctp {address}"),
            other => write!(f, "virtual server {other} {address}"),
        }
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

/// `union nf_inet_addr`.
fn encode_address(address: IpAddr) -> [u8; 16] {
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

fn unspecified(family: u8) -> Result<IpAddr, Malformed> {
    decode_address(family, &[0; 16])
}

/// Families and protocols have sixteen bits on this wire and eight everywhere else.
fn narrow(value: u16, what: &'static str) -> Result<u8, Malformed> {
    value.try_into().map_err(|_| Malformed::Unknown { what, value: value.into() })
}
