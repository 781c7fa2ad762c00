//! Where what is led to us comes in: one socket per protocol, family and reach, at an address of this node.

use crate::redirect::{Doors, Reach};
use portway_model::Protocol;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};
use socket2::SockRef;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Connections that may wait to be accepted; the kernel has a limit of its own (`net.core.somaxconn`).
const BACKLOG: i32 = 65_535;
/// How much may wait at a door for UDP.
const BUFFER: usize = 4 << 20;
/// A peer that is silent for this long is asked whether it is still there,
const KEEPALIVE: Duration = Duration::from_secs(60);
/// and again after this long, as often as the kernel does it (`net.ipv4.tcp_keepalive_probes`), before it is given up.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) socket: OwnedFd,
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) reach: Reach,
}

impl Door {
    /// Opens one at a port, or at one that is free if it is 0.
    fn open(ip: IpAddr, port: u16, protocol: Protocol, reach: Reach) -> io::Result<Door> {
        let kind = if protocol == Protocol::Udp { SocketType::DGRAM } else { SocketType::STREAM };
        let socket = open_socket(ip, kind)?;
        if protocol == Protocol::Tcp {
            // What is left of connections through a door that was here before must not keep us out. Another door does.
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        bind(&socket, &SocketAddr::new(ip, port))?;
        if protocol == Protocol::Udp {
            // More than others may have, if we may.
            if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
                sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
            }
        } else {
            // What is accepted inherits it.
            tune(&socket)?;
            listen(&socket, BACKLOG)?;
        }
        let address = address_of(getsockname(&socket)?)?;
        Ok(Door { socket, address, protocol, reach })
    }
}

/// Ports that need a privilege, so that nobody without it can take one that rules lead to while nobody has it open.
const PRIVILEGED: RangeInclusive<u16> = 800..=1023;
/// Of these, those that other programs are known to want.
const WANTED: [u16; 12] = [853, 860, 873, 902, 953, 989, 990, 991, 992, 993, 994, 995];

/// Opens a door at a port that is free, and needs a privilege if we have that.
fn open_anywhere(ip: IpAddr, protocol: Protocol, reach: Reach) -> io::Result<Door> {
    let ports = PRIVILEGED.filter(|port| !WANTED.contains(port));
    for port in ports {
        match Door::open(ip, port, protocol, reach) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            other => return other,
        }
    }
    Door::open(ip, 0, protocol, reach)
}

/// Opens all doors at an address, at ports that are free: if possible where doors were before, for then the rules that
/// lead there need not change.
pub(crate) fn open(ip: IpAddr, before: Option<Doors>) -> io::Result<(Doors, Vec<Arc<Door>>)> {
    let mut doors =
        before.filter(|doors| doors.address == ip).unwrap_or(Doors { address: ip, tcp: [0; 2], udp: [0; 2] });
    let mut opened = Vec::new();
    for reach in Reach::ALL {
        for (protocol, ports) in [(Protocol::Tcp, &mut doors.tcp), (Protocol::Udp, &mut doors.udp)] {
            let port = &mut ports[reach as usize];
            let there = (*port != 0).then(|| Door::open(ip, *port, protocol, reach));
            let door = match there {
                Some(Ok(door)) => door,
                Some(Err(_)) | None => open_anywhere(ip, protocol, reach)?,
            };
            *port = door.address.port();
            opened.push(Arc::new(door));
        }
    }
    Ok((doors, opened))
}

/// A socket that does not block.
pub(crate) fn open_socket(ip: IpAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, kind, flags, None)?)
}

/// A socket towards an endpoint: what it sends is led nowhere else, whatever the address.
pub(crate) fn open_towards(ip: IpAddr, kind: SocketType, bypass_mark: u32) -> io::Result<OwnedFd> {
    let socket = open_socket(ip, kind)?;
    SockRef::from(&socket).set_mark(bypass_mark)?;
    Ok(socket)
}

/// Sends without delay, notices when the other side is gone, and takes urgent bytes for bytes like others (RFC 6093).
pub(crate) fn tune(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_socket_oobinline(socket, true)?;
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    Ok(())
}

/// An address as the standard library has it.
pub(crate) fn address_of(any: rustix::net::SocketAddrAny) -> io::Result<SocketAddr> {
    SocketAddr::try_from(any).map_err(|_| io::Error::other("an address that is not of the internet"))
}
