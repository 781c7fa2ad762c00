//! The nftables mode: the number of rules does not depend on the number of Services.
//!
//! ```text
//!                    services  ─ set ─▶ cluster-ip-4 ─▶ mark unless from a pod, dnat to endpoints[VIP, random]
//! prerouting, output ┤
//!                    nodeports ─ set ─▶ nodeport-external-4 ─▶ mark,            dnat to nodeport-endpoints[…]
//! ```
//!
//! A Service adds elements, not rules: one element per frontend to a set, and one element per frontend and endpoint to
//! a data map. There is one set and one chain for each traffic policy and power of two in use; the power of two is the
//! smallest one that is not less than the number of endpoints. Only Services with session affinity have chains and maps
//! of their own, because each endpoint has its own set of clients.
//!
//! [`rules`] builds the kernel's objects as values. [`render`] turns settings and plans into a [`table::Table`] or
//! parts of one. [`diff`] compares tables. [`commit`] sends transactions to the kernel; [`fake`] is a kernel for
//! tests. [`eval`] follows a packet through the rules. [`drift`] detects changes by other processes. [`mode`] has the
//! [`portway_dataplane::Program`] that uses all of them.

pub mod commit;
pub mod diff;
pub mod drift;
pub mod eval;
pub mod fake;
mod holders;
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
