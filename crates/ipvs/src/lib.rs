//! The ipvs mode: Services are found in the kernel's hash table of virtual servers instead of a list of rules.
//!
//! ```text
//! kube-ipvs0      dummy device with the addresses of all Services, so that packets to them are delivered locally
//! virtual server  one per address, port and protocol; each endpoint is a real server of it, reached by NAT
//! sets            addresses and ports by kind: KUBE-CLUSTER-IP, KUBE-LOAD-BALANCER, KUBE-LOOP-BACK, …
//! rules           a constant number; they look up the sets to masquerade, reject or drop
//! ```
//!
//! Virtual servers, sets and addresses are programmed by netlink, and a change costs a few messages. The rules are
//! written by the iptables engine (`portway_xtables`).
//!
//! - [`sets`], [`servers`] and [`marks`]: the kernel objects as values. [`mod@render`] derives them from plans, and
//!   [`rules`] derives the rules from the settings.
//! - [`diff`]: the transaction. [`listing`] lists the kernel's objects, and [`mod@reconcile`] compares them with the
//!   wanted ones.
//! - [`mod@commit`]: the boundary to the kernel, with [`fake`] as its replacement in tests. [`modules`] and [`sysctl`]
//!   check and set the kernel's prerequisites.
//! - [`eval`] follows a packet; [`drift`] detects changes by other processes; [`leftovers`] removes the mode's objects,
//!   if asked to only when no connection uses them (`connections`).
//! - [`mode`]: the [`portway_dataplane::Program`].

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

/// The dummy device that has the addresses of all Services.
pub const DEVICE: &str = "kube-ipvs0";
