//! Virtual servers as values: the key, the options, and the real servers with their weights.

use portway_dataplane::Scheduler;
use portway_model::{Family, Protocol, Target};
use portway_netlink::ipvs::{self, PERSISTENT, ServiceOptions, VirtualServer};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The key of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// An address, port and protocol.
    Address {
        /// The protocol.
        protocol: Protocol,
        /// The address.
        ip: IpAddr,
        /// The port.
        port: u16,
    },
    /// A firewall mark, whatever the destination.
    Mark(u32),
}

/// The weight of an endpoint that gets new connections.
pub const SERVING_WEIGHT: u32 = 1;
/// The weight of an endpoint that keeps its connections and gets no new ones.
pub const DRAINING_WEIGHT: u32 = 0;

/// A hashing scheduler selects another endpoint if the hash gives one with weight 0 (`sh-fallback`, `mh-fallback`).
const FALLBACK: u32 = 8;
/// The scheduler hashes the client's port too, which spreads the connections of one client (`mh-port`).
const WITH_PORT: u32 = 16;

/// A wanted virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The protocol of the Service port.
    pub protocol: Protocol,
    /// The scheduler that selects an endpoint.
    pub scheduler: Scheduler,
    /// The timeout of client affinity in seconds.
    pub affinity: Option<u32>,
    /// The endpoints, which are its real servers, with their weights.
    pub targets: BTreeMap<Target, u32>,
}

impl Server {
    /// Whether it has no endpoints, not even draining ones.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether one of its endpoints accepts new connections.
    pub fn serves(&self) -> bool {
        self.targets.values().any(|weight| *weight != DRAINING_WEIGHT)
    }

    /// Whether removed endpoints drain. UDP flows have no end to wait for.
    pub fn drains(&self) -> bool {
        self.protocol != Protocol::Udp
    }

    /// Its options for the kernel.
    pub fn options(&self, family: Family) -> ServiceOptions<'static> {
        ServiceOptions {
            scheduler: self.scheduler.as_str(),
            flags: self.flags(),
            timeout: self.affinity.unwrap_or(0),
            netmask: if family == Family::V4 { u32::MAX } else { 128 },
        }
    }

    fn flags(&self) -> u32 {
        let persistent = if self.affinity.is_some() { PERSISTENT } else { 0 };
        persistent
            | match self.scheduler {
                Scheduler::SourceHashing => FALLBACK,
                Scheduler::MaglevHashing => FALLBACK | WITH_PORT,
                _ => 0,
            }
    }

    /// Whether the listed virtual server has the same scheduler, affinity and flags. Real servers are not compared.
    pub fn matches_listed(&self, listed: &VirtualServer) -> bool {
        let flags = listed.flags & (PERSISTENT | FALLBACK | WITH_PORT);
        let timeout = (flags & PERSISTENT != 0).then_some(listed.timeout);
        listed.scheduler == self.scheduler.as_str() && timeout == self.affinity && flags == self.flags()
    }
}

impl Key {
    /// The address; none for a mark.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Key::Address { ip, .. } => Some(ip),
            Key::Mark(_) => None,
        }
    }

    /// The key in netlink messages.
    pub fn wire(self, family: Family) -> ipvs::Key {
        match self {
            Key::Address { protocol, ip, port } => {
                ipvs::Key::new(protocol.number(), SocketAddr::new(ip, port))
            }
            Key::Mark(fwmark) => {
                let address = match family {
                    Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
                };
                ipvs::Key { protocol: 0, address, port: 0, fwmark }
            }
        }
    }

    /// The key of a listed virtual server; none if its protocol is not TCP, UDP or SCTP.
    pub fn of(listed: &VirtualServer) -> Option<Key> {
        if listed.fwmark != 0 {
            return Some(Key::Mark(listed.fwmark));
        }
        let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let protocol = known.into_iter().find(|p| p.number() == listed.protocol)?;
        Some(Key::Address { protocol, ip: listed.address, port: listed.port })
    }
}

/// `AF_INET` or `AF_INET6`.
pub fn address_family(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Address { protocol, ip, port } => write!(f, "{protocol} {}", SocketAddr::new(*ip, *port)),
            Key::Mark(mark) => write!(f, "FWM {mark}"),
        }
    }
}
