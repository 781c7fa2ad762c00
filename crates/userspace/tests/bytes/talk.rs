//! One end of a connection: says its part, hears the other's, and judges what it heard.
//!
//! Both are done at once, as a program with an event loop does it: what cannot be written must not keep anybody from
//! reading.

use crate::noise::Speech;
use crate::script::{HEADER, Order, Reset, Role, Script};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Nothing may happen for this long; much longer than a busy machine takes for anything.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// A caller may wait for others before it says who it is.
const SILENCE: Duration = Duration::from_secs(120);

/// How a connection ended, as one end saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both directions were complete.
    Orderly,
    /// This end reset it.
    Resets,
    /// This end was told that it is broken.
    IsReset,
}

/// What a socket said when it was asked for more.
enum Heard {
    Bytes,
    Nothing,
    End,
    Reset,
}

/// One end.
pub(crate) struct Talk {
    stream: TcpStream,
    role: Role,
    script: Script,
    own: Speech,
    others: Speech,
    buffer: Vec<u8>,
    sent: usize,
    heard: usize,
    /// We have said that there is no more,
    has_ended: bool,
    /// and so has the other side.
    other_ended: bool,
}

/// Who is calling; none if it was reset before it said so.
pub(crate) fn listen(stream: &mut TcpStream) -> Result<Option<Script>, String> {
    let mut header = [0; HEADER];
    stream.set_read_timeout(Some(SILENCE)).map_err(|error| error.to_string())?;
    match stream.read_exact(&mut header) {
        Ok(()) => Ok(Some(Script::of_header(&header))),
        Err(error) if is_reset(error.kind()) => Ok(None),
        Err(error) => Err(format!("no header: {error}")),
    }
}

