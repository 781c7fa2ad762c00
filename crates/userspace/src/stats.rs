//! The counters of each Service port.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the time an endpoint takes to accept, in seconds; the last bucket has none.
pub const BUCKETS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Counters that all worker threads add to.
#[derive(Debug, Default)]
pub struct PortStats {
    connections: AtomicU64,
    open: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
    connect_buckets: [AtomicU64; BUCKETS.len() + 1],
    connect_micros: AtomicU64,
}

/// A snapshot of the counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Connections accepted, and UDP sessions begun.
    pub connections: u64,
    /// Connections and UDP sessions that are open.
    pub open: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
    /// Attempts to connect to another endpoint after one failed.
    pub retries: u64,
    /// Connections that no endpoint accepted, or for which there were no file descriptors.
    pub failures: u64,
    /// How many connects to endpoints took up to each of [`BUCKETS`], and longer.
    pub connect_buckets: [u64; BUCKETS.len() + 1],
    /// The time of all connects together, in seconds.
    pub connect_seconds: f64,
}

impl PortStats {
    pub(crate) fn opened(&self) {
        self.connections.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
    }

    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Relaxed);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn connected(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.connect_buckets[bucket].fetch_add(1, Relaxed);
        self.connect_micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The counters now.
    pub fn counts(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            connections: get(&self.connections),
            open: get(&self.open),
            received: get(&self.received),
            sent: get(&self.sent),
            retries: get(&self.retries),
            failures: get(&self.failures),
            connect_buckets: std::array::from_fn(|i| get(&self.connect_buckets[i])),
            connect_seconds: get(&self.connect_micros) as f64 / 1e6,
        }
    }
}
