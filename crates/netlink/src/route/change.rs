//! Changes to links, addresses, routes and neighbours as values: each is encoded to a message, and has a description
//! for error texts.

use super::{Address, Neighbour, NewLink, Route, link};
use crate::message::{self, Buffer};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

/// A change. Links are identified by index.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the link and its new state")]
pub enum Change<'a> {
    /// Adds a link.
    AddLink(NewLink<'a>),
    /// Deletes a link; deleting a veth also deletes its peer.
    DeleteLink { link: u32 },
    /// Sets a link up or down.
    SetUp { link: u32, up: bool },
    /// Adds a link to a bridge, or removes it from its bridge.
    SetMaster { link: u32, master: Option<u32> },
    /// Renames a link.
    SetName { link: u32, name: String },
    /// Sets the alias of a link; an empty alias removes it.
    SetAlias { link: u32, alias: String },
    /// Moves a link to another network namespace.
    SetNamespace { link: u32, namespace: BorrowedFd<'a> },
    /// Adds an address; fails if it exists.
    AddAddress(Address),
    /// Deletes an address; fails if it does not exist.
    DeleteAddress(Address),
    /// Adds a route; fails if there is a route to the same network with the same metric.
    AddRoute(Route),
    /// Adds a route, or replaces the route to the same network with the same metric.
    ReplaceRoute(Route),
    /// Deletes a route; fails if it does not exist.
    DeleteRoute(Route),
    /// Adds or replaces a neighbour.
    SetNeighbour(Neighbour),
    /// Deletes a neighbour.
    DeleteNeighbour(Neighbour),
}

impl Change<'_> {
    pub(super) fn kind(&self) -> u16 {
        match self {
            Change::AddLink(_) => libc::RTM_NEWLINK,
            Change::DeleteLink { .. } => libc::RTM_DELLINK,
            Change::SetUp { .. }
            | Change::SetMaster { .. }
            | Change::SetName { .. }
            | Change::SetAlias { .. }
            | Change::SetNamespace { .. } => libc::RTM_SETLINK,
            Change::AddAddress(_) => libc::RTM_NEWADDR,
            Change::DeleteAddress(_) => libc::RTM_DELADDR,
            Change::AddRoute(_) | Change::ReplaceRoute(_) => libc::RTM_NEWROUTE,
            Change::DeleteRoute(_) => libc::RTM_DELROUTE,
            Change::SetNeighbour(_) => libc::RTM_NEWNEIGH,
            Change::DeleteNeighbour(_) => libc::RTM_DELNEIGH,
        }
    }

    pub(super) fn flags(&self) -> u16 {
        match self {
            Change::AddLink(_) | Change::AddAddress(_) | Change::AddRoute(_) => {
                message::NLM_F_CREATE | message::NLM_F_EXCL
            }
            Change::ReplaceRoute(_) | Change::SetNeighbour(_) => {
                message::NLM_F_CREATE | message::NLM_F_REPLACE
            }
            _ => 0,
        }
    }

    pub(super) fn fill(&self, b: &mut Buffer) {
        match self {
            Change::AddLink(new) => new.fill(b),
            Change::DeleteLink { link } => link::fill_index(b, *link),
            Change::SetUp { link, up } => link::fill_up(b, *link, *up),
            Change::SetMaster { link, master } => link::fill_master(b, *link, *master),
            Change::SetName { link, name } => link::fill_name(b, *link, name),
            Change::SetAlias { link, alias } => link::fill_alias(b, *link, alias),
            Change::SetNamespace { link, namespace } => link::fill_move(b, *link, *namespace),
            Change::AddAddress(address) | Change::DeleteAddress(address) => address.fill(b),
            Change::AddRoute(route) | Change::ReplaceRoute(route) | Change::DeleteRoute(route) => {
                route.fill(b);
            }
            Change::SetNeighbour(neighbour) | Change::DeleteNeighbour(neighbour) => neighbour.fill(b),
        }
    }

    /// The change as a verb phrase, for error texts. A link without an entry in `names` is described by its index.
    pub(super) fn describe(&self, names: &BTreeMap<u32, String>) -> String {
        let name = |link: &u32| names.get(link).cloned().unwrap_or_else(|| format!("link {link}"));
        match self {
            Change::AddLink(new) => new.describe(),
            Change::DeleteLink { link } => format!("delete {}", name(link)),
            Change::SetUp { link, up: true } => format!("set {} up", name(link)),
            Change::SetUp { link, up: false } => format!("set {} down", name(link)),
            Change::SetMaster { link, master: Some(m) } => {
                format!("add {} to bridge {}", name(link), name(m))
            }
            Change::SetMaster { link, master: None } => format!("remove {} from its bridge", name(link)),
            Change::SetName { link, name: new } => format!("rename {} to {new}", name(link)),
            Change::SetAlias { link, alias } => format!("set the alias of {} to {alias:?}", name(link)),
            Change::SetNamespace { link, .. } => format!("move {} to another namespace", name(link)),
            Change::AddAddress(a) => format!("add address {} to {}", a.net, name(&a.link)),
            Change::DeleteAddress(a) => format!("delete address {} from {}", a.net, name(&a.link)),
            Change::AddRoute(r) => format!("add route {}", Self::route(r, name)),
            Change::ReplaceRoute(r) => format!("replace route {}", Self::route(r, name)),
            Change::DeleteRoute(r) => format!("delete route {}", Self::route(r, name)),
            Change::SetNeighbour(n) => format!("set neighbour {} on {}", n.ip, name(&n.link)),
            Change::DeleteNeighbour(n) => format!("delete neighbour {} on {}", n.ip, name(&n.link)),
        }
    }

    fn route(route: &Route, name: impl Fn(&u32) -> String) -> String {
        match &route.link {
            Some(link) => format!("{route} on {}", name(link)),
            None => route.to_string(),
        }
    }
}