fn is_reset(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

impl Talk {
    /// Begins; the server has heard the header.
    pub(crate) fn new(stream: TcpStream, role: Role, script: Script) -> Talk {
        let other = if role == Role::Client { Role::Server } else { Role::Client };
        Talk {
            stream,
            role,
            script,
            own: Speech::of(&script, role),
            others: Speech::of(&script, other),
            buffer: vec![0; script.heard_by(role).reads],
            sent: 0,
            heard: if role == Role::Server { HEADER } else { 0 },
            has_ended: false,
            other_ended: false,
        }
    }

    /// Plays the script to its end.
    pub(crate) fn run(mut self) -> Result<End, String> {
        self.play().map_err(|wrong| {
            let Talk { role, script, sent, heard, has_ended, other_ended, .. } = &self;
            format!(
                "{role:?}: {wrong} (said {sent}, ended: {has_ended}; heard {heard}, ended: {other_ended})\n{script:?}"
            )
        })
    }

    fn play(&mut self) -> Result<End, String> {
        self.stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        self.stream.set_nodelay(true).map_err(|error| error.to_string())?;
        loop {
            if self.may_end() {
                self.stream.shutdown(Shutdown::Write).or_else(|error| {
                    // It was reset just now, and that is heard next.
                    if error.kind() == ErrorKind::NotConnected { Ok(()) } else { Err(error.to_string()) }
                })?;
                self.has_ended = true;
            }
            if self.has_to_reset() {
                self.reset();
                return Ok(End::Resets);
            }
            if self.has_ended && self.other_ended {
                return Ok(End::Orderly);
            }
            let ready = self.wait()?;
            if ready.intersects(PollFlags::OUT) && self.may_speak() && !self.speak()? {
                return self.broken();
            }
            if !ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                continue;
            }
            match self.hear()? {
                Heard::Bytes | Heard::Nothing => {}
                Heard::End => self.end_of_other()?,
                Heard::Reset => return self.broken(),
            }
        }
    }

    /// The reset that is ours to make.
    fn own_reset(&self) -> Option<Reset> {
        self.script.reset.filter(|reset| reset.by == self.role)
    }

    /// The reset that the other one makes.
    fn other_resets(&self) -> Option<Reset> {
        self.script.reset.filter(|reset| reset.by != self.role)
    }

    fn has_to_reset(&self) -> bool {
        self.own_reset().is_some_and(|reset| {
            self.sent == reset.sent && self.heard == reset.heard && self.has_ended == reset.after_end
        })
    }

    fn reset(&self) {
        // What was said is on its way, most of the time; now and then it arrives before the reset does.
        if self.script.number.is_multiple_of(3) {
            std::thread::sleep(self.script.pause);
        }
        sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Whether more may be said than who is calling.
    fn has_its_turn(&self) -> bool {
        let waits = match self.script.order {
            Order::Client => self.role == Role::Server,
            Order::Server => self.role == Role::Client,
            Order::Both => false,
        };
        !waits || self.other_ended
    }

    /// How much may be said by now.
    fn goal(&self) -> usize {
        if !self.has_its_turn() {
            return if self.role == Role::Client { HEADER } else { 0 };
        }
        self.own_reset().map_or(self.script.sent_by(self.role).length, |reset| reset.sent)
    }

    fn may_speak(&self) -> bool {
        self.sent < self.goal()
    }

    /// Whether all was said, and the end of it may be too.
    fn may_end(&self) -> bool {
        let all_said = self.has_its_turn() && self.sent == self.script.sent_by(self.role).length;
        // With both directions ended nobody would be told of a reset.
        all_said && !self.has_ended && self.script.reset.is_none_or(|r| r.after_end == (r.by == self.role))
    }

    /// How much may be heard now: who resets in the middle stops before.
    fn room(&self) -> usize {
        self.own_reset().map_or(self.buffer.len(), |reset| self.buffer.len().min(reset.heard - self.heard))
    }

    fn wait(&self) -> Result<PollFlags, String> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::OUT, self.may_speak());
        wanted.set(PollFlags::IN, !self.other_ended && self.room() > 0);
        let mut polled = [PollFd::new(&self.stream, wanted)];
        match poll(&mut polled, Some(&PATIENCE)) {
            Ok(0) => Err(format!("nothing happens; waited for {wanted:?}")),
            Ok(_) => Ok(polled[0].revents()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Says a piece; false if it is broken.
    fn speak(&mut self) -> Result<bool, String> {
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
        match self.stream.write(self.own.from(self.sent, most)) {
            Ok(bytes) => self.sent += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if is_reset(error.kind()) => return Ok(false),
            Err(error) => return Err(format!("cannot write: {error}")),
        }
        Ok(true)
    }

    /// Hears a piece, and judges it.
    fn hear(&mut self) -> Result<Heard, String> {
        let room = self.room();
        if self.other_ended || room == 0 {
            // Nothing is read, but it was said that something is wrong.
            return match self.stream.take_error().map_err(|error| error.to_string())? {
                Some(error) if is_reset(error.kind()) => Ok(Heard::Reset),
                Some(error) => Err(format!("an error that is no reset: {error}")),
                None => Ok(Heard::Nothing),
            };
        }
        let bytes = match self.stream.read(&mut self.buffer[..room]) {
            Ok(0) => return Ok(Heard::End),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Heard::Nothing),
            Err(error) if is_reset(error.kind()) => return Ok(Heard::Reset),
            Err(error) => return Err(format!("cannot read: {error}")),
        };
        let before = self.heard;
        self.others
            .compare(before, &self.buffer[..bytes])
            .map_err(|place| format!("what it heard differs from what was said at {place}"))?;
        self.heard += bytes;
        let said = self.other_resets().map_or(usize::MAX, |reset| reset.sent);
        if self.heard > said {
            return Err(format!("heard more than the {said} that were said"));
        }
        let pauses = self.script.heard_by(self.role).receiver_pauses;
        if pauses.is_some_and(|at| (before..self.heard).contains(&at)) {
            std::thread::sleep(self.script.pause);
        }
        Ok(Heard::Bytes)
    }

    /// The other one has said all, or so it seems.
    fn end_of_other(&mut self) -> Result<(), String> {
        let all = self.script.heard_by(self.role).length;
        if self.heard < all {
            return Err(format!("an end that is none: {all} are to come"));
        }
        if self.other_resets().is_some_and(|reset| !reset.after_end) {
            return Err("an end that was not said: it was a reset".to_owned());
        }
        self.other_ended = true;
        Ok(())
    }

    /// It is reset, as we were told: is that right?
    fn broken(&mut self) -> Result<End, String> {
        if self.other_resets().is_none() {
            return Err("a reset that nobody made".to_owned());
        }
        // What came before is still there; if writing told of the reset, an end is all that reading tells of it.
        while let Heard::Bytes = self.hear()? {}
        Ok(End::IsReset)
    }
}
