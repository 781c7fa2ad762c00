//! Health, as seen from outside: by probes, by load balancers, by Prometheus.
//!
//! [`HealthState`] is the pure state behind `/healthz` and `/livez`; the event loop tells it what happens, with the
//! clock handed in. [`Health`] shares it with the servers. [`ServicePorts`] answers on the `healthCheckNodePort` of
//! each Service that has one, [`serve_healthz`] and [`serve_metrics`] on the node's own two addresses.

mod listen;
mod node;
#[cfg(test)]
mod probe;
mod rfc3339;
mod server;
mod service;
mod serving;

pub use node::{Answer, Health, HealthState, Moment};
pub use server::{
    BindError, Server, StatusPages, healthz_router, metrics_router, serve_healthz, serve_metrics,
};
pub use service::{PortUnavailable, ServicePorts, WhyUnavailable, listen_addresses};
