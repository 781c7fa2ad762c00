//! The nftables mode: a ruleset that does not grow.
//!
//! ```text
//!                    services  ─ set ─▶ cluster-ip-4 ─▶ mark unless from a pod, dnat to endpoints[VIP, random]
//! prerouting, output ┤
//!                    nodeports ─ set ─▶ nodeport-external-4 ─▶ mark,            dnat to nodeport-endpoints[…]
//! ```
//!
//! Rules are constant: a Service is an element per frontend in a set, which stands for a policy and a power of two
//! that its endpoints fit into, and an element per endpoint in a data map. One set and one chain exist per policy
//! and power of two in use. Only Services with affinity have chains and maps of their own, since each remembers
//! its clients.
//!
//! [`rules`] are values for the kernel's objects, [`render`] turns settings and plans into a [`table::Table`] or parts of
//! one, [`diff`] compares, [`commit`] sends transactions to the kernel and [`fake`] stands in for it, [`eval`] follows a packet,
//! [`drift`] detects changes by other processes, [`mode`] is the [`portway_dataplane::Program`] that ties them together.

pub mod commit;
pub mod diff;
pub mod drift;
pub mod eval;
pub mod fake;
pub mod leftovers;
pub mod mode;
mod probe;
pub mod render;
pub mod rules;
mod slots;
pub mod table;

pub use mode::{MODE, Nftables};

/// The name of the table in each family.
pub const TABLE: &str = "portway";
/// The name of kube-proxy's table.
pub const KUBE_PROXY_TABLE: &str = "kube-proxy";
