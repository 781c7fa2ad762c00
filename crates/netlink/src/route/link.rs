//! Links, the network interfaces of a namespace: `struct ifinfomsg`, the attributes of `linux/if_link.h` and
//! `linux/veth.h`, and the states of `linux/if.h`.

use super::fixed;
use crate::DecodeError;
use crate::message::{Attr, Buffer, attrs};
use std::os::fd::{AsRawFd, BorrowedFd};

const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_CARRIER: u16 = 33;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_BR_MCAST_SNOOPING: u16 = 23;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;
const IF_OPER_UP: u8 = 6;

/// Size of `struct ifinfomsg`.
pub(super) const IFINFOMSG_LEN: usize = 16;
/// Offsets of its fields `ifi_index` and `ifi_flags`.
const IFI_INDEX: usize = 4;
const IFI_FLAGS: usize = 8;

/// A link, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is set up.
    pub up: bool,
    /// Whether it has a carrier; a veth has one if its peer is up.
    pub carrier: bool,
    /// Whether its operational state is up (`IF_OPER_UP`). The kernel sets it some time after the carrier appears;
    /// packets sent in between are lost.
    pub operational: bool,
    /// The bridge it belongs to.
    pub master: Option<u32>,
    /// Its MTU.
    pub mtu: Option<u32>,
    /// Its hardware address, if it has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// The name of its driver, if it has one: `veth`, `bridge`, `dummy`.
    pub kind: Option<String>,
    /// Its alias, a free text, if one was set.
    pub alias: Option<String>,
}

impl Link {
    /// Decodes the body of an `RTM_NEWLINK` message.
    pub fn decode(body: &[u8]) -> Result<Link, DecodeError> {
        let header: [u8; IFINFOMSG_LEN] = fixed(body, "link header")?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let all = attrs(&body[IFINFOMSG_LEN..]);
        let number = |kind, field| all.clone().find(kind).map(|a| a.u32(field)).transpose();
        let text = |a: Attr<'_>, field| a.str(field).map(str::to_owned);
        let kind = all.clone().find(IFLA_LINKINFO).and_then(|a| a.nested().find(IFLA_INFO_KIND));
        Ok(Link {
            index: word(IFI_INDEX),
            name: all.clone().need(IFLA_IFNAME, "link name")?.str("link name")?.to_owned(),
            up: word(IFI_FLAGS) & IFF_UP != 0,
            carrier: all.clone().find(IFLA_CARRIER).is_some_and(|a| a.value.first() == Some(&1)),
            operational: all.clone().find(IFLA_OPERSTATE).is_some_and(|a| a.value == [IF_OPER_UP]),
            master: number(IFLA_MASTER, "link master")?,
            mtu: number(IFLA_MTU, "link MTU")?,
            mac: all.clone().find(IFLA_ADDRESS).and_then(|a| a.value.try_into().ok()),
            kind: kind.map(|a| text(a, "link kind")).transpose()?,
            alias: all.find(IFLA_IFALIAS).map(|a| text(a, "link alias")).transpose()?,
        })
    }
}

/// A link to be added.
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: LinkKind<'a>,
    /// Whether it is created up.
    pub up: bool,
    /// The bridge it is added to when it is created.
    pub master: Option<u32>,
}

/// The type of a new link.
#[derive(Clone, Debug)]
pub enum LinkKind<'a> {
    /// One end of a veth pair.
    Veth(Peer<'a>),
    /// A bridge without multicast snooping, so that it floods multicast to every port: there is no multicast querier,
    /// and neighbour discovery must work without one.
    Bridge,
    /// A link that drops every packet, for addresses only.
    Dummy,
}

impl LinkKind<'_> {
    fn name(&self) -> &'static str {
        match self {
            LinkKind::Veth(_) => "veth",
            LinkKind::Bridge => "bridge",
            LinkKind::Dummy => "dummy",
        }
    }
}

