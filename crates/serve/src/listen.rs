//! Opening listening sockets.

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as start, socket_with};
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Whether an IPv6 wildcard takes IPv4 connections too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DualStack {
    /// It does, as Go's listeners do.
    Yes,
    /// It does not, so that IPv4 can have a socket of its own on the same port.
    No,
}

/// Listens on a TCP address. Must be called within a tokio runtime.
pub fn listen(address: SocketAddr, dual_stack: DualStack) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // A restarted process must not wait for the connections of the one before it to time out.
    set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, dual_stack == DualStack::No)?;
    }
    bind(&socket, &address)?;
    start(&socket, BACKLOG)?;
    TcpListener::from_std(std::net::TcpListener::from(socket))
}
