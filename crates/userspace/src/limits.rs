//! How many connections there may be: as many as file descriptors allow.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::clock::Moment;

/// Kept free for everything else that the agent does.
const RESERVE: u64 = 512;
/// As many as anybody could want; more are asked for only where they cost nothing.
const ENOUGH: u64 = 1 << 20;
/// The least time between two lines in the log.
const QUIET: Duration = Duration::from_secs(10);

/// Raises the limit on file descriptors as far as we may, and tells what it is then.
pub(crate) fn raise() -> u64 {
    let is = getrlimit(Resource::Nofile);
    let hard = is.maximum.unwrap_or(ENOUGH);
    for wanted in [hard.max(ENOUGH), hard] {
        let limit = Rlimit { current: Some(wanted), maximum: Some(wanted.max(hard)) };
        if setrlimit(Resource::Nofile, limit).is_ok() {
            return wanted;
        }
    }
    is.current.unwrap_or(hard)
}

/// What connections share.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Connections there may be.
    pub(crate) connections: usize,
    /// Pipes that each of the workers may have.
    pub(crate) pipes: usize,
    open: AtomicUsize,
    said: AtomicU64,
}

impl Limits {
    /// For so many file descriptors, of which UDP sessions take one each. An eighth is for pipes; a connection that
    /// gets none moves its bytes by copying.
    pub(crate) fn new(descriptors: u64, sessions: u64, workers: usize) -> Limits {
        let rest = descriptors.saturating_sub(RESERVE).saturating_sub(sessions.min(descriptors / 4));
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Limits {
            connections: number((rest - rest / 8) / 2).max(1),
            pipes: number(rest / 8 / 2) / workers.max(1),
            open: AtomicUsize::new(0),
            said: AtomicU64::new(0),
        }
    }

    /// Asks for one more; none if there are enough.
    pub(crate) fn admit(self: &std::sync::Arc<Self>) -> Option<Admission> {
        let admitted = self
            .open
            .fetch_update(Relaxed, Relaxed, |open| (open < self.connections).then_some(open + 1))
            .is_ok();
        admitted.then(|| Admission(self.clone()))
    }

    /// How many there are.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Says that a connection was refused, unless that was said a moment ago.
    pub(crate) fn say_refused(&self, why: &str) {
        let (now, said) = (Moment::now(), self.said.load(Relaxed));
        let due = Moment::from_number(said).is_none_or(|last| last.after(QUIET) <= now);
        if due && self.said.compare_exchange(said, now.number(), Relaxed, Relaxed).is_ok() {
            tracing::warn!(
                open = self.open(),
                limit = self.connections,
                "new connections are refused: {why} (raise LimitNOFILE= or ulimit -n)"
            );
        }
    }
}

/// One connection's place among those that may be.
#[derive(Debug)]
pub(crate) struct Admission(std::sync::Arc<Limits>);

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
