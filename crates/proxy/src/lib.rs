//! The node agent: configuration, the event loop, health servers and metrics.

pub mod agent;
pub mod config;
pub mod health;
pub mod metrics;
pub mod modes;
pub mod sysctl;
