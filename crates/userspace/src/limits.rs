//! How many connections there may be: as many as file descriptors allow.

use crate::clock::Moment;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// UDP sessions may take this part of all.
const FOR_SESSIONS: usize = 4;
/// Kept free for doors, agents and threads.
const RESERVE: u64 = 64;
/// This part is for pipes alone; a connection that gets none moves its bytes by copying.
const FOR_PIPES: usize = 64;
/// As many as anybody could want; more are asked for only where they cost nothing.
const ENOUGH: u64 = 1 << 20;
/// The least time between two lines in the log.
const QUIET: Duration = Duration::from_secs(10);

/// Why something is refused, and what to do about it.
pub(crate) const FULL: &str =
    "there are as many as file descriptors allow (raise LimitNOFILE= or ulimit -Hn)";

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

/// What takes file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A client's socket and one towards its endpoint.
    Connection,
    /// A socket towards the endpoint.
    Session,
    /// Both its ends.
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

/// The file descriptors that all share.
#[derive(Debug)]
pub(crate) struct Limits {
    total: usize,
    used: AtomicUsize,
    connections: AtomicUsize,
    /// Empty pipes that each worker may keep.
    spare: usize,
    said: AtomicU64,
}

impl Limits {
    /// Of so many, for so many workers.
    pub(crate) fn new(descriptors: u64, workers: usize) -> Limits {
        let total = usize::try_from(descriptors.saturating_sub(RESERVE)).unwrap_or(usize::MAX).max(4);
        let (used, connections) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // What all of them keep fits into the part that is for pipes alone, lest connections be refused for it.
        let spare = total / FOR_PIPES / Use::Pipe.descriptors() / workers.max(1);
        Limits { total, used, connections, spare, said: AtomicU64::new(0) }
    }

    /// Empty pipes that each worker may keep.
    pub(crate) fn spare(&self) -> usize {
        self.spare
    }

    /// Connections there may be if there is nothing else.
    pub(crate) fn connections(&self) -> usize {
        (self.total - self.total / FOR_PIPES) / 2
    }

    /// UDP sessions there may be, whatever is asked for: a flood of them must leave room for connections.
    pub(crate) fn sessions(&self) -> usize {
        (self.total / FOR_SESSIONS).max(1)
    }

    /// Asks for what something takes; none if there is not enough.
    pub(crate) fn permit(self: &Arc<Self>, what: Use) -> Option<Permit> {
        let most = if what == Use::Pipe { self.total } else { self.total - self.total / FOR_PIPES };
        let more = |used: usize| Some(used + what.descriptors()).filter(|used| *used <= most);
        self.used.fetch_update(Relaxed, Relaxed, more).ok()?;
        if what == Use::Connection {
            self.connections.fetch_add(1, Relaxed);
        }
        Some(Permit { limits: self.clone(), what })
    }

    /// How many connections there are.
    pub(crate) fn open(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Says that something was refused, unless that was said a moment ago.
    pub(crate) fn say_refused(&self, why: &str) {
        let (now, said) = (Moment::now(), self.said.load(Relaxed));
        let due = Moment::from_number(said).is_none_or(|last| last.after(QUIET) <= now);
        if due && self.said.compare_exchange(said, now.number(), Relaxed, Relaxed).is_ok() {
            tracing::warn!(
                open = self.open(),
                limit = self.connections(),
                "new connections are refused: {why}"
            );
        }
    }
}

/// The right to file descriptors, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limits: Arc<Limits>,
    what: Use,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limits.used.fetch_sub(self.what.descriptors(), Relaxed);
        if self.what == Use::Connection {
            self.limits.connections.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_keep_no_more_pipes_than_the_part_for_pipes_alone() {
        let spare = |total, workers| Limits::new(RESERVE + total, workers).spare();
        assert_eq!([spare(127, 1), spare(128, 1), spare(128, 2), spare(1024, 2)], [0, 1, 0, 4]);
        assert_eq!([spare(20_000, 8), spare(1 << 20, 8), spare(0, 0)], [19, 1024, 0]);
    }

    #[test]
    fn sessions_leave_room_for_connections() {
        let limits = Arc::new(Limits::new(RESERVE + 128, 1));
        let sessions: Vec<Permit> =
            (0..limits.sessions()).map_while(|_| limits.permit(Use::Session)).collect();
        let connections: Vec<Permit> = std::iter::from_fn(|| limits.permit(Use::Connection)).collect();
        assert_eq!((sessions.len(), connections.len()), (32, 47));
    }

    #[test]
    fn connections_leave_something_for_pipes_and_everything_comes_back() {
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
