//! The nftables mode: a ruleset that does not grow.
//!
//! ```text
//!                    services ─ vmap ─▶ cluster-ip-3 ─▶ mark unless from a pod, dnat to endpoints[VIP, random % 3]
//! prerouting, output ┤
//!                    nodeports ─ vmap ─▶ nodeport-3   ─▶ mark,                  dnat to nodeport-endpoints[…]
//! ```
//!
//! Rules are constant: a Service is an element per frontend in a verdict map, which chooses a policy and a number
//! of endpoints, and an element per endpoint in a data map. One chain exists per policy and number of endpoints
//! in use. Only Services with affinity have chains and maps of their own, since each remembers its clients.
//!
//! The floor plan: [`rules`] are the words, [`render`] turns settings and plans into a [`table::Table`] or parts of
//! one, [`diff`] compares, [`commit`] talks to the kernel, [`eval`] follows a packet, [`mode`] is the
//! [`portway_dataplane::Dataplane`] that ties them together.

pub mod commit;
pub mod diff;
pub mod eval;
mod flows;
pub mod mode;
mod probe;
pub mod render;
pub mod rules;
mod slots;
pub mod table;

pub use mode::Nftables;

/// The name of our table in each family.
pub const TABLE: &str = "portway";
