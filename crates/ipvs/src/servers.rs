//! Virtual servers as values: what they are known by, and what is behind them.

use portway_dataplane::Scheduler;
use portway_model::{Family, Protocol, Target};
use portway_netlink::ipvs::{self, PERSISTENT, ServiceOptions, VirtualServer};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What a virtual server is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Where it answers.
    At {
        /// In which protocol.
        protocol: Protocol,
        /// Its address.
        ip: IpAddr,
        /// Its port.
        port: u16,
    },
    /// The mark that packets for it have.
    Mark(u32),
}

/// What may come new to an endpoint: its share, or nothing more than what it has already.
pub const SHARE: u32 = 1;
/// Nothing new.
pub const DRAINED: u32 = 0;

/// A scheduler that hashes takes another endpoint if the one it hits gets nothing new (`sh-fallback`, `mh-fallback`).
const FALLBACK: u32 = 8;
/// It hashes the client's port too, so that one client's connections are spread (`mh-port`).
const WITH_PORT: u32 = 16;

/// A virtual server as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The protocol of what it serves.
    pub protocol: Protocol,
    /// How it chooses.
    pub scheduler: Scheduler,
    /// How long a client sticks to its endpoint, in seconds.
    pub affinity: Option<u32>,
    /// Those behind it, with their shares.
    pub targets: BTreeMap<Target, u32>,
}

impl Server {
    /// Whether it has no endpoints.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether one of its endpoints accepts new connections.
    pub fn serves(&self) -> bool {
        self.targets.values().any(|share| *share != DRAINED)
    }

    /// Whether those that leave may finish what they have. A UDP flow has no end that could be waited for.
    pub fn drains(&self) -> bool {
        self.protocol != Protocol::Udp
    }

    /// How the kernel has it behave.
    pub fn behaviour(&self, family: Family) -> ServiceOptions<'static> {
        ServiceOptions {
            scheduler: self.scheduler.as_str(),
            flags: self.flags(),
            timeout: self.affinity.unwrap_or(0),
            netmask: if family == Family::V4 { u32::MAX } else { 128 },
        }
    }

    fn flags(&self) -> u32 {
        let sticks = if self.affinity.is_some() { PERSISTENT } else { 0 };
        sticks
            | match self.scheduler {
                Scheduler::SourceHashing => FALLBACK,
                Scheduler::MaglevHashing => FALLBACK | WITH_PORT,
                _ => 0,
            }
    }

    /// Whether the kernel's is like it, whatever is behind it.
    pub fn is_like(&self, found: &VirtualServer) -> bool {
        let flags = found.flags & (PERSISTENT | FALLBACK | WITH_PORT);
        let timeout = (flags & PERSISTENT != 0).then_some(found.timeout);
        found.scheduler == self.scheduler.as_str() && timeout == self.affinity && flags == self.flags()
    }
}

impl Key {
    /// Its address, if it has one.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Key::At { ip, .. } => Some(ip),
            Key::Mark(_) => None,
        }
    }

    /// As the kernel has it.
    pub fn wire(self, family: Family) -> ipvs::Key {
        match self {
            Key::At { protocol, ip, port } => ipvs::Key::new(protocol.number(), SocketAddr::new(ip, port)),
            Key::Mark(fwmark) => {
                let address = match family {
                    Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
                };
                ipvs::Key { protocol: 0, address, port: 0, fwmark }
            }
        }
    }

    /// What one of the kernel's is known by; none for one of a protocol that no Service has.
    pub fn of(found: &VirtualServer) -> Option<Key> {
        if found.fwmark != 0 {
            return Some(Key::Mark(found.fwmark));
        }
        let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let protocol = known.into_iter().find(|p| p.number() == found.protocol)?;
        Some(Key::At { protocol, ip: found.address, port: found.port })
    }
}

/// The number that a family has in the kernel.
pub fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::At { protocol, ip, port } => write!(f, "{protocol} {}", SocketAddr::new(*ip, *port)),
            Key::Mark(mark) => write!(f, "FWM {mark}"),
        }
    }
}
