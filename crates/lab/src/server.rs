//! Servers that answer with their name and the source address that they saw; [`crate::answer`] has the format.
//!
//! Sockets belong to the namespace in which they were opened, so the thread that serves them need not be in it.

mod connection;

use crate::answer::{Reply, canonical};
use crate::{LabError, Namespace, Protocol};
use connection::{Connection, State};
use portway_netlink::route::Rtnetlink;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 4096;
/// The stack size of the serving thread, of which a lab has many.
const STACK: usize = 128 * 1024;

/// A port to serve on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A TCP port.
    Tcp(u16),
    /// A UDP port.
    Udp(u16),
}

impl Port {
    /// A port of this protocol.
    pub fn new(protocol: Protocol, number: u16) -> Port {
        match protocol {
            Protocol::Tcp => Port::Tcp(number),
            Protocol::Udp => Port::Udp(number),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Tcp(number) => write!(f, "tcp/{number}"),
            Port::Udp(number) => write!(f, "udp/{number}"),
        }
    }
}

/// A running server; stops when dropped, and closes its connections.
#[derive(Debug)]
pub struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server with this name in `namespace` on all `ports`, in both families. It answers as soon as this
    /// returns.
    pub fn start(namespace: impl AsRef<Namespace>, name: &str, ports: &[Port]) -> Result<Server, LabError> {
        let namespace = namespace.as_ref();
        let mut sockets = Vec::new();
        for &port in ports {
            let failed = |e| LabError::system(format!("serve on {port} in {}", namespace.name()), e);
            sockets.extend(namespace.run(|| open(port)).map_err(failed)?);
        }
        let failed = |e: rustix::io::Errno| LabError::system(format!("start server {name}"), e);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?);
        let service = ServerThread::new(name.to_owned(), sockets, Arc::clone(&stop)).map_err(failed)?;
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK);
        let thread = thread.spawn(move || service.run());
        let thread = thread.map_err(|e| LabError::system(format!("start server {name}"), e))?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// A socket that receives connections or datagrams.
#[derive(Debug)]
enum ServerSocket {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl AsFd for ServerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ServerSocket::Tcp(listener) => listener.as_fd(),
            ServerSocket::Udp(socket) => socket.as_fd(),
        }
    }
}

/// Opens the sockets of a port in the namespace of the calling thread.
fn open(port: Port) -> io::Result<Vec<ServerSocket>> {
    match port {
        Port::Tcp(number) => Ok(vec![ServerSocket::Tcp(open_tcp(number)?)]),
        // One socket for each address, so that answers have the address that the request was sent to.
        Port::Udp(number) => {
            let mut network = Rtnetlink::open().map_err(io::Error::other)?;
            let addresses = network.addresses().map_err(io::Error::other)?;
            // A node has the same address on the links to all its pods.
            let ips: BTreeSet<IpAddr> = addresses.into_iter().map(|a| a.net.addr()).collect();
            let ips = ips.into_iter().filter(|ip| !is_link_local(*ip));
            ips.map(|ip| open_udp(ip, number).map(ServerSocket::Udp)).collect()
        }
    }
}

/// A listener for both families, with a longer queue than std's.
fn open_tcp(port: u16) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    bind(&socket, &SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn open_udp(ip: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((ip, port))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Whether an address is link-local: binding to it would need the link, and no probe uses it.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The key of the event that stops the server; sockets have lower keys, connections higher ones.
const STOP: u64 = 1 << 32;

/// The state of a server's thread.
struct ServerThread {
    name: String,
    sockets: Vec<ServerSocket>,
    connections: HashMap<u64, Connection>,
    next: u64,
    epoll: OwnedFd,
    /// Kept open here too: the descriptor must stay open until the thread has ended.
    _stop: Arc<OwnedFd>,
}

impl ServerThread {
    fn new(name: String, sockets: Vec<ServerSocket>, stop: Arc<OwnedFd>) -> rustix::io::Result<ServerThread> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        for (i, socket) in sockets.iter().enumerate() {
            epoll::add(&epoll, socket, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
        }
        let connections = HashMap::new();
        Ok(ServerThread { name, sockets, connections, next: STOP + 1, epoll, _stop: stop })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return tracing::error!(server = self.name, %error, "epoll failed; the server ends");
                }
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    STOP => return,
                    socket if socket < STOP => self.serve(socket as usize),
                    connection => self.resume(connection),
                }
            }
        }
    }

    /// Accepts the connections, or answers the datagrams, that a socket has received.
    fn serve(&mut self, index: usize) {
        match &self.sockets[index] {
            ServerSocket::Tcp(_) => self.accept_all(index),
            ServerSocket::Udp(socket) => answer_all(socket, &self.name),
        }
    }

    fn accept_all(&mut self, index: usize) {
        loop {
            let ServerSocket::Tcp(listener) = &self.sockets[index] else { return };
            match listener.accept() {
                Ok((stream, from)) => self.greet(stream, canonical(from)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The client closed the connection before it was accepted.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Most likely there is no file descriptor: a connection has to end first.
                    tracing::warn!(server = self.name, %error, "cannot accept a connection");
                    return thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn greet(&mut self, stream: TcpStream, from: SocketAddr) {
        let greeting = Reply { server: self.name.clone(), source: from, text: String::new() };
        let Ok(mut connection) = Connection::new(stream, format!("{greeting}\n")) else { return };
        let key = self.next;
        self.next += 1;
        let state = connection.advance(&self.name);
        if state == State::Closed
            || epoll::add(&self.epoll, &connection, epoll::EventData::new_u64(key), interest(state)).is_err()
        {
            return;
        }
        self.connections.insert(key, connection);
    }

    fn resume(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let state = connection.advance(&self.name);
        let data = epoll::EventData::new_u64(key);
        // Closing a connection also removes it from epoll.
        if state == State::Closed || epoll::modify(&self.epoll, &*connection, data, interest(state)).is_err()
        {
            self.connections.remove(&key);
        }
    }
}

fn interest(state: State) -> epoll::EventFlags {
    match state {
        State::Writing => epoll::EventFlags::OUT,
        State::Reading | State::Closed => epoll::EventFlags::IN,
    }
}

fn answer_all(socket: &UdpSocket, name: &str) {
    let mut buffer = [0; 2048];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let reply = Reply { server: name.to_owned(), source: canonical(from), text };
                // An answer that cannot be sent is a lost packet.
                socket.send_to(reply.to_string().as_bytes(), from).ok();
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            // For example an ICMP error, because a client has closed its socket.
            Err(_) => {}
        }
    }
}
