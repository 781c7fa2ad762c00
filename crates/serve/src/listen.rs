//! Opens listening sockets.

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as start, socket_with};
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Whether a listener on the IPv6 wildcard address accepts IPv4 connections too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DualStack {
    /// It does, as in Go.
    Yes,
    /// It does not, so that IPv4 can have its own socket on the same port.
    No,
}

/// Listens on a TCP address. Must be called within a tokio runtime.
pub fn listen(address: SocketAddr, dual_stack: DualStack) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // A restarted process can bind while connections of the previous one are in TIME_WAIT.
    set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, dual_stack == DualStack::No)?;
    }
    bind(&socket, &address)?;
    start(&socket, BACKLOG)?;
    TcpListener::from_std(std::net::TcpListener::from(socket))
}
