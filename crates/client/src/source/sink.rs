//! The sending end of a source: notices in batches.
//!
//! Waking the consumer for each of 20,000 objects costs more than decoding them. So notices are collected while there
//! are bytes to decode, and sent when there are none or when the batch is full. A batch is bounded by the number of its
//! notices and by the size of its objects on the wire.

use super::Notice;
use tokio::sync::mpsc;

/// Capacity of the channel, in batches.
const CHANNEL_BATCHES: usize = 2;
/// Maximum number of notices in a batch.
const BATCH_NOTICES: usize = 128;
/// Maximum size on the wire of the objects in a batch. Decoded objects are three to six times as large.
const BATCH_BYTES: usize = 64 * 1024;

/// The sending end: collects notices and sends them in batches.
#[derive(Debug)]
pub struct Sink<E> {
    sender: mpsc::Sender<Vec<Notice<E>>>,
    batch: Vec<Notice<E>>,
    bytes: usize,
}

/// The consumer has dropped its [`Source`](super::Source).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the consumer has dropped the source")]
pub(crate) struct Closed;

pub(super) fn channel<E>() -> (Sink<E>, mpsc::Receiver<Vec<Notice<E>>>) {
    let (sender, receiver) = mpsc::channel(CHANNEL_BATCHES);
    (Sink { sender, batch: Vec::new(), bytes: 0 }, receiver)
}

impl<E> Sink<E> {
    /// A second sink for the same channel, with a batch of its own.
    pub(crate) fn duplicate(&self) -> Sink<E> {
        Sink { sender: self.sender.clone(), batch: Vec::new(), bytes: 0 }
    }

    /// Adds a notice whose object has `bytes` bytes on the wire. Returns true if the batch has to be sent now.
    pub(crate) fn push(&mut self, notice: Notice<E>, bytes: usize) -> bool {
        self.batch.push(notice);
        self.bytes += bytes;
        self.batch.len() >= BATCH_NOTICES || self.bytes >= BATCH_BYTES
    }

    /// Sends the batch, waiting while the channel is full. Cancel-safe: the batch is kept until it is sent.
    pub(crate) async fn flush(&mut self) -> Result<(), Closed> {
        if !self.batch.is_empty() {
            let permit = self.sender.reserve().await.map_err(|_| Closed)?;
            permit.send(std::mem::take(&mut self.batch));
            self.bytes = 0;
        }
        Ok(())
    }

    /// Like [`Sink::flush`], but blocks the thread.
    pub(crate) fn flush_blocking(&mut self) -> Result<(), Closed> {
        if !self.batch.is_empty() {
            self.sender.blocking_send(std::mem::take(&mut self.batch)).map_err(|_| Closed)?;
            self.bytes = 0;
        }
        Ok(())
    }

    /// Sends the batch, then waits until the consumer has dropped its source. Cancel-safe.
    pub(crate) async fn flush_and_wait(&mut self) -> Closed {
        if self.flush().await.is_ok() {
            self.sender.closed().await;
        }
        Closed
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel;
    use super::*;

    #[tokio::test]
    async fn a_batch_is_full_by_number_or_by_size_and_order_is_kept() {
        let (mut sink, mut source) = channel::<usize>();
        for n in 0..BATCH_NOTICES - 1 {
            assert!(!sink.push(Notice::Event(n), 10), "{n}");
        }
        assert!(sink.push(Notice::Event(BATCH_NOTICES - 1), 10));
        sink.flush().await.unwrap();
        assert!(sink.push(Notice::Event(BATCH_NOTICES), BATCH_BYTES));
        sink.flush().await.unwrap();
        drop(sink);
        let mut all = Vec::new();
        while let Some(Notice::Event(n)) = source.next().await {
            all.push(n);
        }
        assert_eq!(all, (0..=BATCH_NOTICES).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_flush_waits_for_capacity_and_a_cancelled_flush_loses_no_notice() {
        let (mut sink, mut source) = channel::<usize>();
        for n in 0..CHANNEL_BATCHES {
            sink.push(Notice::Event(n), 0);
            sink.flush().await.unwrap();
        }
        sink.push(Notice::Event(CHANNEL_BATCHES), 0);
        tokio::select! {
            biased;
            _ = sink.flush() => panic!("the channel should be full"),
            () = std::future::ready(()) => {}
        }
        for n in 0..CHANNEL_BATCHES {
            assert_eq!(source.ready(), Some(Notice::Event(n)));
        }
        assert_eq!(source.ready(), None);
        sink.flush().await.unwrap();
        assert_eq!(source.next().await, Some(Notice::Event(CHANNEL_BATCHES)));
    }

    #[tokio::test]
    async fn a_sink_is_closed_when_the_consumer_drops_the_source() {
        let (mut sink, source) = channel::<usize>();
        drop(source);
        assert_eq!(sink.flush_and_wait().await, Closed);
        sink.push(Notice::Event(1), 0);
        assert_eq!(sink.flush().await, Err(Closed));
    }
}
