//! One side of a connection: sends its direction, receives the other, and checks every byte.
//!
//! Both are done at once, as a program with an event loop does it: a full send buffer must not stop reading.

use crate::payload::Payload;
use crate::script::{HEADER, Order, Reset, Role, Script};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// The longest time without an event; much longer than a busy machine takes for anything.
const EVENT_TIMEOUT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// The longest time until the header; a client may wait for other clients before it sends.
const HEADER_TIMEOUT: Duration = Duration::from_secs(120);

/// How a connection ended, as one side saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both directions were complete.
    Orderly,
    /// This side reset it.
    ResetByThisSide,
    /// This side saw a reset.
    ResetByOtherSide,
}

/// The result of a read.
enum Received {
    Bytes,
    Nothing,
    End,
    Reset,
}

/// One side of a connection.
pub(crate) struct Transfer {
    stream: TcpStream,
    role: Role,
    script: Script,
    outgoing: Payload,
    incoming: Payload,
    buffer: Vec<u8>,
    sent: usize,
    received: usize,
    /// This side has ended its direction.
    has_ended: bool,
    /// The other side has ended its direction.
    other_ended: bool,
}

/// Reads the header, which names the script; none if the connection was reset before.
pub(crate) fn read_header(stream: &mut TcpStream) -> Result<Option<Script>, String> {
    let mut header = [0; HEADER];
    stream.set_read_timeout(Some(HEADER_TIMEOUT)).map_err(|error| error.to_string())?;
    match stream.read_exact(&mut header) {
        Ok(()) => Ok(Some(Script::of_header(&header))),
        Err(error) if is_reset(error.kind()) => Ok(None),
        Err(error) => Err(format!("no header: {error}")),
    }
}

