//! The ipvs mode: a hash table in the kernel instead of a list of rules.
//!
//! ```text
//! kube-ipvs0      holds every address of every Service, so that packets to them are this machine's
//! virtual server  one per address, port and protocol; behind it one real server per endpoint, reached by NAT
//! sets            which addresses and ports are what: KUBE-CLUSTER-IP, KUBE-LOAD-BALANCER, KUBE-LOOP-BACK, …
//! rules           the same few whatever the Services are: they masquerade, refuse and drop by what the sets say
//! ```
//!
//! Everything but the rules is programmed by netlink, and a change costs a few messages. The rules are on the iptables
//! engine (`portway_xtables`).
//!
//! [`sets`], [`servers`] and [`marks`] are the words, [`mod@render`] turns plans into them and [`rules`]
//! settings into rules; [`diff`] is a transaction, [`listing`] what the kernel holds and [`mod@reconcile`] compares;
//! [`mod@commit`] is the boundary to the kernel, [`fake`] stands in for it, [`modules`] and [`sysctl`] see to it that it can; [`eval`] follows a packet,
//! [`leftovers`] cleans up, once no connection uses them (`connections`), [`drift`] detects changes by other processes, [`mode`] is the [`portway_dataplane::Program`] that ties them together.

pub mod commit;
mod connections;
pub mod diff;
pub mod drift;
pub mod eval;
pub mod fake;
pub mod leftovers;
pub mod listing;
pub mod marks;
pub mod mode;
pub mod modules;
pub mod reconcile;
pub mod render;
pub mod rules;
pub mod servers;
pub mod sets;
pub mod sysctl;

pub use mode::{Ipvs, MODE};

/// The device that holds the addresses of all Services.
pub const DEVICE: &str = "kube-ipvs0";
