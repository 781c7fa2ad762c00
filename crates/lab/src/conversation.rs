//! Requests to a server over one TCP connection or one UDP socket, which stays open for as long as a test needs it, to
//! test what happens to existing flows when endpoints or rules change.

use crate::answer::{Protocol, Reply, canonical};
use crate::namespace::Namespace;
use rustix::io::Errno;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// A TCP reset in answer to a connection, or ICMP port unreachable.
    #[error("refused")]
    Refused,
    /// No answer.
    #[error("timed out")]
    TimedOut,
    /// A router, or the client's own routing table, has no route.
    #[error("unreachable")]
    Unreachable,
    /// A connection that existed was reset.
    #[error("reset")]
    Reset,
    /// A connection that existed was closed.
    #[error("closed")]
    Closed,
    /// The answer is not that of a lab server.
    #[error("unexpected answer")]
    Unexpected,
    /// The client's own host failed: no free port, no descriptor.
    #[error("local error: {0}")]
    Local(io::ErrorKind),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        use io::ErrorKind as Kind;
        // A filter on the sending host returns EPERM for a dropped packet; on another host the packet would be lost
        // without an error. Both count as dropped.
        if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) {
            return Failure::TimedOut;
        }
        match error.kind() {
            Kind::ConnectionRefused => Failure::Refused,
            Kind::TimedOut | Kind::WouldBlock => Failure::TimedOut,
            // EACCES is the error of a socket after an ICMPv6 "administratively prohibited".
            Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::PermissionDenied => Failure::Unreachable,
            Kind::ConnectionReset | Kind::BrokenPipe => Failure::Reset,
            Kind::UnexpectedEof => Failure::Closed,
            Kind::InvalidData => Failure::Unexpected,
            other => Failure::Local(other),
        }
    }
}

/// A conversation.
#[derive(Debug)]
pub struct Conversation {
    channel: Channel,
    local: SocketAddr,
    timeout: Duration,
}

#[derive(Debug)]
enum Channel {
    Tcp {
        stream: BufReader<TcpStream>,
        /// The server's first line.
        greeting: Reply,
    },
    Udp(UdpSocket),
}

impl Conversation {
    /// Opens one from `namespace`. Over TCP the server's greeting is read at once; over UDP nothing is sent yet.
    pub fn begin(
        namespace: impl AsRef<Namespace>,
        protocol: Protocol,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Conversation, Failure> {
        namespace.as_ref().run(|| Conversation::begin_here(protocol, to, timeout))
    }

    /// Opens one from the namespace of the calling thread.
    pub(crate) fn begin_here(
        protocol: Protocol,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Conversation, Failure> {
        match protocol {
            Protocol::Tcp => Conversation::begin_tcp(to, timeout),
            Protocol::Udp => Conversation::begin_udp(to, timeout),
        }
    }

    fn begin_tcp(to: SocketAddr, timeout: Duration) -> Result<Conversation, Failure> {
        let start = Instant::now();
        let stream = TcpStream::connect_timeout(&to, timeout)?;
        let left = timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        let mut stream = BufReader::with_capacity(512, stream);
        let greeting = Reply::parse(&read_line(&mut stream)?).ok_or(Failure::Unexpected)?;
        stream.get_ref().set_read_timeout(Some(timeout))?;
        Ok(Conversation { channel: Channel::Tcp { stream, greeting }, local, timeout })
    }

    fn begin_udp(to: SocketAddr, timeout: Duration) -> Result<Conversation, Failure> {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        let local = socket.local_addr()?;
        Ok(Conversation { channel: Channel::Udp(socket), local, timeout })
    }

    /// The client's address and port.
    pub fn local(&self) -> SocketAddr {
        canonical(self.local)
    }

    /// The server's first line; none over UDP.
    pub fn greeting(&self) -> Option<&Reply> {
        match &self.channel {
            Channel::Tcp { greeting, .. } => Some(greeting),
            Channel::Udp(_) => None,
        }
    }

    /// Sends a request and waits for the answer. `text` must be a single line.
    pub fn ask(&mut self, text: &str) -> Result<Reply, Failure> {
        let timeout = self.timeout;
        match &mut self.channel {
            Channel::Tcp { stream, greeting } => {
                stream.get_mut().write_all(format!("{text}\n").as_bytes())?;
                let line = read_line(stream)?;
                let (server, text) =
                    line.trim_end_matches('\n').split_once(' ').ok_or(Failure::Unexpected)?;
                Ok(Reply { server: server.to_owned(), source: greeting.source, text: text.to_owned() })
            }
            Channel::Udp(socket) => ask_udp(socket, text, timeout),
        }
    }
}

/// Sends a datagram and waits for its answer. Late answers to earlier requests are ignored.
fn ask_udp(socket: &UdpSocket, text: &str, timeout: Duration) -> Result<Reply, Failure> {
    let deadline = Instant::now() + timeout;
    match socket.send(text.as_bytes()) {
        // A rule on the sending host that rejects the packet fails the call and also sends an ICMP error, which
        // follows.
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {}
        other => drop(other?),
    }
    let mut buffer = [0; 2048];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::TimedOut);
        }
        socket.set_read_timeout(Some(left))?;
        let length = socket.recv(&mut buffer)?;
        let answer = std::str::from_utf8(&buffer[..length]).map_err(|_| Failure::Unexpected)?;
        let reply = Reply::parse(answer).ok_or(Failure::Unexpected)?;
        if reply.text == text {
            return Ok(reply);
        }
    }
}

fn read_line(stream: &mut BufReader<TcpStream>) -> Result<String, Failure> {
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(Failure::Closed),
        _ => Ok(line),
    }
}
