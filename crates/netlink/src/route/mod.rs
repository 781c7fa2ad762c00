//! Links, addresses, routes and neighbours (`linux/rtnetlink.h`).
//!
//! [`Rtnetlink`] lists [`Link`]s, [`Address`]es, [`Route`]s and [`Neighbour`]s, and applies [`Change`]s to them:
//! [`Rtnetlink::apply`] sends one change, [`Rtnetlink::apply_all`] sends many in few datagrams. There are no
//! transactions: each change of a batch succeeds or fails independently, and the errors are returned with the index of
//! the change. A [`Monitor`] reports the changes of other processes.

mod address;
mod change;
mod link;
mod monitor;
mod neighbour;
mod table;
#[cfg(test)]
mod tests;

pub use crate::Failed;
pub use address::Address;
pub use change::Change;
pub use link::{Link, LinkKind, NewLink, Peer};
pub use monitor::{Event, Monitor};
pub use neighbour::Neighbour;
pub use table::{MAIN_TABLE, Route, RouteKind};

use crate::message::{Buffer, Message};
use crate::pipeline::Request;
use crate::{DecodeError, Protocol, Result, Socket};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The scope of an address or route (`rt_scope_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Valid everywhere.
    #[default]
    Universe,
    /// Valid on the attached link only.
    Link,
    /// Valid within this host only.
    Host,
    /// Another scope, by its number.
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

/// A socket for the links, addresses and routes of one network namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Rtnetlink {
    socket: Socket,
    /// Names of the links listed so far, by index: requests identify links by index, error texts by name.
    names: BTreeMap<u32, String>,
}

impl Rtnetlink {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<Rtnetlink> {
        Ok(Rtnetlink { socket: Socket::open(Protocol::Route)?, names: BTreeMap::new() })
    }

    /// The port of its socket; a [`Monitor`] can ignore changes made through it.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// The number of messages sent so far.
    pub fn sent(&self) -> u64 {
        self.socket.sent()
    }

    /// Applies one change.
    pub fn apply(&mut self, change: &Change<'_>) -> Result<()> {
        let operation = change.describe(&self.names);
        self.socket.request(change.kind(), change.flags(), &operation, |b| change.fill(b))
    }

    /// Applies changes in few datagrams, in order, continues after refused ones, and returns their errors.
    pub fn apply_all(&mut self, changes: &[Change<'_>]) -> Result<Vec<Failed>> {
        let names = &self.names;
        self.socket.request_all(changes.iter().map(|change| DescribedChange { change, names }))
    }

    /// The link of this name, if there is one.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        let operation = format!("look up link {name}");
        let fill = |b: &mut Buffer| link::fill_lookup(b, name);
        match self.socket.query(libc::RTM_GETLINK, &operation, fill, |m| Link::decode(m.body)) {
            Ok(link) => {
                self.names.insert(link.index, link.name.clone());
                Ok(Some(link))
            }
            Err(e) if e.errno() == Some(libc::ENODEV) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// All links.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let links = self.list(libc::RTM_GETLINK, "list links", &[0; link::IFINFOMSG_LEN], Link::decode)?;
        self.names = links.iter().map(|l| (l.index, l.name.clone())).collect();
        Ok(links)
    }

    /// All addresses, of both families.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        self.list(libc::RTM_GETADDR, "list addresses", &[0; address::IFADDRMSG_LEN], Address::decode)
    }

    /// The addresses of one link, of one family (`AF_INET`, `AF_INET6`) or of both (`AF_UNSPEC`); empty if there is no
    /// such link. The kernel filters them (since 4.20), so the cost does not depend on the addresses of other links.
    pub fn addresses_of(&mut self, link: u32, family: u8) -> Result<Vec<Address>> {
        let [l0, l1, l2, l3] = link.to_ne_bytes();
        let header = [family, 0, 0, 0, l0, l1, l2, l3];
        // For this request only: strict checking would change which routes `routes` lists.
        self.socket.set_strict(true);
        let listed = self.list(libc::RTM_GETADDR, "list addresses of a link", &header, Address::decode);
        self.socket.set_strict(false);
        let mut all = match listed {
            Err(e) if e.errno() == Some(libc::ENODEV) => Vec::new(),
            listed => listed?,
        };
        all.retain(|address| address.link == link && matches_family(family, address));
        Ok(all)
    }

    /// All routes, of both families and all tables.
    pub fn routes(&mut self) -> Result<Vec<Route>> {
        self.list(libc::RTM_GETROUTE, "list routes", &[0; table::RTMSG_LEN], Route::decode)
    }

    /// All neighbours with an IPv4 or IPv6 address.
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>> {
        self.list(libc::RTM_GETNEIGH, "list neighbours", &[0; neighbour::NDMSG_LEN], Neighbour::decode)
    }

    /// Lists objects with a request of type `kind`; a `header` of zeroes (`AF_UNSPEC`) requests all families.
    fn list<T>(
        &mut self,
        kind: u16,
        operation: &str,
        header: &[u8],
        decode: impl Fn(&[u8]) -> std::result::Result<T, DecodeError>,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        let each = |all: &mut Vec<T>, m: Message<'_>| {
            // The kernel also lists objects of other families, such as multicast routes; they are skipped.
            let family = m.body.first().map_or(libc::AF_UNSPEC, |&family| family.into());
            if matches!(family, libc::AF_UNSPEC | libc::AF_INET | libc::AF_INET6) {
                all.push(decode(m.body)?);
            }
            Ok(())
        };
        self.socket.dump(kind, operation, &mut all, |b| b.raw(header), Vec::clear, each)?;
        Ok(all)
    }
}

/// A change, and the names of links for its description.
struct DescribedChange<'a> {
    change: &'a Change<'a>,
    names: &'a BTreeMap<u32, String>,
}

impl Request for DescribedChange<'_> {
    fn kind(&self) -> u16 {
        self.change.kind()
    }

    fn flags(&self) -> u16 {
        self.change.flags()
    }

    fn fill(&self, b: &mut Buffer) {
        self.change.fill(b);
    }

    fn describe(&self) -> String {
        self.change.describe(self.names)
    }
}

/// Whether the address is of this family; `AF_UNSPEC` means both.
fn matches_family(number: u8, address: &Address) -> bool {
    number == libc::AF_UNSPEC as u8 || number == family(address.net.addr())
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
fn decode_ip(family: u8, bytes: &[u8], field: &'static str) -> std::result::Result<IpAddr, DecodeError> {
    match i32::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = fixed(bytes, field)?;
            Ok(Ipv4Addr::from(octets).into())
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = fixed(bytes, field)?;
            Ok(Ipv6Addr::from(octets).into())
        }
        other => Err(DecodeError::Unknown { field: "address family", value: other as u64 }),
    }
}

/// The first `N` bytes.
fn fixed<const N: usize>(bytes: &[u8], field: &'static str) -> std::result::Result<[u8; N], DecodeError> {
    bytes.get(..N).and_then(|b| b.try_into().ok()).ok_or(DecodeError::Truncated(field))
}
