//! Links, addresses, routes and neighbours (`linux/rtnetlink.h`).
//!
//! In go [`Change`]s, values that say what is to be different; out come [`Link`]s, [`Address`]es and [`Route`]s as
//! the kernel lists them. One change is one request ([`Rtnetlink::apply`]); many of them share few datagrams
//! ([`Rtnetlink::apply_all`]). The kernel knows no transactions here: in a batch each change succeeds or fails on
//! its own, and the failures are returned with their place in the batch.

mod address;
mod change;
mod link;
mod neighbour;
mod table;
#[cfg(test)]
mod tests;

pub use address::Address;
pub use change::Change;
pub use link::{Link, LinkKind, NewLink, Peer};
pub use neighbour::Neighbour;
pub use table::{MAIN_TABLE, Route, RouteKind};

use crate::message::{self, Buffer, Message};
use crate::socket::Ack;
use crate::{Error, Malformed, Protocol, Result, Socket};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How far an address or route reaches (`rt_scope_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    #[default]
    Universe,
    /// On the attached link only.
    Link,
    /// Within this host only.
    Host,
    /// Another one, as a number.
    Other(u8),
}

impl Scope {
    fn code(self) -> u8 {
        match self {
            Scope::Universe => libc::RT_SCOPE_UNIVERSE,
            Scope::Link => libc::RT_SCOPE_LINK,
            Scope::Host => libc::RT_SCOPE_HOST,
            Scope::Other(code) => code,
        }
    }

    fn from_code(code: u8) -> Scope {
        match code {
            libc::RT_SCOPE_UNIVERSE => Scope::Universe,
            libc::RT_SCOPE_LINK => Scope::Link,
            libc::RT_SCOPE_HOST => Scope::Host,
            other => Scope::Other(other),
        }
    }
}

/// One change of a batch that the kernel refused.
#[derive(Debug)]
pub struct Failed {
    /// Its place in the batch.
    pub index: usize,
    /// Why; names the change.
    pub error: Error,
}

/// Changes in one datagram. Each refusal is an answer of its own, queued until we read: this many of them still
/// fit a receive buffer of the default size, so that a batch that fails as a whole loses no answer.
const BATCH: usize = 128;

/// A conversation with the kernel about the network of one namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Rtnetlink {
    socket: Socket,
    /// Names of the links met so far: errors name links, the kernel wants numbers.
    names: BTreeMap<u32, String>,
}

impl Rtnetlink {
    /// Opens it in the namespace of this thread.
    pub fn open() -> Result<Rtnetlink> {
        Ok(Rtnetlink { socket: Socket::open(Protocol::Route)?, names: BTreeMap::new() })
    }

    /// Makes one change.
    pub fn apply(&mut self, change: &Change<'_>) -> Result<()> {
        let operation = change.describe(&self.names);
        self.socket.request(change.kind(), change.flags(), &operation, |b| change.fill(b))
    }

    /// Makes many changes in few datagrams, in order, and goes on after those that fail.
    pub fn apply_all(&mut self, changes: &[Change<'_>]) -> Result<Vec<Failed>> {
        let mut failed = Vec::new();
        for (chunk_index, chunk) in changes.chunks(BATCH).enumerate() {
            self.apply_chunk(chunk, chunk_index * BATCH, &mut failed)?;
        }
        Ok(failed)
    }

    fn apply_chunk(&mut self, chunk: &[Change<'_>], offset: usize, failed: &mut Vec<Failed>) -> Result<()> {
        let mut buffer = Buffer::with_capacity(chunk.len() * 64);
        let mut seqs = Vec::with_capacity(chunk.len());
        for (i, change) in chunk.iter().enumerate() {
            let seq = self.socket.next_seq();
            // Failures are always answered; asking for the last acknowledgement tells that all were handled.
            let ack = if i + 1 == chunk.len() { message::ACK } else { 0 };
            buffer.message(change.kind(), change.flags() | message::REQUEST | ack, seq, |b| change.fill(b));
            seqs.push(seq);
        }
        self.socket.send(buffer.bytes())?;
        let mut finished = false;
        let names = &self.names;
        self.socket.receive_ready(|m| {
            let Some(i) = seqs.iter().position(|&seq| seq == m.seq) else { return };
            if m.kind != message::TYPE_ERROR {
                return;
            }
            finished |= i + 1 == chunk.len();
            if let Err(error) = Ack::parse(&m).into_result(&chunk[i].describe(names)) {
                failed.push(Failed { index: offset + i, error });
            }
        })?;
        match chunk.last() {
            Some(last) if !finished => Err(Error::NoAnswer(last.describe(names))),
            _ => Ok(()),
        }
    }

    /// The link of this name, if there is one.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        let operation = format!("look up link {name}");
        let seq = self.socket.next_seq();
        let mut request = Buffer::default();
        request.message(libc::RTM_GETLINK, message::REQUEST, seq, |b| link::fill_lookup(b, name));
        self.socket.send(request.bytes())?;
        let mut answer = None;
        self.socket.receive_ready(|m| {
            if m.seq == seq {
                answer = Some(match m.kind {
                    message::TYPE_ERROR => Err(Ack::parse(&m)),
                    _ => Ok(Link::decode(m.body)),
                });
            }
        })?;
        match answer {
            None => Err(Error::NoAnswer(operation)),
            Some(Err(ack)) if ack.errno == libc::ENODEV => Ok(None),
            Some(Err(ack)) => ack.into_result(&operation).map(|()| None),
            Some(Ok(Err(source))) => Err(Error::Malformed { operation, source }),
            Some(Ok(Ok(link))) => {
                self.names.insert(link.index, link.name.clone());
                Ok(Some(link))
            }
        }
    }

    /// All links.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let links = self.list(libc::RTM_GETLINK, "list links", 16, Link::decode)?;
        self.names = links.iter().map(|l| (l.index, l.name.clone())).collect();
        Ok(links)
    }

    /// All addresses, of both families.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        self.list(libc::RTM_GETADDR, "list addresses", 8, Address::decode)
    }

    /// All routes, of both families and all tables.
    pub fn routes(&mut self) -> Result<Vec<Route>> {
        self.list(libc::RTM_GETROUTE, "list routes", 12, Route::decode)
    }

    /// All neighbours whose address is an IP address.
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>> {
        self.list(libc::RTM_GETNEIGH, "list neighbours", 12, Neighbour::decode)
    }

    /// Lists what is behind `kind`; an all-zero body of `header` bytes asks for every family.
    fn list<T>(
        &mut self,
        kind: u16,
        operation: &str,
        header: usize,
        decode: impl Fn(&[u8]) -> std::result::Result<T, Malformed>,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        let each = |all: &mut Vec<T>, m: Message<'_>| {
            // Multicast groups and the like are listed as families of their own; they are not what we ask for.
            if matches!(i32::from(m.body.first().copied().unwrap_or(0)), 0 | libc::AF_INET | libc::AF_INET6) {
                all.push(decode(m.body)?);
            }
            Ok(())
        };
        self.socket.dump(kind, operation, &mut all, |b| b.raw(&vec![0; header]), Vec::clear, each)?;
        Ok(all)
    }
}

fn family(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn attr_ip(b: &mut Buffer, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => b.attr(kind, &ip.octets()),
        IpAddr::V6(ip) => b.attr(kind, &ip.octets()),
    }
}

/// The address of `family` in `bytes`.
fn decode_ip(family: u8, bytes: &[u8], what: &'static str) -> std::result::Result<IpAddr, Malformed> {
    match i32::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = fixed(bytes, what)?;
            Ok(Ipv4Addr::from(octets).into())
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = fixed(bytes, what)?;
            Ok(Ipv6Addr::from(octets).into())
        }
        other => Err(Malformed::Unknown { what: "address family", value: other as u64 }),
    }
}

/// The first `N` bytes.
fn fixed<const N: usize>(bytes: &[u8], what: &'static str) -> std::result::Result<[u8; N], Malformed> {
    bytes.get(..N).and_then(|b| b.try_into().ok()).ok_or(Malformed::Short(what))
}
