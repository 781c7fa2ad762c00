//! The iptables mode: the chains that administrators know from kube-proxy, changed one at a time.
//!
//! ```text
//! nat     PREROUTING, OUTPUT ─▶ KUBE-SERVICES ─▶ KUBE-SVC-… ─▶ KUBE-SEP-… ─▶ DNAT to the endpoint
//!                                    │                ▲
//!                                    └▶ KUBE-NODEPORTS ─▶ KUBE-EXT-… (marks, or stays local)
//!         POSTROUTING ─▶ KUBE-POSTROUTING ─▶ MASQUERADE packets with the mark
//! filter  INPUT, FORWARD, OUTPUT ─▶ KUBE-SERVICES, KUBE-EXTERNAL-SERVICES, … ─▶ REJECT or DROP without endpoints
//! ```
//!
//! A Service has chains of its own, and single rules in chains that all share. [`render`] turns settings and plans into
//! them; [`portway_xtables`] brings them into the kernel; [`mode`] is the [`portway_dataplane::Mode`].

pub mod mode;
pub mod render;

pub use mode::{Iptables, MODE};
