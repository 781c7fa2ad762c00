//! The sockets that the rules redirect to: one per protocol, family and endpoint scope, at an address of this node.

use crate::redirect::{EndpointScope, ListenerPorts};
use portway_model::Protocol;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};
use socket2::SockRef;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// How many connections may wait to be accepted; the kernel also limits them (`net.core.somaxconn`).
const BACKLOG: i32 = 65_535;
/// Size of the receive buffer of a UDP listener.
const UDP_BUFFER: usize = 4 << 20;
/// Idle time before the first keep-alive probe.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Time between probes. The kernel sends `net.ipv4.tcp_keepalive_probes` of them before it resets the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) scope: EndpointScope,
}

impl Listener {
    /// Listens at a port; port 0 means any free port.
    pub(crate) fn open(
        ip: IpAddr,
        port: u16,
        protocol: Protocol,
        scope: EndpointScope,
    ) -> io::Result<Listener> {
        let kind = if protocol == Protocol::Udp { SocketType::DGRAM } else { SocketType::STREAM };
        let socket = open_socket(ip, kind)?;
        if protocol == Protocol::Tcp {
            // REUSEADDR tolerates connections of an earlier listener in TIME_WAIT, not a second listener.
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        bind(&socket, &SocketAddr::new(ip, port))?;
        if protocol == Protocol::Udp {
            // CAP_NET_ADMIN allows a size beyond `net.core.rmem_max`.
            if sockopt::set_socket_recv_buffer_size_force(&socket, UDP_BUFFER).is_err() {
                sockopt::set_socket_recv_buffer_size(&socket, UDP_BUFFER)?;
            }
        } else {
            // Accepted sockets inherit these options.
            tune(&socket)?;
            listen(&socket, BACKLOG)?;
        }
        let address = address_of(getsockname(&socket)?)?;
        Ok(Listener { socket, address, protocol, scope })
    }
}

/// Ports below 1024, so that no unprivileged process can bind a port that rules still point to while no relay runs.
const PRIVILEGED: RangeInclusive<u16> = 800..=1023;
/// Ports of this range that are assigned to well-known services.
const WELL_KNOWN: [u16; 12] = [853, 860, 873, 902, 953, 989, 990, 991, 992, 993, 994, 995];

/// Listens at a free privileged port, or at any free port without the privilege.
fn open_at_free_port(ip: IpAddr, protocol: Protocol, scope: EndpointScope) -> io::Result<Listener> {
    let ports = PRIVILEGED.filter(|port| !WELL_KNOWN.contains(port));
    for port in ports {
        match Listener::open(ip, port, protocol, scope) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            other => return other,
        }
    }
    Listener::open(ip, 0, protocol, scope)
}

/// Opens all listeners at an address: at the previous ports where they are free, so that rules need not change, else at
/// other free ports.
pub(crate) fn open(
    ip: IpAddr,
    previous: Option<ListenerPorts>,
) -> io::Result<(ListenerPorts, Vec<Arc<Listener>>)> {
    let mut ports = previous.filter(|ports| ports.address == ip).unwrap_or(ListenerPorts {
        address: ip,
        tcp: [0; 2],
        udp: [0; 2],
    });
    let mut opened = Vec::new();
    for scope in EndpointScope::ALL {
        for (protocol, ports) in [(Protocol::Tcp, &mut ports.tcp), (Protocol::Udp, &mut ports.udp)] {
            let port = &mut ports[scope as usize];
            let at_previous = (*port != 0).then(|| Listener::open(ip, *port, protocol, scope));
            let listener = match at_previous {
                Some(Ok(listener)) => listener,
                Some(Err(_)) | None => open_at_free_port(ip, protocol, scope)?,
            };
            *port = listener.address.port();
            opened.push(Arc::new(listener));
        }
    }
    Ok((ports, opened))
}

/// A non-blocking socket.
pub(crate) fn open_socket(ip: IpAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, kind, flags, None)?)
}

/// A non-blocking socket towards an endpoint. Its packets have the bypass mark, so the rules do not redirect them.
pub(crate) fn open_marked_socket(ip: IpAddr, kind: SocketType, bypass_mark: u32) -> io::Result<OwnedFd> {
    let socket = open_socket(ip, kind)?;
    SockRef::from(&socket).set_mark(bypass_mark)?;
    Ok(socket)
}

/// Sends without delay, probes idle peers, and receives urgent data in line (RFC 6093).
pub(crate) fn tune(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_socket_oobinline(socket, true)?;
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    Ok(())
}

/// Converts the address of an IPv4 or IPv6 socket.
pub(crate) fn address_of(any: rustix::net::SocketAddrAny) -> io::Result<SocketAddr> {
    SocketAddr::try_from(any).map_err(|_| io::Error::other("not an IPv4 or IPv6 address"))
}
