//! The iptables engine: writes the rules that a mode renders into the tables of iptables, and removes everything else
//! from the mode's chains.
//!
//! ```text
//!  Renderer ──▶ desired ──┐
//!                         ├─▶ diff: Transaction ──▶ script ──▶ commit: iptables-restore --noflush
//!  iptables-save ──▶ listing ──▶ reconcile ──┘
//! ```
//!
//! A script has only the chains that differ, and inserts and deletes single rules in shared chains. The tool applies
//! the part of each table as a whole or not at all. Rules of other programs in the same tables are not changed.
//!
//! [`chains`] and [`rules`] are values that print in the format of `iptables-save`, and are parsed from it.
//! [`desired`] has the rules that a mode wants. [`diff`] has the transaction. [`listing`] reads the rules from the
//! kernel, and [`mod@reconcile`] compares them. [`commit`] runs the tool, which has two [`variant`]s; [`fake`] is a
//! tool for tests. [`eval`] follows a packet through the rules. [`leftovers`] finds and removes the rules of earlier
//! runs and of kube-proxy. [`drift`] detects changes by other processes. [`engine`] has the
//! [`portway_dataplane::Program`] that uses all of them.

mod apply;
pub mod chains;
pub mod commit;
mod counter;
pub mod desired;
pub mod diff;
pub mod drift;
pub mod engine;
pub mod eval;
mod failure;
pub mod fake;
mod forward_policy;
pub mod fragments;
pub mod leftovers;
pub mod listing;
pub mod localnet;
pub mod reconcile;
pub mod rules;
mod run;
pub mod script;
pub mod variant;

pub use counter::InvalidCounter;
pub use engine::Engine;
pub use forward_policy::ForwardPolicy;
pub use variant::{Tools, Variant};

/// Whether this is the name of a chain of a mode or of kube-proxy.
pub fn is_proxy_chain(chain: &str) -> bool {
    !matches!(chains::Chain::parse(chain), chains::Chain::Other(_))
}

/// The name of the kernel's counter of dropped invalid packets, which is the same as kube-proxy's.
pub const INVALID_COUNTER: &str = "ct_state_invalid_dropped_pkts";
