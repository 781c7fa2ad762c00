//! Sends many requests in few datagrams.
//!
//! The kernel handles the requests of a datagram in order and independently: after a refused request it continues with
//! the next. It answers every refused request with an error. Only the last request of a datagram requests an
//! acknowledgement, which shows that all were handled; a request without an answer succeeded. The result is the list of
//! errors, each with the index of its request.

use crate::message::{self, Buffer, Message};
use crate::socket::Ack;
use crate::{Error, Result, Socket};
use std::iter::Peekable;

/// Largest number of requests in one datagram. The kernel queues one answer for each refused request; this many fit
/// a receive buffer of the default size, so that no answer is lost even if all requests are refused.
const MAX_REQUESTS: usize = 128;

/// A datagram of this size takes no further requests. ipset's answer to a refused request contains the request, and
/// such answers must fit the receive buffer, too.
const MAX_BYTES: usize = 64 * 1024;

/// A change of a batch that the kernel refused.
#[derive(Debug)]
pub struct Failed {
    /// Index of the change in the batch.
    pub index: usize,
    /// The reason; its text names the change.
    pub error: Error,
}

/// A request to the kernel.
pub(crate) trait Request {
    /// The message's type.
    fn kind(&self) -> u16;
    /// The header's flags, besides `NLM_F_REQUEST` and `NLM_F_ACK`.
    fn flags(&self) -> u16;
    /// Writes the body.
    fn fill(&self, b: &mut Buffer);
    /// The request as a verb phrase; error texts put it after "kernel refused to".
    fn describe(&self) -> String;
}

/// Requests that are sent as one datagram, with consecutive sequence numbers.
struct Datagram<R> {
    buffer: Buffer,
    /// Sequence number of the first request.
    first: u32,
    requests: Vec<R>,
}

impl<R: Request> Datagram<R> {
    /// Takes as many requests as one datagram holds, and numbers them from `first` on.
    fn pack(first: u32, requests: &mut Peekable<impl Iterator<Item = R>>) -> Datagram<R> {
        let mut packed = Datagram { buffer: Buffer::default(), first, requests: Vec::new() };
        let Datagram { buffer, requests: taken, .. } = &mut packed;
        let mut last = 0;
        while taken.len() < MAX_REQUESTS && buffer.len() < MAX_BYTES {
            let Some(request) = requests.next() else { break };
            last = buffer.len();
            let seq = first + taken.len() as u32;
            buffer
                .message(request.kind(), request.flags() | message::NLM_F_REQUEST, seq, |b| request.fill(b));
            taken.push(request);
        }
        if !taken.is_empty() {
            buffer.add_flags(last, message::NLM_F_ACK);
        }
        packed
    }

    /// The index of the request with this sequence number.
    fn index(&self, seq: u32) -> Option<usize> {
        let index = seq.checked_sub(self.first)? as usize;
        (index < self.requests.len()).then_some(index)
    }
}

impl Socket {
    /// Sends requests in order, continues after refused ones, and returns their errors.
    pub(crate) fn request_all<R: Request>(
        &mut self,
        requests: impl IntoIterator<Item = R>,
    ) -> Result<Vec<Failed>> {
        let mut failed = Vec::new();
        self.pipeline(requests, |index, request, ack, _| {
            if let Err(error) = ack.into_result(&request.describe()) {
                failed.push(Failed { index, error });
            }
        })?;
        Ok(failed)
    }

    /// Sends requests in order, and calls `refused` for each refused one with its index, the request, the decoded
    /// answer, and the whole answer.
    pub(crate) fn pipeline<R: Request>(
        &mut self,
        requests: impl IntoIterator<Item = R>,
        mut refused: impl FnMut(usize, &R, Ack, &Message<'_>),
    ) -> Result<()> {
        let mut requests = requests.into_iter().peekable();
        let mut done = 0;
        while requests.peek().is_some() {
            let datagram = Datagram::pack(self.reserve_seqs(MAX_REQUESTS as u32), &mut requests);
            self.exchange(&datagram, |index, ack, m| {
                refused(done + index, &datagram.requests[index], ack, m);
            })?;
            done += datagram.requests.len();
        }
        Ok(())
    }

    /// Sends one datagram and reads its answers.
    fn exchange<R: Request>(
        &mut self,
        datagram: &Datagram<R>,
        mut refused: impl FnMut(usize, Ack, &Message<'_>),
    ) -> Result<()> {
        self.send(datagram.buffer.bytes())?;
        let mut finished = false;
        self.receive_ready(|m| {
            let Some(index) = datagram.index(m.seq).filter(|_| m.kind == message::NLMSG_ERROR) else {
                return;
            };
            finished |= index + 1 == datagram.requests.len();
            let ack = Ack::parse(&m);
            if ack.errno != 0 {
                refused(index, ack, &m);
            }
        })?;
        match datagram.requests.last() {
            Some(last) if !finished => Err(Error::NoAnswer(last.describe())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::messages;

    struct Padding(usize);

    impl Request for Padding {
        fn kind(&self) -> u16 {
            7
        }

        fn flags(&self) -> u16 {
            message::NLM_F_CREATE
        }

        fn fill(&self, b: &mut Buffer) {
            b.raw(&vec![0; self.0]);
        }

        fn describe(&self) -> String {
            format!("send {} bytes", self.0)
        }
    }

    fn pack(sizes: &[usize]) -> Vec<Datagram<Padding>> {
        let mut requests = sizes.iter().map(|&size| Padding(size)).peekable();
        let mut all = Vec::new();
        while requests.peek().is_some() {
            all.push(Datagram::pack(1000, &mut requests));
        }
        all
    }

    #[test]
    fn only_the_last_request_of_a_datagram_requests_an_acknowledgement() {
        let all = pack(&[8; 300]);
        assert_eq!(all.iter().map(|d| d.requests.len()).collect::<Vec<_>>(), [128, 128, 44]);
        for datagram in &all {
            let sent: Vec<_> = messages(datagram.buffer.bytes()).map(|m| m.unwrap()).collect();
            let with_ack: Vec<_> = sent.iter().map(|m| m.flags & message::NLM_F_ACK != 0).collect();
            assert_eq!(with_ack.iter().position(|&a| a), Some(sent.len() - 1));
            assert!(sent.iter().enumerate().all(|(i, m)| datagram.index(m.seq) == Some(i)));
            assert_eq!(datagram.index(999), None);
            assert_eq!(datagram.index(1000 + sent.len() as u32), None);
        }
    }

    #[test]
    fn a_datagram_holds_fewer_requests_if_they_are_large() {
        let lens = |sizes: &[usize]| pack(sizes).iter().map(|d| d.requests.len()).collect::<Vec<_>>();
        assert_eq!(lens(&[20_000; 9]), [4, 4, 1]);
        assert_eq!(lens(&[100_000, 100_000]), [1, 1], "a datagram holds at least one request");
        assert_eq!(lens(&[]), [0; 0]);
    }
}
