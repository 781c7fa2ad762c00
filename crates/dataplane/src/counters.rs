//! Counters that a mode has: of connections for each Service, of packets in the kernel.

use std::fmt;

/// A source of counters. It may be called from any thread, and returns within a second.
pub trait CounterSource: Send + Sync + fmt::Debug {
    /// The counters in the Prometheus text format, with their HELP and TYPE lines.
    fn exposition(&self) -> String;
}
