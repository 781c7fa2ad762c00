//! Computes the plans of a cluster's Services for one node: pure functions, no clock, no I/O.
//!
//! [`api`] objects arrive as [`ClusterEvent`]s. [`Cluster`] keeps the fields that matter in a compact form, and tracks
//! which Services an event touched. For these it computes a [`ServicePlan`]: the frontends, and the endpoints that are
//! eligible under each policy. A mode turns plans into rules, and does not depend on Kubernetes objects.
//!
//! Invariants:
//! - An invalid object is a [`Rejected`] and does not affect other objects; its last valid version stays in force. An
//!   address or node port that another Service holds is left out of the plan until it is free.
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

/// The types of API objects, and the enum of the four that a [`Cluster`] is made of.
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
