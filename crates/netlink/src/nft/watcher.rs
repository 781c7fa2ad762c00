//! A thread that waits for the kernel's announcements of ruleset changes.

use super::{Commit, Monitor};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Announcements that may wait to be read.
const BACKLOG: usize = 64;
/// How long the thread may outlive its reader.
const LINGER: Duration = Duration::from_secs(2);
const STACK: usize = 64 * 1024;

/// The reading end of the thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watcher {
    announcements: Receiver<Result<Vec<Commit>, String>>,
    /// Tells the thread that there is a reader.
    _alive: Arc<()>,
}

/// The answer of [`Watcher::next`].
#[derive(Debug)]
pub enum Announced {
    /// Another process committed these.
    Commits(Vec<Commit>),
    /// Announcements were lost, or could not be read.
    Lost(String),
    /// Nothing happened since the last call.
    Nothing,
    /// The thread has ended.
    Ended,
}

impl Watcher {
    /// Listens for changes of `tables` by processes other than those at the netlink `ports`. `wake` is called after each
    /// announcement.
    pub fn start(
        ports: &[u32],
        tables: &'static [&'static str],
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Watcher> {
        let monitor = Monitor::open(ports).map_err(io::Error::other)?;
        let (sender, announcements) = sync_channel(BACKLOG);
        let alive = Arc::new(());
        let reader = Arc::downgrade(&alive);
        std::thread::Builder::new().name("nft-monitor".into()).stack_size(STACK).spawn(move || {
            // Dropped after the sender, also if the thread panics: the reader finds out that it has ended.
            let waker = WakeAtEnd(wake);
            let sender = sender;
            watch(monitor, tables, &sender, &reader, &waker.0);
        })?;
        Ok(Watcher { announcements, _alive: alive })
    }

    /// The next announcement, without waiting.
    pub fn next(&self) -> Announced {
        match self.announcements.try_recv() {
            Ok(Ok(commits)) => Announced::Commits(commits),
            Ok(Err(error)) => Announced::Lost(error),
            Err(TryRecvError::Empty) => Announced::Nothing,
            Err(TryRecvError::Disconnected) => Announced::Ended,
        }
    }
}

/// Wakes the reader when the thread ends.
struct WakeAtEnd<W: Fn()>(W);

impl<W: Fn()> Drop for WakeAtEnd<W> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn watch(
    mut monitor: Monitor,
    tables: &[&str],
    sender: &SyncSender<Result<Vec<Commit>, String>>,
    reader: &Weak<()>,
    wake: impl Fn(),
) {
    while reader.strong_count() > 0 {
        let heard = monitor.wait_for(tables, LINGER).map_err(|error| error.to_string());
        let silence = matches!(&heard, Ok(commits) if commits.is_empty());
        if silence {
            continue;
        }
        if sender.send(heard).is_err() {
            return;
        }
        wake();
    }
}
