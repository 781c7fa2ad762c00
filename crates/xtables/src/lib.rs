//! The iptables engine: makes the tables of iptables hold the rules that a mode renders, and nothing else of its chains.
//!
//! ```text
//!  Renderer ──▶ desired ──┐
//!                         ├─▶ diff: Transaction ──▶ script ──▶ commit: iptables-restore --noflush
//!  iptables-save ──▶ listing ──▶ reconcile ──┘
//! ```
//!
//! A change sends the chains that differ, and inserts and deletes single rules in shared chains: all of it or nothing,
//! and nothing of the rules that other programs have in the same tables.
//!
//! [`chains`] and [`rules`] are values that print as `iptables-save` prints them and are read back; [`desired`] are the
//! rules that a mode wants; [`diff`] is a transaction, [`listing`] reads the kernel's rules, [`mod@reconcile`] compares;
//! [`commit`] runs the tool, of which there are two [`variant`]s, and [`fake`] stands in for it; [`eval`] follows a
//! packet; [`leftovers`] finds and removes the rules of earlier runs and of kube-proxy; [`drift`] detects changes by
//! other processes; [`engine`] is the [`portway_dataplane::Program`] that ties them together.

mod apply;
pub mod chains;
pub mod commit;
pub mod desired;
pub mod diff;
pub mod drift;
pub mod engine;
pub mod eval;
mod failure;
pub mod fake;
pub mod fragments;
pub mod leftovers;
pub mod listing;
pub mod localnet;
pub mod reconcile;
pub mod rules;
mod run;
pub mod script;
pub mod variant;

pub use engine::Engine;
pub use variant::{Tools, Variant};

/// Whether a chain of this name belongs to a mode, or to kube-proxy.
pub fn is_proxy_chain(chain: &str) -> bool {
    !matches!(chains::Chain::parse(chain), chains::Chain::Other(_))
}

/// The kernel's counter of connections to node ports at 127.0.0.1, by the name that kube-proxy gave it.
pub const LOCALHOST_COUNTER: &str = "localhost_nps_accepted_pkts";
