//! The iptables mode: the chains and rules of kube-proxy, updated incrementally.
//!
//! ```text
//! nat     PREROUTING, OUTPUT ─▶ KUBE-SERVICES ─▶ KUBE-SVC-… ─▶ KUBE-SEP-… ─▶ DNAT to the endpoint
//!                                    │                ▲
//!                                    └▶ KUBE-NODEPORTS ─▶ KUBE-EXT-… (masquerades, or only local endpoints)
//!         POSTROUTING ─▶ KUBE-POSTROUTING ─▶ MASQUERADE marked packets
//! filter  INPUT, FORWARD, OUTPUT ─▶ KUBE-SERVICES, KUBE-EXTERNAL-SERVICES, … ─▶ REJECT or DROP if there is no endpoint
//! ```
//!
//! A Service has its own chains, and rules in chains that all Services share. [`render`] renders both from settings and
//! plans, [`portway_xtables`] applies them to the kernel, and [`mode`] implements [`portway_dataplane::Mode`].

pub mod mode;
pub mod render;

pub use mode::{Iptables, MODE};
