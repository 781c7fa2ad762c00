//! nf_tables over netlink: typed objects, atomic batches, listings, notifications.
//!
//! The objects of `linux/netfilter/nf_tables.h` that Portway uses, each with an encoder and a decoder. An object that
//! [`batch`] adds is listed by [`list`] as an equal value, so that a mode can compare the rules it wants with the rules
//! in the kernel.

pub mod batch;
pub mod expr;
pub mod list;
pub mod monitor;
pub mod object;
#[cfg(test)]
mod tests;
mod watcher;
mod wire;

pub use batch::Batch;
pub use expr::{Expr, Register};
pub use monitor::{Change, Commit, Monitor, Touched};
pub use object::{Chain, ChainKind, Data, Element, Hook, HookPoint, Key, Rule, Set, Value, Verdict};
pub use watcher::{Notification, Watcher};

/// The address family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// `table ip`
    Ipv4,
    /// `table ip6`
    Ipv6,
}

impl Family {
    /// The kernel's number for it (`NFPROTO_*`).
    pub const fn number(self) -> u8 {
        match self {
            Family::Ipv4 => wire::NFPROTO_IPV4,
            Family::Ipv6 => wire::NFPROTO_IPV6,
        }
    }

    /// Length of an address in bytes.
    pub const fn address_len(self) -> u32 {
        match self {
            Family::Ipv4 => 4,
            Family::Ipv6 => 16,
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
        })
    }
}
