//! nf_tables over netlink: typed objects, atomic batches, listings, notifications.
//!
//! The kernel's own vocabulary (`linux/netfilter/nf_tables.h`), no more than Portway needs of it, and all of it
//! both ways: what [`batch`] writes, [`list`] reads back into equal values, which is how a mode compares what it
//! wants with what is there.

pub mod batch;
pub mod expr;
pub mod list;
pub mod monitor;
pub mod object;
#[cfg(test)]
mod tests;
mod wire;

pub use batch::Batch;
pub use expr::{Expr, Register};
pub use monitor::{Change, Commit, Monitor, Touched};
pub use object::{Chain, ChainKind, Data, Element, Hook, HookPoint, Key, Rule, Set, Value, Verdict};

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
            Family::Ipv4 => 2,
            Family::Ipv6 => 10,
        }
    }

    /// Bytes in an address.
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
