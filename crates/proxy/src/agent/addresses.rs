//! This node's name and addresses.

use crate::config::Config;
use portway_model::{Family, Node};
use portway_netlink::route::Rtnetlink;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The node's name: as configured, else the host name; in lower case, as names of Node objects are.
pub(crate) fn node_name(configured: Option<&str>) -> String {
    let host = rustix::system::uname();
    configured
        .map_or_else(|| host.nodename().to_string_lossy().into_owned(), str::to_owned)
        .trim()
        .to_lowercase()
}

/// The node's primary address of each family: as configured, else the first of the Node object, else the source
/// address of the default route.
pub(crate) fn primary(config: &Config, node: &Node) -> Vec<IpAddr> {
    let mut primary = Vec::new();
    for family in Family::ALL {
        let of_family = |ip: &IpAddr| Family::of(*ip) == family;
        let known = config.node_ip_override().filter(of_family);
        let known = known.or_else(|| node.addresses.iter().copied().find(of_family));
        primary.extend(known.or_else(|| outgoing(family)));
    }
    primary
}

/// All addresses of this machine.
pub(crate) fn local() -> Vec<IpAddr> {
    let list = Rtnetlink::open().and_then(|mut route| route.addresses());
    list.map(|all| all.into_iter().map(|a| a.net.addr()).collect()).unwrap_or_default()
}

/// The source address of packets to another network. Nothing is sent: connecting a UDP socket only looks up the route.
fn outgoing(family: Family) -> Option<IpAddr> {
    let (any, remote): (SocketAddr, SocketAddr) = match family {
        Family::V4 => (([0, 0, 0, 0], 0).into(), ([192, 0, 2, 1], 9).into()),
        Family::V6 => (([0u16; 8], 0).into(), ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9).into()),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(remote).ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}
