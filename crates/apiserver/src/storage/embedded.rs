//! Storage in one file on this machine.
//!
//! One thread writes. It takes all transactions that wait, checks the conditions of each against the values in memory
//! as the ones before it leave them, and writes the rest to the file in one commit, which ends with an fsync. Then it
//! changes the copy in memory and answers. So many writers share one fsync, and no reader sees what is not on disk.

mod file;
mod writer;

pub use file::OpenError;

use super::{Cache, CommitError, Revision, Transaction};
use file::File;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};
use writer::{Request, Writer};

/// Transactions that wait for the writer at most; those who send more wait.
const QUEUE: usize = 4096;

/// Storage in one file. Closes it when dropped, after the transactions that were sent.
#[derive(Debug)]
pub struct Embedded {
    cache: Arc<Cache>,
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Opens a file, or creates it, and reads everything in it.
    pub fn open(path: &Path) -> Result<Embedded, OpenError> {
        let (file, values, revision) = File::open(path)?;
        let cache = Arc::new(Cache::new(values, revision));
        let (requests, receiver) = mpsc::channel(QUEUE);
        let writer = Writer::new(file, cache.clone(), revision);
        let thread = std::thread::Builder::new()
            .name("storage".into())
            .spawn(move || writer.run(receiver))
            .map_err(|error| OpenError::Io { path: path.to_owned(), error })?;
        Ok(Embedded { cache, requests: Some(requests), thread: Some(thread) })
    }

    /// The values and changes.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Applies a transaction. It is on disk, and in the cache, when this returns its revision.
    pub async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError> {
        let (answer, answered) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or(CommitError::Closed)?;
        requests.send(Request { transaction, answer }).await.map_err(|_| CommitError::Closed)?;
        answered.await.map_err(|_| CommitError::Closed)?
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests;
