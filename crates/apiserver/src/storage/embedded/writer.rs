//! The thread that writes.

use super::super::{Cache, CommitError, Condition, Key, Revision, Stored, Transaction};
use super::file::{File, Values};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Transactions that share a commit at most.
const GROUP: usize = 1024;

/// Where the answer to a transaction goes. Its receiver may have gone, which changes nothing.
pub(super) type Answer = oneshot::Sender<Result<Revision, CommitError>>;

/// A transaction, and where its answer goes.
pub(super) struct Request {
    pub(super) transaction: Transaction,
    pub(super) answer: Answer,
}

/// What a transaction wrote.
type Writes = Vec<(Key, Option<Bytes>)>;

/// Transactions whose conditions hold, and the values that they leave.
#[derive(Default)]
struct Group {
    values: Values,
    accepted: Vec<(Revision, Writes)>,
    answers: Vec<Answer>,
    /// Transactions whose conditions do not hold. What they found may be on disk only after the commit.
    refused: Vec<(CommitError, Answer)>,
}

/// The writer.
pub(super) struct Writer {
    file: File,
    cache: Arc<Cache>,
    revision: Revision,
}

impl Writer {
    pub(super) fn new(file: File, cache: Arc<Cache>, revision: Revision) -> Writer {
        Writer { file, cache, revision }
    }

    /// Writes until all senders are gone.
    pub(super) fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut waiting = Vec::new();
        while requests.blocking_recv_many(&mut waiting, GROUP) > 0 {
            self.commit(waiting.drain(..));
        }
    }

    fn commit(&mut self, requests: impl Iterator<Item = Request>) {
        let mut group = Group::default();
        let mut revision = self.revision;
        for Request { transaction, answer } in requests {
            match self.failed(&group, &transaction.conditions) {
                Some(error) => group.refused.push((error, answer)),
                None => {
                    revision += 1;
                    group.add(revision, transaction.writes, answer);
                }
            }
        }
        match self.write(&group, revision) {
            Ok(()) => {
                let revisions: Vec<Revision> = group.accepted.iter().map(|(revision, _)| *revision).collect();
                self.cache.apply(group.accepted);
                for (answer, revision) in group.answers.into_iter().zip(revisions) {
                    _ = answer.send(Ok(revision));
                }
                for (error, answer) in group.refused {
                    _ = answer.send(Err(error));
                }
            }
            Err(cause) => {
                tracing::error!(
                    cause,
                    "cannot write to the storage; reads go on, and the next write tries again"
                );
                let refused = group.refused.into_iter().map(|(_, answer)| answer);
                for answer in group.answers.into_iter().chain(refused) {
                    _ = answer.send(Err(CommitError::Unavailable(cause.clone())));
                }
            }
        }
    }

    fn write(&mut self, group: &Group, revision: Revision) -> Result<(), String> {
        if group.accepted.is_empty() {
            return Ok(());
        }
        let written = self.file.write(revision, &group.values, |key| self.cache.get(key.as_str()));
        // After a failure the revisions that it may have left on disk are not used again.
        self.revision = revision;
        written
    }

    /// The first condition that does not hold after the transactions of a group.
    fn failed(&self, group: &Group, conditions: &[(Key, Condition)]) -> Option<CommitError> {
        conditions.iter().find_map(|(key, condition)| {
            let found = match group.values.get(key) {
                Some(written) => written.clone(),
                None => self.cache.get(key.as_str()),
            };
            (!condition.holds(found.as_ref())).then(|| CommitError::Failed { key: key.clone(), found })
        })
    }
}

impl Group {
    fn add(&mut self, revision: Revision, writes: Writes, answer: Answer) {
        for (key, value) in &writes {
            let stored = value.clone().map(|value| Stored { value, revision });
            self.values.insert(key.clone(), stored);
        }
        self.accepted.push((revision, writes));
        self.answers.push(answer);
    }
}
