//! HTTP servers, health, metrics, status and logging for long-running processes.
//!
//! HTTP servers with limits ([`Server`], [`serve_at`]), the state of `/healthz` and `/livez` ([`Health`]), metrics in
//! the text format ([`metrics`]), a snapshot of the state of the process ([`Status`]), CPU profiles
//! ([`profile_router`]), and logging that never waits for a reader ([`logging`]).

mod bind;
mod client;
mod health;
mod listen;
pub mod logging;
pub mod metrics;
mod page;
mod profile;
pub mod rfc3339;
mod server;
mod status;

pub use bind::{BindError, ServerName, serve_at};
pub use client::{Reply, get};
pub use health::{Answer, Health, HealthPage, HealthState, PartHealth, Timestamp, health_router};
pub use listen::{DualStack, listen};
pub use logging::LogFormat;
pub use page::page;
pub use profile::profile_router;
pub use server::{Limits, Server};
pub use status::{PartStatus, Pending, RejectedObject, SourceStatus, Status};
