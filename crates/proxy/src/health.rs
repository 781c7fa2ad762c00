//! The servers of a node: health and metrics on its own two addresses, and the `healthCheckNodePort` of Services.
//!
//! The state behind `/healthz` and `/livez` and the listeners are `portway-serve`'s. [`ServicePorts`] answers on the
//! `healthCheckNodePort` of each Service that has one, [`serve_healthz`] and [`serve_metrics`] on the node's addresses.

#[cfg(test)]
mod free_port;
mod server;
mod service;

pub use portway_serve::{BindError, Health, HealthState, Timestamp};
pub use server::{MetricsPages, healthz_router, metrics_router, serve_healthz, serve_metrics};
pub use service::{PortUnavailable, ServicePorts, WhyUnavailable, listen_addresses};
