//! Many requests in few datagrams.
//!
//! In go [`Request`]s, out come those that the kernel refused, each with its place. The kernel handles the requests
//! of a datagram in order and each on its own: one that it refuses keeps it from none of the others. Refusals are
//! always answered; an acknowledgement is asked for the last request only, and tells that all were handled. What
//! comes in between means success.

use crate::message::{self, Buffer, Message};
use crate::socket::Ack;
use crate::{Error, Result, Socket};
use std::iter::Peekable;

/// Requests in one datagram. Each refusal is an answer of its own, queued until we read: this many of them still
/// fit a receive buffer of the default size, so that a batch that fails as a whole loses no answer.
const REQUESTS: usize = 128;

/// A datagram of this size takes no more requests. Sets answer a refusal with all of the request, so that the
/// answers are as large as what they answer; they must fit, too.
const BYTES: usize = 64 * 1024;

/// One change of a batch that the kernel refused.
#[derive(Debug)]
pub struct Failed {
    /// Its place in the batch.
    pub index: usize,
    /// Why; names the change.
    pub error: Error,
}

/// Something to be asked of the kernel, as a message and in words.
pub(crate) trait Request {
    /// The message's type.
    fn kind(&self) -> u16;
    /// The header's flags, besides those that every request has.
    fn flags(&self) -> u16;
    /// Writes the body.
    fn fill(&self, b: &mut Buffer);
    /// What is asked, in words that go behind "refused to".
    fn describe(&self) -> String;
}

/// Requests that travel together, under consecutive numbers.
struct Datagram<R> {
    buffer: Buffer,
    first: u32,
    requests: Vec<R>,
}

impl<R: Request> Datagram<R> {
    /// Takes as many requests as go into one; `first` and the numbers behind it are theirs.
    fn pack(first: u32, requests: &mut Peekable<impl Iterator<Item = R>>) -> Datagram<R> {
        let mut packed = Datagram { buffer: Buffer::default(), first, requests: Vec::new() };
        let Datagram { buffer, requests: taken, .. } = &mut packed;
        let mut last = 0;
        while taken.len() < REQUESTS && buffer.len() < BYTES {
            let Some(request) = requests.next() else { break };
            last = buffer.len();
            let seq = first + taken.len() as u32;
            buffer.message(request.kind(), request.flags() | message::REQUEST, seq, |b| request.fill(b));
            taken.push(request);
        }
        if !taken.is_empty() {
            buffer.add_flags(last, message::ACK);
        }
        packed
    }

    /// The place of the request that `seq` belongs to.
    fn place(&self, seq: u32) -> Option<usize> {
        let place = seq.checked_sub(self.first)? as usize;
        (place < self.requests.len()).then_some(place)
    }
}

impl Socket {
    /// Makes many requests, in order, and goes on after those that fail.
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

    /// Makes many requests, in order, and hands each refusal to `refused`: the request's place, the request, the
    /// errno, and all of the answer.
    pub(crate) fn pipeline<R: Request>(
        &mut self,
        requests: impl IntoIterator<Item = R>,
        mut refused: impl FnMut(usize, &R, Ack, &Message<'_>),
    ) -> Result<()> {
        let mut requests = requests.into_iter().peekable();
        let mut done = 0;
        while requests.peek().is_some() {
            let datagram = Datagram::pack(self.reserve_seqs(REQUESTS as u32), &mut requests);
            self.exchange(&datagram, |place, ack, m| {
                refused(done + place, &datagram.requests[place], ack, m);
            })?;
            done += datagram.requests.len();
        }
        Ok(())
    }

    fn exchange<R: Request>(
        &mut self,
        datagram: &Datagram<R>,
        mut refused: impl FnMut(usize, Ack, &Message<'_>),
    ) -> Result<()> {
        self.send(datagram.buffer.bytes())?;
        let mut finished = false;
        self.receive_ready(|m| {
            let Some(place) = datagram.place(m.seq).filter(|_| m.kind == message::TYPE_ERROR) else { return };
            finished |= place + 1 == datagram.requests.len();
            let ack = Ack::parse(&m);
            if ack.errno != 0 {
                refused(place, ack, &m);
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

    struct Sized(usize);

    impl Request for Sized {
        fn kind(&self) -> u16 {
            7
        }

        fn flags(&self) -> u16 {
            message::CREATE
        }

        fn fill(&self, b: &mut Buffer) {
            b.raw(&vec![0; self.0]);
        }

        fn describe(&self) -> String {
            format!("send {} bytes", self.0)
        }
    }

    fn pack(sizes: &[usize]) -> Vec<Datagram<Sized>> {
        let mut requests = sizes.iter().map(|&size| Sized(size)).peekable();
        let mut all = Vec::new();
        while requests.peek().is_some() {
            all.push(Datagram::pack(1000, &mut requests));
        }
        all
    }

    #[test]
    fn only_the_last_request_of_a_datagram_asks_for_an_acknowledgement() {
        let all = pack(&[8; 300]);
        assert_eq!(all.iter().map(|d| d.requests.len()).collect::<Vec<_>>(), [128, 128, 44]);
        for datagram in &all {
            let sent: Vec<_> = messages(datagram.buffer.bytes()).map(|m| m.unwrap()).collect();
            let asking: Vec<_> = sent.iter().map(|m| m.flags & message::ACK != 0).collect();
            assert_eq!(asking.iter().position(|&a| a), Some(sent.len() - 1));
            assert!(sent.iter().enumerate().all(|(i, m)| datagram.place(m.seq) == Some(i)));
            assert_eq!(datagram.place(999), None);
            assert_eq!(datagram.place(1000 + sent.len() as u32), None);
        }
    }

    #[test]
    fn large_requests_travel_in_smaller_company() {
        let lens = |sizes: &[usize]| pack(sizes).iter().map(|d| d.requests.len()).collect::<Vec<_>>();
        assert_eq!(lens(&[20_000; 9]), [4, 4, 1]);
        assert_eq!(lens(&[100_000, 100_000]), [1, 1], "one is always sent");
        assert_eq!(lens(&[]), [0; 0]);
    }
}
