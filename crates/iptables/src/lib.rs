//! The iptables mode: the chains that administrators know from kube-proxy, changed one at a time.
//!
//! ```text
//! nat     PREROUTING, OUTPUT ─▶ KUBE-SERVICES ─▶ KUBE-SVC-… ─▶ KUBE-SEP-… ─▶ DNAT to the endpoint
//!                                    │                ▲
//!                                    └▶ KUBE-NODEPORTS ─▶ KUBE-EXT-… (marks, or stays local)
//!         POSTROUTING ─▶ KUBE-POSTROUTING ─▶ MASQUERADE what is marked
//! filter  INPUT, FORWARD, OUTPUT ─▶ KUBE-SERVICES, KUBE-EXTERNAL-SERVICES, … ─▶ REJECT or DROP what nobody serves
//! ```
//!
//! A Service has chains of its own, and single rules in chains that all share. A change sends the chains that differ,
//! and inserts and deletes single rules in the shared ones, through `iptables-restore --noflush`: all of it or
//! nothing, and nothing of what others have in the same tables.
//!
//! The floor plan: [`chains`] and [`rules`] are the words, each printed as `iptables-save` prints it and read back;
//! [`render`] turns settings and plans into rules, [`diff`] is a transaction and how it is printed, [`listing`] reads
//! what the kernel holds and [`mod@reconcile`] compares; [`commit`] runs the tool, of which there are two [`variant`]s, and
//! [`fake`] stands in for it; [`eval`] follows a packet, [`leftovers`] cleans up, [`mode`] is the
//! [`portway_dataplane::Dataplane`] that ties them together.

pub mod chains;
pub mod commit;
pub mod diff;
pub mod eval;
mod failure;
pub mod fake;
pub mod leftovers;
pub mod listing;
pub mod mode;
pub mod reconcile;
pub mod render;
pub mod rules;
mod run;
pub mod script;
pub mod variant;

pub use mode::Iptables;
pub use variant::{Tools, Variant};

/// Whether a chain of this name would be ours.
pub fn is_ours(chain: &str) -> bool {
    !matches!(chains::Chain::parse(chain), chains::Chain::Other(_))
}

/// The kernel's counter of connections to node ports at 127.0.0.1, by the name that kube-proxy gave it.
pub const LOCALHOST_COUNTER: &str = "localhost_nps_accepted_pkts";
