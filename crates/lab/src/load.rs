//! A steady load of new TCP connections, to test that an event, such as the restart of an agent, fails none of them.
//!
//! Worker threads take turns, so that the rate stays the same while one of them waits for an answer. On a machine that
//! is too slow for the rate there are fewer connections; missed ones are not made up for.

use crate::answer::Protocol;
use crate::conversation::{Conversation, Failure};
use crate::namespace::Namespace;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

/// The number of worker threads.
const WORKERS: usize = 16;
/// The stack size of a worker thread.
const STACK: usize = 128 * 1024;

/// How long a connection may take.
fn timeout() -> Duration {
    Duration::from_secs(if crate::guest::is_inside() { 10 } else { 2 })
}

/// A running load; ends when dropped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<LoadReport>>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    interval: Duration,
    start: Instant,
    /// When the next connection is due; none after the load was stopped.
    next: Mutex<Option<Instant>>,
    stopped: Condvar,
}

/// The results of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Connections that a server answered.
    pub ok: usize,
    /// Connections that failed: the time since the start, and the failure.
    pub failed: Vec<(Duration, Failure)>,
    /// The number of answers of each server.
    pub servers: BTreeMap<String, usize>,
    /// The longest that an answered connection took.
    pub slowest: Duration,
    /// When the load began, to find the time of a failure in logs.
    pub began: Option<SystemTime>,
}

impl Load {
    /// Starts `rate` connections a second from `namespace` to `target`.
    pub fn start(namespace: impl AsRef<Namespace>, target: SocketAddr, rate: f64) -> Load {
        let start = Instant::now();
        let (next, stopped) = (Mutex::new(Some(start)), Condvar::new());
        let interval = Duration::from_secs_f64(1.0 / rate);
        let shared = Arc::new(Shared { target, interval, start, next, stopped });
        let workers = namespace.as_ref().run(|| {
            let worker = |_| {
                let shared = Arc::clone(&shared);
                thread::Builder::new().stack_size(STACK).spawn(move || shared.work()).ok()
            };
            (0..WORKERS).filter_map(worker).collect()
        });
        Load { shared, workers }
    }

    /// Ends it, waits for connections that were started, and returns the results.
    pub fn stop(mut self) -> LoadReport {
        self.shared.stop();
        let began = SystemTime::now().checked_sub(self.shared.start.elapsed());
        let mut report = LoadReport { began, ..LoadReport::default() };
        for worker in self.workers.drain(..) {
            report.merge(worker.join().unwrap_or_default());
        }
        report.failed.sort_by_key(|(when, _)| *when);
        report
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    fn work(&self) -> LoadReport {
        let mut report = LoadReport::default();
        while self.wait_for_turn() {
            let begun = Instant::now();
            match Conversation::begin_here(Protocol::Tcp, self.target, timeout()) {
                Ok(conversation) => {
                    report.ok += 1;
                    report.slowest = report.slowest.max(begun.elapsed());
                    if let Some(greeting) = conversation.greeting() {
                        *report.servers.entry(greeting.server.clone()).or_default() += 1;
                    }
                }
                Err(failure) => report.failed.push((begun - self.start, failure)),
            }
        }
        report
    }

    fn next(&self) -> MutexGuard<'_, Option<Instant>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        *self.next() = None;
        self.stopped.notify_all();
    }

    /// Takes the next turn and waits until it is due; false if the load ends first.
    fn wait_for_turn(&self) -> bool {
        let mut next = self.next();
        let Some(planned) = *next else { return false };
        let due = planned.max(Instant::now());
        *next = Some(due + self.interval);
        let left = due.saturating_duration_since(Instant::now());
        let waited = self.stopped.wait_timeout_while(next, left, |next| next.is_some());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }
}

impl LoadReport {
    /// Whether connections were made and none failed.
    pub fn is_clean(&self) -> bool {
        self.ok > 0 && self.failed.is_empty()
    }

    fn merge(&mut self, part: LoadReport) {
        self.ok += part.ok;
        self.failed.extend(part.failed);
        self.slowest = self.slowest.max(part.slowest);
        for (server, count) in part.servers {
            *self.servers.entry(server).or_default() += count;
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ok, failed, slowest) = (self.ok, self.failed.len(), self.slowest);
        write!(f, "{ok} connections answered, the slowest in {slowest:?}; {failed} failed")?;
        match self.failed.first() {
            Some((when, failure)) => {
                let at = self.began.and_then(|began| began.checked_add(*when));
                let at = at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).unwrap_or_default();
                let (minutes, seconds) = (at.as_secs() / 60 % 60, at.as_secs_f64() % 60.0);
                write!(f, ", the first after {when:?}, at minute {minutes}:{seconds:09.6}: {failure}")
            }
            None => Ok(()),
        }
    }
}
