//! The loop: wait for a change, let it settle, read it.
//!
//! In: a directory. Out: [`Notice`]s, for as long as someone takes them.

use super::inotify::{Dirty, Watcher};
use super::reader::{Reader, Stop};
use crate::{Cause, Notice, Trouble};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep, timeout_at};

/// A change is read when this long nothing else has happened…
const SETTLED: Duration = Duration::from_millis(20);

/// …or at the latest after this long.
const LATEST: Duration = Duration::from_millis(200);

/// When to try again if the kernel has no watch for us.
const AGAIN: Duration = Duration::from_secs(10);

/// Reads and watches a directory until the receiving end of `notices` is dropped.
///
/// Sends `Init`, every object and `InitDone` for each of the four kinds, then only the objects that change. A directory
/// that is missing is a [`Trouble`]; as soon as it is there everything begins or goes on. A file that cannot be used is
/// a [`Rejected`](crate::Rejected), and what was good in it before stays.
pub async fn watch(directory: PathBuf, notices: Sender<Notice>) {
    tokio::select! {
        () = follow(directory, &notices) => {}
        () = notices.closed() => {}
    }
}

async fn follow(directory: PathBuf, notices: &Sender<Notice>) {
    let mut told = Told { notices, trouble: None };
    loop {
        let Err(error) = attend(&directory, &mut told).await else { return };
        let message = format!(
            "cannot watch {}: {error}; if it is a limit, raise fs.inotify.max_user_instances or max_user_watches",
            directory.display()
        );
        told.trouble(message).await;
        sleep(AGAIN).await;
    }
}

/// Watches for as long as there is someone to tell and the kernel plays along.
async fn attend(directory: &Path, told: &mut Told<'_>) -> io::Result<()> {
    let directory = std::path::absolute(directory)?;
    let mut watcher = Watcher::new(directory.clone())?;
    let mut reader = Reader::new(directory.clone(), told.notices.clone());
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
            Ok(()) => told.recovered().await,
            Err(Stop::Closed) => return Ok(()),
            Err(Stop::Directory(error)) => {
                let message = format!(
                    "cannot read the directory {}: {error}; what was read before stays, and it is read again once it is \
                     there (an empty one removes everything)",
                    directory.display()
                );
                told.trouble(message).await;
            }
        }
        dirty = settled(&mut watcher).await?;
    }
}

async fn settled(watcher: &mut Watcher) -> io::Result<Dirty> {
    let mut dirty = watcher.changed().await?;
    let latest = Instant::now() + LATEST;
    while let Ok(more) = timeout_at(latest.min(Instant::now() + SETTLED), watcher.changed()).await {
        dirty.merge(more?);
    }
    Ok(dirty)
}

/// What the consumer has been told of trouble.
struct Told<'a> {
    notices: &'a Sender<Notice>,
    trouble: Option<String>,
}

impl Told<'_> {
    async fn trouble(&mut self, message: String) {
        if self.trouble.as_ref() != Some(&message) {
            self.trouble = Some(message.clone());
            // A closed channel ends the watch by itself.
            let _ = self
                .notices
                .send(Notice::Trouble(Trouble { kind: None, cause: Cause::Directory, message }))
                .await;
        }
    }

    async fn recovered(&mut self) {
        if self.trouble.take().is_some() {
            let _ = self.notices.send(Notice::Recovered(None)).await;
        }
    }
}