fn is_reset(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

impl Transfer {
    /// A transfer at its start; the server has received the header.
    pub(crate) fn new(stream: TcpStream, role: Role, script: Script) -> Transfer {
        let other = if role == Role::Client { Role::Server } else { Role::Client };
        Transfer {
            stream,
            role,
            script,
            outgoing: Payload::of(&script, role),
            incoming: Payload::of(&script, other),
            buffer: vec![0; script.received_by(role).reads],
            sent: 0,
            received: if role == Role::Server { HEADER } else { 0 },
            has_ended: false,
            other_ended: false,
        }
    }

    /// Follows the script to its end.
    pub(crate) fn run(mut self) -> Result<End, String> {
        self.follow_script().map_err(|failure| {
            let Transfer { role, script, sent, received, has_ended, other_ended, .. } = &self;
            format!(
                "{role:?}: {failure} (sent {sent}, ended: {has_ended}; received {received}, ended: {other_ended})\n{script:?}"
            )
        })
    }

    fn follow_script(&mut self) -> Result<End, String> {
        self.stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        self.stream.set_nodelay(true).map_err(|error| error.to_string())?;
        loop {
            if self.may_end() {
                self.stream.shutdown(Shutdown::Write).or_else(|error| {
                    // It was reset just now, which the next read reports.
                    if error.kind() == ErrorKind::NotConnected { Ok(()) } else { Err(error.to_string()) }
                })?;
                self.has_ended = true;
            }
            if self.must_reset() {
                self.reset();
                return Ok(End::ResetByThisSide);
            }
            if self.has_ended && self.other_ended {
                return Ok(End::Orderly);
            }
            let ready = self.wait()?;
            if ready.intersects(PollFlags::OUT) && self.may_send() && !self.send()? {
                return self.broken();
            }
            if !ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                continue;
            }
            match self.receive()? {
                Received::Bytes | Received::Nothing => {}
                Received::End => self.end_of_other()?,
                Received::Reset => return self.broken(),
            }
        }
    }

    /// The reset by this side.
    fn reset_by_this_side(&self) -> Option<Reset> {
        self.script.reset.filter(|reset| reset.by == self.role)
    }

    /// The reset by the other side.
    fn reset_by_other_side(&self) -> Option<Reset> {
        self.script.reset.filter(|reset| reset.by != self.role)
    }

    fn must_reset(&self) -> bool {
        self.reset_by_this_side().is_some_and(|reset| {
            self.sent == reset.sent && self.received == reset.received && self.has_ended == reset.after_end
        })
    }

    fn reset(&self) {
        // In one of three scripts the bytes sent arrive before the reset; otherwise they may still be on their way.
        if self.script.number.is_multiple_of(3) {
            std::thread::sleep(self.script.pause);
        }
        sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Whether this side may send more than the header.
    fn has_turn(&self) -> bool {
        let waits = match self.script.order {
            Order::Client => self.role == Role::Server,
            Order::Server => self.role == Role::Client,
            Order::Both => false,
        };
        !waits || self.other_ended
    }

    /// How many bytes may be sent by now.
    fn goal(&self) -> usize {
        if !self.has_turn() {
            return if self.role == Role::Client { HEADER } else { 0 };
        }
        self.reset_by_this_side().map_or(self.script.sent_by(self.role).length, |reset| reset.sent)
    }

    fn may_send(&self) -> bool {
        self.sent < self.goal()
    }

    /// Whether everything was sent, and this side may end its direction.
    fn may_end(&self) -> bool {
        let all_sent = self.has_turn() && self.sent == self.script.sent_by(self.role).length;
        // With both directions ended, the other side would not see a reset.
        all_sent && !self.has_ended && self.script.reset.is_none_or(|r| r.after_end == (r.by == self.role))
    }

    /// How much may be read now: a side that resets in the middle reads only up to the reset.
    fn room(&self) -> usize {
        self.reset_by_this_side()
            .map_or(self.buffer.len(), |reset| self.buffer.len().min(reset.received - self.received))
    }

    fn wait(&self) -> Result<PollFlags, String> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::OUT, self.may_send());
        wanted.set(PollFlags::IN, !self.other_ended && self.room() > 0);
        let mut polled = [PollFd::new(&self.stream, wanted)];
        match poll(&mut polled, Some(&EVENT_TIMEOUT)) {
            Ok(0) => Err(format!("no event; waited for {wanted:?}")),
            Ok(_) => Ok(polled[0].revents()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes a piece; false if the connection is broken.
    fn send(&mut self) -> Result<bool, String> {
        let part = self.script.sent_by(self.role);
        let until = match part.sender_pauses {
            Some(at) if at > self.sent => at,
            Some(at) if at == self.sent => {
                std::thread::sleep(self.script.pause);
                usize::MAX
            }
            _ => usize::MAX,
        };
        let most = part.writes.min(self.goal().min(until) - self.sent);
        match self.stream.write(self.outgoing.from(self.sent, most)) {
            Ok(bytes) => self.sent += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if is_reset(error.kind()) => return Ok(false),
            Err(error) => return Err(format!("cannot write: {error}")),
        }
        Ok(true)
    }

    /// Reads a piece, and checks it.
    fn receive(&mut self) -> Result<Received, String> {
        let room = self.room();
        if self.other_ended || room == 0 {
            // No read is due, but poll reported an error.
            return match self.stream.take_error().map_err(|error| error.to_string())? {
                Some(error) if is_reset(error.kind()) => Ok(Received::Reset),
                Some(error) => Err(format!("an error other than a reset: {error}")),
                None => Ok(Received::Nothing),
            };
        }
        let bytes = match self.stream.read(&mut self.buffer[..room]) {
            Ok(0) => return Ok(Received::End),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Received::Nothing),
            Err(error) if is_reset(error.kind()) => return Ok(Received::Reset),
            Err(error) => return Err(format!("cannot read: {error}")),
        };
        let before = self.received;
        self.incoming
            .compare(before, &self.buffer[..bytes])
            .map_err(|offset| format!("a received byte differs from the sent one at {offset}"))?;
        self.received += bytes;
        let sent = self.reset_by_other_side().map_or(usize::MAX, |reset| reset.sent);
        if self.received > sent {
            return Err(format!("received more than the {sent} bytes sent"));
        }
        let pauses = self.script.received_by(self.role).receiver_pauses;
        if pauses.is_some_and(|at| (before..self.received).contains(&at)) {
            std::thread::sleep(self.script.pause);
        }
        Ok(Received::Bytes)
    }

    /// Checks an end of the other direction.
    fn end_of_other(&mut self) -> Result<(), String> {
        let all = self.script.received_by(self.role).length;
        if self.received < all {
            return Err(format!("the stream ended before all {all} bytes arrived"));
        }
        if self.reset_by_other_side().is_some_and(|reset| !reset.after_end) {
            return Err("the stream ended, though the other side reset it".to_owned());
        }
        self.other_ended = true;
        Ok(())
    }

    /// Checks a reset.
    fn broken(&mut self) -> Result<End, String> {
        if self.reset_by_other_side().is_none() {
            return Err("a reset, though the other side did not reset".to_owned());
        }
        // Bytes that arrived before can still be read. If a write reported the reset, reads report only an end.
        while let Received::Bytes = self.receive()? {}
        Ok(End::ResetByOtherSide)
    }
}
