//! The loop that watches a directory: wait for changes, wait until they settle, read the files.
//!
//! In: a directory. Out: [`Notice`]s, until the consumer drops the source.

use super::inotify::{Dirty, Watcher};
use super::reader::{ReadError, Reader};
use super::set::ResourceSet;
use crate::source::Sink;
use crate::{Notice, Outage, OutageReason};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Files are read when there was no other change for this long …
const SETTLE_TIME: Duration = Duration::from_millis(20);

/// … or at the latest this long after the first change.
const MAX_DELAY: Duration = Duration::from_millis(200);

/// How long to wait before a retry if inotify fails, or a file or the directory cannot be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Reads and watches a directory, whose path is absolute, until the source is dropped.
///
/// Sends `Init`, every object and `InitDone` for each resource of the set, then only the objects that change. A missing
/// directory is an [`Outage`], which ends when the directory exists. An object that is not valid or a file that cannot be
/// read is a [`Rejected`](crate::Rejected), and its last valid version stays.
pub async fn watch<S: ResourceSet<E>, E: Send + 'static>(directory: PathBuf, sink: Sink<E>) {
    let mut consumer = sink.duplicate();
    tokio::select! {
        () = watch_with_retries::<S, E>(directory, sink) => {}
        _ = consumer.flush_and_wait() => {}
    }
}

async fn watch_with_retries<S: ResourceSet<E>, E: Send + 'static>(directory: PathBuf, sink: Sink<E>) {
    // It outlives failures of inotify, because only it knows the last valid versions.
    let mut reader = Reader::<S, E>::new(directory.clone(), sink.duplicate());
    let mut reporter = OutageReporter { sink, outage: None };
    loop {
        let Some((returned, error)) = watch_files(&directory, reader, &mut reporter).await else { return };
        reader = returned;
        let message = format!(
            "cannot watch {}: {error}; if a limit was reached, raise fs.inotify.max_user_instances or \
             fs.inotify.max_user_watches",
            directory.display()
        );
        reporter.outage(message).await;
        sleep(RETRY_INTERVAL).await;
    }
}

/// Watches until inotify fails, and returns the error; `None` if the consumer has dropped the source.
async fn watch_files<S: ResourceSet<E>, E: Send + 'static>(
    directory: &Path,
    mut reader: Reader<S, E>,
    reporter: &mut OutageReporter<E>,
) -> Option<(Reader<S, E>, io::Error)> {
    let mut watcher = match Watcher::new(directory.to_owned()) {
        Ok(watcher) => watcher,
        Err(error) => return Some((reader, error)),
    };
    let mut dirty = Dirty { all: true, ..Dirty::default() };
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let outcome = reader.refresh(dirty);
            (reader, outcome)
        });
        // It fails only if it panicked or the runtime is shutting down.
        let (returned, outcome) = read.await.ok()?;
        reader = returned;
        match outcome {
            Ok(()) => reporter.recovered().await,
            Err(ReadError::Closed) => return None,
            Err(ReadError::Directory(error)) => {
                let message = format!(
                    "cannot read the directory {}: {error}; its objects are kept, and it is read again when it is \
                     available (an empty directory deletes all objects)",
                    directory.display()
                );
                reporter.outage(message).await;
            }
        }
        let retry = reader.has_unread().then(|| Instant::now() + RETRY_INTERVAL);
        dirty = match next_change(&mut watcher, retry).await {
            Ok(dirty) => dirty,
            Err(error) => return Some((reader, error)),
        };
    }
}

/// Waits for a change, or until `retry`, and then until changes settle.
async fn next_change(watcher: &mut Watcher, retry: Option<Instant>) -> io::Result<Dirty> {
    let mut dirty = match retry {
        None => watcher.changed().await?,
        Some(retry) => match timeout_at(retry, watcher.changed()).await {
            Ok(changed) => changed?,
            Err(_) => return Ok(Dirty::default()),
        },
    };
    let latest = Instant::now() + MAX_DELAY;
    while let Ok(more) = timeout_at(latest.min(Instant::now() + SETTLE_TIME), watcher.changed()).await {
        dirty.merge(more?);
    }
    Ok(dirty)
}

/// Sends outages and recoveries to the consumer, each once.
struct OutageReporter<E> {
    sink: Sink<E>,
    outage: Option<String>,
}

impl<E> OutageReporter<E> {
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
        // The watch ends by itself when the channel is closed.
        let _ = self.sink.flush().await;
    }
}
