//! The sending end of a source: notices in batches.
//!
//! A wake-up of the consumer for each of 20,000 objects costs more than decoding them. So notices are collected while
//! there are bytes to decode, and sent when there are none, or when the batch is full. A batch is bounded by the size
//! of its objects on the wire.

use super::Notice;
use tokio::sync::mpsc;

/// Batches that may wait for the consumer.
const WAITING: usize = 2;
/// Notices in a batch.
const NOTICES: usize = 128;
/// Bytes on the wire of the objects in a batch. Decoded they are three to six times as large.
const BYTES: usize = 64 * 1024;

/// Collects notices and sends them.
#[derive(Debug)]
pub struct Sink<E> {
    sender: mpsc::Sender<Vec<Notice<E>>>,
    batch: Vec<Notice<E>>,
    bytes: usize,
}

/// The consumer is gone.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the consumer is gone")]
pub(crate) struct Closed;

pub(super) fn channel<E>() -> (Sink<E>, mpsc::Receiver<Vec<Notice<E>>>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Sink { sender, batch: Vec::new(), bytes: 0 }, receiver)
}

impl<E> Sink<E> {
    /// Another sink into the same channel.
    pub(crate) fn another(&self) -> Sink<E> {
        Sink { sender: self.sender.clone(), batch: Vec::new(), bytes: 0 }
    }

    /// Adds a notice with an object of so many bytes. True: the batch has to be sent now.
    pub(crate) fn push(&mut self, notice: Notice<E>, bytes: usize) -> bool {
        self.batch.push(notice);
        self.bytes += bytes;
        self.batch.len() >= NOTICES || self.bytes >= BYTES
    }

    /// Sends the batch when there is room. Cancel-safe: the batch stays until it is sent.
    pub(crate) async fn flush(&mut self) -> Result<(), Closed> {
        if !self.batch.is_empty() {
            let permit = self.sender.reserve().await.map_err(|_| Closed)?;
            permit.send(std::mem::take(&mut self.batch));
            self.bytes = 0;
        }
        Ok(())
    }

    /// The same, on a thread that may block.
    pub(crate) fn flush_blocking(&mut self) -> Result<(), Closed> {
        if !self.batch.is_empty() {
            self.sender.blocking_send(std::mem::take(&mut self.batch)).map_err(|_| Closed)?;
            self.bytes = 0;
        }
        Ok(())
    }

    /// Sends the batch when there is room, and returns when the consumer is gone. Cancel-safe.
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
    async fn batches_are_full_by_number_or_by_size_and_keep_their_order() {
        let (mut sink, mut source) = channel::<usize>();
        for n in 0..NOTICES - 1 {
            assert!(!sink.push(Notice::Event(n), 10), "{n}");
        }
        assert!(sink.push(Notice::Event(NOTICES - 1), 10));
        sink.flush().await.unwrap();
        assert!(sink.push(Notice::Event(NOTICES), BYTES));
        sink.flush().await.unwrap();
        drop(sink);
        let mut all = Vec::new();
        while let Some(Notice::Event(n)) = source.next().await {
            all.push(n);
        }
        assert_eq!(all, (0..=NOTICES).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_flush_waits_for_room_and_loses_nothing_when_it_is_cancelled() {
        let (mut sink, mut source) = channel::<usize>();
        for n in 0..WAITING {
            sink.push(Notice::Event(n), 0);
            sink.flush().await.unwrap();
        }
        sink.push(Notice::Event(WAITING), 0);
        tokio::select! {
            biased;
            _ = sink.flush() => panic!("there is no room"),
            () = std::future::ready(()) => {}
        }
        for n in 0..WAITING {
            assert_eq!(source.ready(), Some(Notice::Event(n)));
        }
        assert_eq!(source.ready(), None);
        sink.flush().await.unwrap();
        assert_eq!(source.next().await, Some(Notice::Event(WAITING)));
    }

    #[tokio::test]
    async fn a_sink_notices_that_the_consumer_is_gone() {
        let (mut sink, source) = channel::<usize>();
        drop(source);
        assert_eq!(sink.flush_and_wait().await, Closed);
        sink.push(Notice::Event(1), 0);
        assert_eq!(sink.flush().await, Err(Closed));
    }
}
