//! Limits on connections, UDP sessions and pipes, derived from the limit on file descriptors.

use crate::clock::Moment;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// UDP sessions may take one descriptor in this many.
const FOR_SESSIONS: usize = 4;
/// Descriptors kept free for listeners, agents and threads.
const RESERVE: u64 = 64;
/// One descriptor in this many is reserved for pipes; a connection without a pipe copies its bytes.
const FOR_PIPES: usize = 64;
/// The limit to raise to; a higher hard limit is used as it is.
const WANTED: u64 = 1 << 20;
/// The minimum time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// The reason for a refused connection, and the remedy.
pub(crate) const NO_DESCRIPTORS: &str =
    "the limit on file descriptors is reached (raise LimitNOFILE= or ulimit -Hn)";

/// Raises the limit on file descriptors as far as the process may, and returns it.
pub(crate) fn raise() -> u64 {
    let present = getrlimit(Resource::Nofile);
    let hard = present.maximum.unwrap_or(WANTED);
    for wanted in [hard.max(WANTED), hard] {
        let limit = Rlimit { current: Some(wanted), maximum: Some(wanted.max(hard)) };
        if setrlimit(Resource::Nofile, limit).is_ok() {
            return wanted;
        }
    }
    present.current.unwrap_or(hard)
}

/// The uses of file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The sockets towards client and endpoint.
    Connection,
    /// The socket of a UDP session towards its endpoint.
    Session,
    /// Both ends of a pipe.
    Pipe,
}

impl Use {
    fn descriptors(self) -> usize {
        match self {
            Use::Connection | Use::Pipe => 2,
            Use::Session => 1,
        }
    }
}

/// The file descriptors that all workers share.
#[derive(Debug)]
pub(crate) struct Limits {
    total: usize,
    used: AtomicUsize,
    connections: AtomicUsize,
    /// Empty pipes that each worker may keep.
    spare: usize,
    last_warning: AtomicU64,
}

impl Limits {
    /// Limits of so many descriptors, for so many workers.
    pub(crate) fn new(descriptors: u64, workers: usize) -> Limits {
        let total = usize::try_from(descriptors.saturating_sub(RESERVE)).unwrap_or(usize::MAX).max(4);
        let (used, connections) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // The spare pipes of all workers fit into the descriptors reserved for pipes, so that they take none from
        // connections.
        let spare = total / FOR_PIPES / Use::Pipe.descriptors() / workers.max(1);
        Limits { total, used, connections, spare, last_warning: AtomicU64::new(0) }
    }

    /// Empty pipes that each worker may keep.
    pub(crate) fn spare(&self) -> usize {
        self.spare
    }

    /// The maximum number of connections, if there are no UDP sessions and no pipe uses a descriptor outside of the
    /// reserve.
    pub(crate) fn connections(&self) -> usize {
        (self.total - self.total / FOR_PIPES) / 2
    }

    /// The maximum number of UDP sessions, whatever the settings: a flood of sessions must leave descriptors for
    /// connections.
    pub(crate) fn sessions(&self) -> usize {
        (self.total / FOR_SESSIONS).max(1)
    }

    /// Reserves the descriptors for a use; none if there are not enough.
    pub(crate) fn permit(self: &Arc<Self>, usage: Use) -> Option<Permit> {
        let most = if usage == Use::Pipe { self.total } else { self.total - self.total / FOR_PIPES };
        let more = |used: usize| Some(used + usage.descriptors()).filter(|used| *used <= most);
        self.used.fetch_update(Relaxed, Relaxed, more).ok()?;
        if usage == Use::Connection {
            self.connections.fetch_add(1, Relaxed);
        }
        Some(Permit { limits: self.clone(), usage })
    }

    /// The number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Warns that a connection was refused, at most once per [`WARNING_INTERVAL`].
    pub(crate) fn warn_refused(&self, reason: &str) {
        let (now, last) = (Moment::now(), self.last_warning.load(Relaxed));
        let due = Moment::from_number(last).is_none_or(|last| last.after(WARNING_INTERVAL) <= now);
        if due && self.last_warning.compare_exchange(last, now.number(), Relaxed, Relaxed).is_ok() {
            tracing::warn!(
                open = self.open(),
                limit = self.connections(),
                "new connections are refused: {reason}"
            );
        }
    }
}

/// A reservation of file descriptors; released when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limits: Arc<Limits>,
    usage: Use,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limits.used.fetch_sub(self.usage.descriptors(), Relaxed);
        if self.usage == Use::Connection {
            self.limits.connections.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_pipes_fit_into_the_descriptors_reserved_for_pipes() {
        let spare = |total, workers| Limits::new(RESERVE + total, workers).spare();
        assert_eq!([spare(127, 1), spare(128, 1), spare(128, 2), spare(1024, 2)], [0, 1, 0, 4]);
        assert_eq!([spare(20_000, 8), spare(1 << 20, 8), spare(0, 0)], [19, 1024, 0]);
    }

    #[test]
    fn sessions_leave_descriptors_for_connections() {
        let limits = Arc::new(Limits::new(RESERVE + 128, 1));
        let sessions: Vec<Permit> =
            (0..limits.sessions()).map_while(|_| limits.permit(Use::Session)).collect();
        let connections: Vec<Permit> = std::iter::from_fn(|| limits.permit(Use::Connection)).collect();
        assert_eq!((sessions.len(), connections.len()), (32, 47));
    }

    #[test]
    fn connections_leave_descriptors_for_pipes_and_all_are_released() {
        let limits = Arc::new(Limits::new(RESERVE + 128, 1));
        let mut connections: Vec<Permit> = std::iter::from_fn(|| limits.permit(Use::Connection)).collect();
        assert_eq!((connections.len(), limits.connections(), limits.open()), (63, 63, 63));
        assert!(limits.permit(Use::Session).is_none());
        let pipe = limits.permit(Use::Pipe);
        assert!(pipe.is_some() && limits.permit(Use::Pipe).is_none());
        connections.truncate(40);
        assert!(limits.permit(Use::Session).is_some());
        drop((connections, pipe));
        assert_eq!((limits.open(), limits.used.load(Relaxed)), (0, 0));
    }
}