/// The second end of a veth pair. It is created down: the kernel cannot set it up before the first end exists.
#[derive(Clone, Debug)]
pub struct Peer<'a> {
    /// Its name.
    pub name: String,
    /// The network namespace it is created in; `None` means the namespace of the socket.
    pub namespace: Option<BorrowedFd<'a>>,
}

impl NewLink<'_> {
    pub(super) fn describe(&self) -> String {
        match &self.kind {
            LinkKind::Veth(peer) => format!("add veth pair {} and {}", self.name, peer.name),
            other => format!("add {} {}", other.name(), self.name),
        }
    }

    pub(super) fn fill(&self, b: &mut Buffer) {
        header(b, 0, self.up.then_some(true));
        b.attr_str(IFLA_IFNAME, &self.name);
        if let Some(master) = self.master {
            b.attr_u32(IFLA_MASTER, master);
        }
        b.nest(IFLA_LINKINFO, |b| {
            b.attr_str(IFLA_INFO_KIND, self.kind.name());
            match &self.kind {
                LinkKind::Veth(peer) => b.nest(IFLA_INFO_DATA, |b| b.nest(VETH_INFO_PEER, |b| peer.fill(b))),
                LinkKind::Bridge => b.nest(IFLA_INFO_DATA, |b| b.attr_u8(IFLA_BR_MCAST_SNOOPING, 0)),
                LinkKind::Dummy => {}
            }
        });
    }
}

impl Peer<'_> {
    fn fill(&self, b: &mut Buffer) {
        header(b, 0, None);
        b.attr_str(IFLA_IFNAME, &self.name);
        if let Some(namespace) = self.namespace {
            fill_namespace(b, namespace);
        }
    }
}

/// The body of a request that sets the link up or down.
pub(super) fn fill_up(b: &mut Buffer, link: u32, up: bool) {
    header(b, link, Some(up));
}

/// The body of a request that adds the link to a bridge, or removes it.
pub(super) fn fill_master(b: &mut Buffer, link: u32, master: Option<u32>) {
    header(b, link, None);
    b.attr_u32(IFLA_MASTER, master.unwrap_or(0));
}

/// The body of a request that renames the link.
pub(super) fn fill_name(b: &mut Buffer, link: u32, name: &str) {
    header(b, link, None);
    b.attr_str(IFLA_IFNAME, name);
}

/// The body of a request that sets the link's alias. The alias has no terminating NUL: the kernel would store it as
/// part of the alias, and an empty alias would not remove the existing one.
pub(super) fn fill_alias(b: &mut Buffer, link: u32, alias: &str) {
    header(b, link, None);
    b.attr(IFLA_IFALIAS, alias.as_bytes());
}

/// The body of a request that moves the link to another namespace.
pub(super) fn fill_move(b: &mut Buffer, link: u32, namespace: BorrowedFd<'_>) {
    header(b, link, None);
    fill_namespace(b, namespace);
}

/// The body of a request that has only the link's index.
pub(super) fn fill_index(b: &mut Buffer, link: u32) {
    header(b, link, None);
}

/// The body of a request that asks for a link by name.
pub(super) fn fill_lookup(b: &mut Buffer, name: &str) {
    header(b, 0, None);
    b.attr_str(IFLA_IFNAME, name);
}

fn fill_namespace(b: &mut Buffer, namespace: BorrowedFd<'_>) {
    b.attr_u32(IFLA_NET_NS_FD, namespace.as_raw_fd() as u32);
}

/// `struct ifinfomsg`: family (`AF_UNSPEC`) and type, which are 0, index, flags, and the mask of the flags to change.
fn header(b: &mut Buffer, link: u32, up: Option<bool>) {
    let flags = if up == Some(true) { IFF_UP } else { 0 };
    let change = if up.is_some() { IFF_UP } else { 0 };
    b.raw(&[0; 4]);
    b.raw(&link.to_ne_bytes());
    b.raw(&flags.to_ne_bytes());
    b.raw(&change.to_ne_bytes());
}
