//! The HTTP servers of a node: health, metrics, and the `healthCheckNodePort` of Services.
//!
//! The listeners and the state of `/healthz` and `/livez` come from `portway-serve`. [`ServicePorts`] serves the
//! `healthCheckNodePort` of each Service that has one; [`serve_healthz`] and [`serve_metrics`] serve the configured
//! addresses.

#[cfg(test)]
mod free_port;
mod server;
mod service;

pub use portway_serve::{BindError, Health, HealthState, Timestamp};
pub use server::{MetricsPages, healthz_router, metrics_router, serve_healthz, serve_metrics};
pub use service::{PortUnavailable, ServicePorts, UnavailableReason, listen_addresses};
