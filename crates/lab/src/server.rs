//! Servers that answer with their name and the source address they saw; [`crate::answer`] has the format.
//!
//! Sockets are opened inside the namespace; sockets stay where they were opened, so the one thread that serves them
//! all by epoll need not be there.

mod connection;

use crate::answer::{Reply, plain};
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

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// The serving thread does little and is one of many.
const STACK: usize = 128 * 1024;

/// A port to serve on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Of TCP.
    Tcp(u16),
    /// Of UDP.
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
    /// Serves under `name` in `namespace` on all `ports`, in both families. It answers as soon as this returns.
    pub fn start(namespace: impl AsRef<Namespace>, name: &str, ports: &[Port]) -> Result<Server, LabError> {
        let namespace = namespace.as_ref();
        let mut sources = Vec::new();
        for &port in ports {
            let failed = |e| LabError::system(format!("serve on {port} in {}", namespace.name()), e);
            sources.extend(namespace.run(|| open(port)).map_err(failed)?);
        }
        let failed = |e: rustix::io::Errno| LabError::system(format!("start server {name}"), e);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?);
        let service = Service::new(name.to_owned(), sources, Arc::clone(&stop)).map_err(failed)?;
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

/// A socket from which questions come.
#[derive(Debug)]
enum Source {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Source::Tcp(listener) => listener.as_fd(),
            Source::Udp(socket) => socket.as_fd(),
        }
    }
}

/// Opens the sockets of a port in the namespace of the calling thread.
fn open(port: Port) -> io::Result<Vec<Source>> {
    match port {
        Port::Tcp(number) => Ok(vec![Source::Tcp(open_tcp(number)?)]),
        // One socket for each address, so that answers leave from the address that was asked.
        Port::Udp(number) => {
            let mut network = Rtnetlink::open().map_err(io::Error::other)?;
            let addresses = network.addresses().map_err(io::Error::other)?;
            // A node has the same address on the links to all its pods.
            let ips: BTreeSet<IpAddr> = addresses.into_iter().map(|a| a.net.addr()).collect();
            let ips = ips.into_iter().filter(|ip| !is_link_local(*ip));
            ips.map(|ip| open_udp(ip, number).map(Source::Udp)).collect()
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

/// Binding to these needs the link, and no probe uses them.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Key of the event that ends it; sources have the numbers below, connections those above.
const STOP: u64 = 1 << 32;

/// The thread's side of a server.
struct Service {
    name: String,
    sources: Vec<Source>,
    connections: HashMap<u64, Connection>,
    next: u64,
    epoll: OwnedFd,
    /// Kept open here as well: the event must outlive the handle.
    _stop: Arc<OwnedFd>,
}

impl Service {
    fn new(name: String, sources: Vec<Source>, stop: Arc<OwnedFd>) -> rustix::io::Result<Service> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        for (i, source) in sources.iter().enumerate() {
            epoll::add(&epoll, source, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
        }
        let connections = HashMap::new();
        Ok(Service { name, sources, connections, next: STOP + 1, epoll, _stop: stop })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!(server = self.name, %error, "server ends"),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    STOP => return,
                    source if source < STOP => self.serve(source as usize),
                    connection => self.resume(connection),
                }
            }
        }
    }

    /// Takes what has come to a source.
    fn serve(&mut self, source: usize) {
        match &self.sources[source] {
            Source::Tcp(_) => self.accept_all(source),
            Source::Udp(socket) => answer_all(socket, &self.name),
        }
    }

    fn accept_all(&mut self, source: usize) {
        loop {
            let Source::Tcp(listener) = &self.sources[source] else { return };
            match listener.accept() {
                Ok((stream, from)) => self.greet(stream, plain(from)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The client was faster to leave than we to accept.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors, most likely: some connection has to end first.
                    tracing::warn!(server = self.name, %error, "cannot accept");
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
        // Closing it takes it off the epoll as well.
        if state == State::Closed || epoll::modify(&self.epoll, &*connection, data, interest(state)).is_err()
        {
            self.connections.remove(&key);
        }
    }
}

fn interest(state: State) -> epoll::EventFlags {
    match state {
        State::Blocked => epoll::EventFlags::OUT,
        State::Listening | State::Closed => epoll::EventFlags::IN,
    }
}

fn answer_all(socket: &UdpSocket, name: &str) {
    let mut buffer = [0; 2048];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let reply = Reply { server: name.to_owned(), source: plain(from), text };
                // An answer that cannot be sent is a lost packet.
                socket.send_to(reply.to_string().as_bytes(), from).ok();
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            // A client that left (its ICMP error comes back here) is no reason to stop.
            Err(_) => {}
        }
    }
}
