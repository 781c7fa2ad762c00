//! Entries of the routing tables: `struct rtmsg` and the attributes of `linux/rtnetlink.h`.
//!
//! Portway does not create multipath routes. They are decoded without their next hops.

use super::{Scope, attr_ip, decode_ip, family, fixed};
use crate::DecodeError;
use crate::message::{Buffer, attrs};
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const RTNH_F_ONLINK: u32 = 4;
/// Size of `struct rtmsg`.
pub(super) const RTMSG_LEN: usize = 12;

/// `RT_TABLE_MAIN`: the table for packets that no routing rule sends to another table.
pub const MAIN_TABLE: u32 = libc::RT_TABLE_MAIN as u32;

/// The type of a route (`RTN_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteKind {
    /// Packets are sent to the gateway or, without one, directly to hosts on the link.
    #[default]
    Unicast,
    /// Packets are delivered to this host.
    Local,
    /// Packets are dropped without an error.
    Blackhole,
    /// Packets are answered with an ICMP error.
    Unreachable,
    /// Another type, by its number.
    Other(u8),
}

impl RouteKind {
    fn code(self) -> u8 {
        match self {
            RouteKind::Unicast => libc::RTN_UNICAST,
            RouteKind::Local => libc::RTN_LOCAL,
            RouteKind::Blackhole => libc::RTN_BLACKHOLE,
            RouteKind::Unreachable => libc::RTN_UNREACHABLE,
            RouteKind::Other(code) => code,
        }
    }

    pub(super) fn from_code(code: u8) -> RouteKind {
        match code {
            libc::RTN_UNICAST => RouteKind::Unicast,
            libc::RTN_LOCAL => RouteKind::Local,
            libc::RTN_BLACKHOLE => RouteKind::Blackhole,
            libc::RTN_UNREACHABLE => RouteKind::Unreachable,
            other => RouteKind::Other(other),
        }
    }
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub to: IpNet,
    /// Its type.
    pub kind: RouteKind,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// Index of the outgoing link.
    pub link: Option<u32>,
    /// The preferred source address of packets of this host.
    pub source: Option<IpAddr>,
    /// Its scope.
    pub scope: Scope,
    /// Whether the gateway is assumed to be on the link even if no route covers it (`RTNH_F_ONLINK`).
    pub onlink: bool,
    /// Its metric; lower is preferred. The kernel's default for IPv6 is 1024.
    pub metric: Option<u32>,
    /// Number of its table.
    pub table: u32,
    /// The origin of the route (`RTPROT_*`).
    pub protocol: u8,
}

impl Route {
    fn new(to: IpNet, kind: RouteKind) -> Route {
        Route {
            to: to.trunc(),
            kind,
            gateway: None,
            link: None,
            source: None,
            scope: Scope::Universe,
            onlink: false,
            metric: None,
            table: MAIN_TABLE,
            protocol: libc::RTPROT_STATIC,
        }
    }

    /// A route to a network whose hosts are on `link` itself.
    pub fn on_link(to: IpNet, link: u32) -> Route {
        let scope = if to.addr().is_ipv4() { Scope::Link } else { Scope::Universe };
        Route { link: Some(link), scope, ..Route::new(to, RouteKind::Unicast) }
    }

    /// A route through a router on `link`.
    pub fn via(to: IpNet, gateway: IpAddr, link: u32) -> Route {
        Route { gateway: Some(gateway), link: Some(link), ..Route::new(to, RouteKind::Unicast) }
    }

    /// A route that drops packets.
    pub fn blackhole(to: IpNet) -> Route {
        Route::new(to, RouteKind::Blackhole)
    }

    /// The same route, with the gateway assumed to be on the link even if no route covers it.
    pub fn onlink(self) -> Route {
        Route { onlink: true, ..self }
    }

    /// Decodes the body of an `RTM_NEWROUTE` message.
    pub fn decode(body: &[u8]) -> Result<Route, DecodeError> {
        let header: [u8; RTMSG_LEN] = fixed(body, "route header")?;
        let [family, length, _, _, table, protocol, scope, kind, f0, f1, f2, f3] = header;
        let all = attrs(&body[RTMSG_LEN..]);
        let number = |kind, field| all.clone().find(kind).map(|a| a.u32(field)).transpose();
        let ip = |kind, field| all.clone().find(kind).map(|a| decode_ip(family, a.value, field)).transpose();
        let to = match ip(RTA_DST, "route destination")? {
            Some(ip) => ip,
            None => decode_ip(family, &[0; 16], "route destination")?,
        };
        let to = IpNet::new(to, length)
            .map_err(|_| DecodeError::Unknown { field: "route prefix length", value: length.into() })?;
        Ok(Route {
            to,
            kind: RouteKind::from_code(kind),
            gateway: ip(RTA_GATEWAY, "route gateway")?,
            link: number(RTA_OIF, "route link")?,
            source: ip(RTA_PREFSRC, "route source")?,
            scope: Scope::from_code(scope),
            onlink: u32::from_ne_bytes([f0, f1, f2, f3]) & RTNH_F_ONLINK != 0,
            metric: number(RTA_PRIORITY, "route metric")?,
            table: number(RTA_TABLE, "route table")?.unwrap_or(table.into()),
            protocol,
        })
    }

    pub(super) fn fill(&self, b: &mut Buffer) {
        let flags = if self.onlink { RTNH_F_ONLINK } else { 0 };
        // The header holds only numbers below 256; RTA_TABLE, which overrides it, holds every number.
        let table = u8::try_from(self.table).unwrap_or(libc::RT_TABLE_UNSPEC);
        let to = self.to.addr();
        b.raw(&[family(to), self.to.prefix_len(), 0, 0]);
        b.raw(&[table, self.protocol, self.scope.code(), self.kind.code()]);
        b.raw(&flags.to_ne_bytes());
        if self.to.prefix_len() > 0 {
            attr_ip(b, RTA_DST, to);
        }
        if let Some(gateway) = self.gateway {
            attr_ip(b, RTA_GATEWAY, gateway);
        }
        if let Some(source) = self.source {
            attr_ip(b, RTA_PREFSRC, source);
        }
        let numbers = [(RTA_OIF, self.link), (RTA_PRIORITY, self.metric), (RTA_TABLE, Some(self.table))];
        for (kind, value) in numbers {
            if let Some(value) = value {
                b.attr_u32(kind, value);
            }
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RouteKind::Blackhole => f.write_str("blackhole ")?,
            RouteKind::Unreachable => f.write_str("unreachable ")?,
            RouteKind::Local => f.write_str("local ")?,
            RouteKind::Unicast | RouteKind::Other(_) => {}
        }
        write!(f, "{}", self.to)?;
        self.gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))
    }
}
