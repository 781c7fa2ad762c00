//! A thread that waits for the kernel's notifications of ruleset changes.

use super::{Commit, Monitor};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Largest number of notifications that wait for the reader. If there are more, the thread waits.
const BACKLOG: usize = 64;
/// Longest wait for notifications, after which the thread ends if its [`Watcher`] was dropped.
const WAIT: Duration = Duration::from_secs(2);
const STACK: usize = 64 * 1024;

/// Receives the notifications of the thread. The thread ends after this is dropped.
#[derive(Debug)]
pub struct Watcher {
    notifications: Receiver<Result<Vec<Commit>, String>>,
    /// The thread holds a weak reference, and ends when this one is dropped.
    _alive: Arc<()>,
}

/// The result of [`Watcher::next`].
#[derive(Debug)]
pub enum Notification {
    /// Another process made these commits.
    Commits(Vec<Commit>),
    /// Notifications were lost or malformed; the text is the error.
    Lost(String),
    /// There is no notification.
    Nothing,
    /// The thread has ended.
    Ended,
}

impl Watcher {
    /// Subscribes to changes of `tables`, except those made through sockets with these `ports`. `wake` is called after
    /// each notification, and when the thread ends.
    pub fn start(
        ports: &[u32],
        tables: &'static [&'static str],
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Watcher> {
        let monitor = Monitor::open(ports).map_err(io::Error::other)?;
        let (sender, notifications) = sync_channel(BACKLOG);
        let alive = Arc::new(());
        let reader = Arc::downgrade(&alive);
        std::thread::Builder::new().name("nft-monitor".into()).stack_size(STACK).spawn(move || {
            // Dropped after the sender, also if the thread panics: a woken reader then gets `Ended`.
            let waker = WakeAtEnd(wake);
            let sender = sender;
            watch(monitor, tables, &sender, &reader, &waker.0);
        })?;
        Ok(Watcher { notifications, _alive: alive })
    }

    /// The next notification, without waiting.
    pub fn next(&self) -> Notification {
        match self.notifications.try_recv() {
            Ok(Ok(commits)) => Notification::Commits(commits),
            Ok(Err(error)) => Notification::Lost(error),
            Err(TryRecvError::Empty) => Notification::Nothing,
            Err(TryRecvError::Disconnected) => Notification::Ended,
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
        let result = monitor.wait_for(tables, WAIT).map_err(|error| error.to_string());
        if matches!(&result, Ok(commits) if commits.is_empty()) {
            continue;
        }
        if sender.send(result).is_err() {
            return;
        }
        wake();
    }
}
