//! The loop: wait for a change, wait until there are no more, read.
//!
//! In: a directory. Out: [`Notice`]s, until the consumer is gone.

use super::inotify::{Dirty, Watcher};
use super::reader::{Reader, Stop};
use super::set::ResourceSet;
use crate::source::Sink;
use crate::{Notice, Outage, OutageReason};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// A change is read when there was no other for so long…
const SETTLED: Duration = Duration::from_millis(20);

/// …or at the latest after this long.
const LATEST: Duration = Duration::from_millis(200);

/// When to try again if the kernel has no watch to give.
const AGAIN: Duration = Duration::from_secs(10);

/// Reads and watches a directory until the source is dropped.
///
/// Sends `Init`, every object and `InitDone` for each resource of the set, then only the objects that change. A directory
/// that is missing is an [`Outage`]; as soon as it is there everything begins or goes on. A file that cannot be used is
/// a [`Rejected`](crate::Rejected), and its last good content stays.
pub async fn watch<S: ResourceSet<E>, E: Send + 'static>(directory: PathBuf, sink: Sink<E>) {
    let mut consumer = sink.another();
    tokio::select! {
        () = follow::<S, E>(directory, sink) => {}
        _ = consumer.flush_and_wait() => {}
    }
}

async fn follow<S: ResourceSet<E>, E: Send + 'static>(directory: PathBuf, sink: Sink<E>) {
    let mut reported = Reported { sink, outage: None };
    loop {
        let Err(error) = watch_files::<S, E>(&directory, &mut reported).await else { return };
        let message = format!(
            "cannot watch {}: {error}; if it is a limit, raise fs.inotify.max_user_instances or max_user_watches",
            directory.display()
        );
        reported.outage(message).await;
        sleep(AGAIN).await;
    }
}

/// Watches until the consumer is gone or inotify fails.
async fn watch_files<S: ResourceSet<E>, E: Send + 'static>(
    directory: &Path,
    reported: &mut Reported<E>,
) -> io::Result<()> {
    let directory = std::path::absolute(directory)?;
    let mut watcher = Watcher::new(directory.clone())?;
    let mut reader = Reader::<S, E>::new(directory.clone(), reported.sink.another());
    let mut dirty = Dirty { all: true, ..Dirty::default() };
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let outcome = reader.refresh(&dirty);
            (reader, outcome)
        });
        // It fails only if it panicked or the runtime is going down.
        let Ok((returned, outcome)) = read.await else { return Ok(()) };
        reader = returned;
        match outcome {
            Ok(()) => reported.recovered().await,
            Err(Stop::Closed) => return Ok(()),
            Err(Stop::Directory(error)) => {
                let message = format!(
                    "cannot read the directory {}: {error}; what was read before stays, and it is read again once it is \
                     there (an empty one removes everything)",
                    directory.display()
                );
                reported.outage(message).await;
            }
        }
        dirty = next_change(&mut watcher).await?;
    }
}

async fn next_change(watcher: &mut Watcher) -> io::Result<Dirty> {
    let mut dirty = watcher.changed().await?;
    let latest = Instant::now() + LATEST;
    while let Ok(more) = timeout_at(latest.min(Instant::now() + SETTLED), watcher.changed()).await {
        dirty.merge(more?);
    }
    Ok(dirty)
}

/// The outage that the consumer knows of.
struct Reported<E> {
    sink: Sink<E>,
    outage: Option<String>,
}

impl<E> Reported<E> {
    async fn outage(&mut self, message: String) {
        if self.outage.as_ref() != Some(&message) {
            self.outage = Some(message.clone());
            self.send(Notice::Outage(Outage { resource: None, reason: OutageReason::Directory, message }))
                .await;
        }
    }

    async fn recovered(&mut self) {
        if self.outage.take().is_some() {
            self.send(Notice::Recovered(None)).await;
        }
    }

    async fn send(&mut self, notice: Notice<E>) {
        self.sink.push(notice, 0);
        // A closed channel ends the watch by itself.
        let _ = self.sink.flush().await;
    }
}
