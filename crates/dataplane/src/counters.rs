//! Counters of connections for each Service, where a mode has them.

use std::fmt;

/// A source of counters. Any thread may ask it, and it answers within a second.
pub trait CounterSource: Send + Sync + fmt::Debug {
    /// The counters in the Prometheus text format, with their HELP and TYPE lines.
    fn exposition(&self) -> String;
}
