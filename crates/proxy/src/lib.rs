//! The node agent: configuration, event loop, health and metrics servers, and kernel settings.

pub mod agent;
pub mod config;
pub mod health;
pub mod metrics;
pub mod modes;
pub mod sysctl;

#[cfg(test)]
mod upstream;
