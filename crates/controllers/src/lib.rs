//! The endpoint controllers: EndpointSlices, Endpoints objects and mirrored EndpointSlices, in place of those of
//! kube-controller-manager.
//!
//! In: an API server. Out: writes to it. Each controller is a pure function from the [`cluster`](cluster::Cluster), a
//! compact copy of the objects, to a [`plan`](plan::Plan) of writes; one runner watches, queues keys, and sends the
//! writes. Of several processes one writes: they elect a leader with a Lease.

pub mod cluster;
mod controller;
pub mod deployment;
mod endpoint_controller;
pub mod endpoints;
pub mod endpointslice;
mod execute;
mod fingerprint;
pub mod garbage;
mod generated;
pub mod key;
mod kind;
mod metrics;
pub mod mirroring;
pub mod names;
pub mod node_lifecycle;
mod options;
pub mod plan;
pub mod queue;
pub mod replicaset;
mod run;
mod runner;
#[cfg(test)]
mod testing;
mod under_way;
pub mod views;
pub mod workloads;

pub use controller::Clock;
pub use fingerprint::EndpointPrint;
pub use kind::Kind;
pub use options::{Choice, Options};
pub use run::{RunError, run};
