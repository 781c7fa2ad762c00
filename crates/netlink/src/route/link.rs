//! Links: the network interfaces of a namespace (`struct ifinfomsg`, `linux/if_link.h`).

use super::fixed;
use crate::Malformed;
use crate::message::{Attr, Buffer, attrs};
use std::os::fd::{AsRawFd, BorrowedFd};

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
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

/// A link, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is set up.
    pub up: bool,
    /// Whether the other side is there.
    pub carrier: bool,
    /// Whether the kernel has taken note of all that and sends packets. It does so some time after the carrier is
    /// there; what is sent in between is lost.
    pub operational: bool,
    /// The bridge it belongs to.
    pub master: Option<u32>,
    /// The largest packet it carries.
    pub mtu: Option<u32>,
    /// Its hardware address, where it has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// The name of its driver, where it has one: `veth`, `bridge`, `dummy`.
    pub kind: Option<String>,
    /// A text for people to read, if somebody gave it one.
    pub alias: Option<String>,
}

impl Link {
    /// Reads the body of an `RTM_NEWLINK` message.
    pub fn decode(body: &[u8]) -> Result<Link, Malformed> {
        let header: [u8; 16] = fixed(body, "link header")?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let all = attrs(&body[16..]);
        let number = |kind, what| all.clone().find(kind).map(|a| a.u32(what)).transpose();
        let text = |a: Attr<'_>, what| a.str(what).map(str::to_owned);
        let kind = all.clone().find(IFLA_LINKINFO).and_then(|a| a.nested().find(IFLA_INFO_KIND));
        Ok(Link {
            index: word(4),
            name: all.clone().need(IFLA_IFNAME, "link name")?.str("link name")?.to_owned(),
            up: word(8) & IFF_UP != 0,
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

/// A link to be made.
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: LinkKind<'a>,
    /// Whether it is set up at once.
    pub up: bool,
    /// The bridge it joins at once.
    pub master: Option<u32>,
}

/// What a new link is.
#[derive(Clone, Debug)]
pub enum LinkKind<'a> {
    /// One end of a cable.
    Veth(Peer<'a>),
    /// A switch. It floods multicast to every port: there is no querier that could teach it better, and
    /// neighbour discovery must not depend on one.
    Bridge,
    /// A link that leads nowhere, to hold addresses.
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

/// The far end of a veth pair. It is born down: the kernel cannot set it up before the near end exists.
#[derive(Clone, Debug)]
pub struct Peer<'a> {
    /// Its name.
    pub name: String,
    /// The network namespace it is placed in; else it stays here.
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

/// The body of a request that puts the link under a bridge, or takes it out.
pub(super) fn fill_master(b: &mut Buffer, link: u32, master: Option<u32>) {
    header(b, link, None);
    b.attr_u32(IFLA_MASTER, master.unwrap_or(0));
}

/// The body of a request that renames the link.
pub(super) fn fill_name(b: &mut Buffer, link: u32, name: &str) {
    header(b, link, None);
    b.attr_str(IFLA_IFNAME, name);
}

/// The body of a request that gives the link an alias. The kernel takes the value as it is: a closing NUL would
/// count as text, and keep an empty alias from taking away the one there is.
pub(super) fn fill_alias(b: &mut Buffer, link: u32, alias: &str) {
    header(b, link, None);
    b.attr(IFLA_IFALIAS, alias.as_bytes());
}

/// The body of a request that moves the link to another namespace.
pub(super) fn fill_move(b: &mut Buffer, link: u32, namespace: BorrowedFd<'_>) {
    header(b, link, None);
    fill_namespace(b, namespace);
}

/// The body of a request that names the link by its number only.
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

fn header(b: &mut Buffer, link: u32, up: Option<bool>) {
    let flags = if up == Some(true) { IFF_UP } else { 0 };
    let change = if up.is_some() { IFF_UP } else { 0 };
    b.raw(&[0; 4]);
    b.raw(&link.to_ne_bytes());
    b.raw(&flags.to_ne_bytes());
    b.raw(&change.to_ne_bytes());
}
