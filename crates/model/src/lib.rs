//! What a cluster's Services mean for one node: pure, no clock, no I/O.
//!
//! [`api`] objects come in as [`ClusterEvent`]s; [`Cluster`] keeps a compact form of the fields that matter, and knows
//! which Services an event touched; for those it computes a [`ServicePlan`]: the frontends, and for each which
//! endpoints are eligible under which policy. A mode turns plans into rules and needs to know nothing of
//! Kubernetes objects.
//!
//! What always holds:
//! - One bad object is a [`Rejected`], never a stop; what it said before it turned bad stays in force. An address
//!   or node port that another Service holds is left out until it is free, and the rest is programmed.
//! - The cost of an event is that of the Services it touches.
//! - Plans do not depend on the order in which events arrived, only on the objects (and, where two Services claim
//!   the same address, on which had it first).

mod claims;
mod cluster;
mod event;
pub mod ingest;
mod node;
mod plan;
mod reject;
mod select;
mod types;

/// The object types, and the enum of those that a cluster is made of.
pub mod api {
    pub use crate::event::Object;
    pub use portway_api::*;
}

pub use cluster::{Changes, Cluster, HealthCheck, Identity, ServiceChange};
pub use event::ClusterEvent;
pub use ingest::{PROXY_PROTOCOL_ANNOTATION, SCHEDULER_ANNOTATION};
pub use node::{Node, NodeState};
pub use plan::{Frontend, FrontendKind, Outcome, PortPlan, ServicePlan};
pub use reject::Rejected;
pub use types::{Family, PortName, Protocol, ServiceName, Target, TrafficPolicy};
