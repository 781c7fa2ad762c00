//! One direction of a connection: from one socket to the other, and the end of it too.

use super::pipes::{Pipe, Pipes};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::pipe::{SpliceFlags, splice};

/// What may be moved before it is others' turn.
pub(super) const SHARE: usize = 4 << 20;
/// What is copied at a time where there is no pipe.
pub(super) const COPY: usize = 16 * 1024;

/// A socket, and what is known of it: edges are told once.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) socket: OwnedFd,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// It said something urgent: `splice` does not get past that (`__tcp_read_sock` in `net/ipv4/tcp.c`), so what it says is copied.
    pub(super) urgent: bool,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pump {
    pipe: Option<Pipe>,
    /// What waits in the pipe.
    held: usize,
    /// The source has said all it had to say.
    ended: bool,
    /// The destination was told.
    told: bool,
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Bytes that were delivered.
    pub(super) moved: u64,
    /// There may be more at once, but it is others' turn.
    pub(super) more: bool,
}

impl Pump {
    /// Whether everything was delivered, and the end of it.
    pub(super) fn is_done(&self) -> bool {
        self.told
    }

    /// Whether everything was delivered, and only the end of it is to be told.
    fn is_at_its_end(&self) -> bool {
        self.ended && self.held == 0
    }

    /// Whether something waits to be delivered.
    pub(super) fn holds_something(&self) -> bool {
        self.held > 0
    }

    /// Moves what can be moved. An error is the end of the connection. If the other direction is `last` to end, both
    /// sockets are closed when it has, and that tells it.
    pub(super) fn run(
        &mut self,
        from: &mut Side,
        to: &mut Side,
        pipes: &mut Pipes,
        copy: &mut [u8; COPY],
        last: bool,
    ) -> (Turn, Result<(), Errno>) {
        let mut turn = Turn::default();
        let waited = self.held;
        let mut result = self.turn(from, to, pipes, copy, &mut turn);
        if result.is_ok() && self.is_at_its_end() && !self.told {
            self.told = true;
            if !last {
                result = end(to);
            }
        }
        if self.held == 0
            && let Some(pipe) = self.pipe.take()
        {
            pipes.give_back(pipe);
        }
        if self.held > waited {
            pipes.waits(self.held - waited);
        } else {
            pipes.moves(waited - self.held);
        }
        (turn, result)
    }

    fn turn(
        &mut self,
        from: &mut Side,
        to: &mut Side,
        pipes: &mut Pipes,
        copy: &mut [u8; COPY],
        turn: &mut Turn,
    ) -> Result<(), Errno> {
        while !self.told {
            if self.held > 0 {
                if !to.writable {
                    return Ok(());
                }
                turn.moved += self.deliver(to)? as u64;
            } else if self.ended || !from.readable {
                return Ok(());
            } else if turn.moved >= SHARE as u64 {
                turn.more = true;
                return Ok(());
            } else if !from.urgent && (self.pipe.is_some() || self.find_pipe(pipes)) {
                self.fetch(from, pipes.gulp())?;
            } else if !to.writable {
                return Ok(());
            } else {
                turn.moved += self.copy(from, to, copy)? as u64;
            }
        }
        Ok(())
    }

    fn find_pipe(&mut self, pipes: &mut Pipes) -> bool {
        self.pipe = pipes.take();
        self.pipe.is_some()
    }

    /// From the source into the pipe, which is empty: so nothing else than the source can be the reason to wait.
    fn fetch(&mut self, from: &mut Side, most: usize) -> Result<(), Errno> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match splice(&from.socket, None, &pipe.write, None, most, SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
            // Before something urgent it says the same as at the end.
            Ok(0) => match recv(&from.socket, &mut [0; 1], RecvFlags::PEEK)? {
                (0, _) => self.ended = true,
                _ => from.urgent = true,
            },
            Ok(bytes) => self.held = bytes,
            Err(Errno::AGAIN) => from.readable = false,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// From the pipe to the destination.
    fn deliver(&mut self, to: &mut Side) -> Result<usize, Errno> {
        let Some(pipe) = &self.pipe else { return Ok(0) };
        match splice(&pipe.read, None, &to.socket, None, self.held, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)
        {
            Ok(bytes) => {
                self.held -= bytes;
                return Ok(bytes);
            }
            Err(Errno::AGAIN) => to.writable = false,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(0)
    }

    /// Without a pipe: a look at what is there, as much of it as the destination takes, and only that is taken away.
    fn copy(&mut self, from: &mut Side, to: &mut Side, copy: &mut [u8; COPY]) -> Result<usize, Errno> {
        let seen = match recv(&from.socket, &mut copy[..], RecvFlags::PEEK) {
            Ok((0, _)) => {
                self.ended = true;
                return Ok(0);
            }
            Ok((bytes, _)) => bytes,
            Err(Errno::AGAIN) => {
                from.readable = false;
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        let sent = match send(&to.socket, &copy[..seen], SendFlags::NOSIGNAL) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN) => {
                to.writable = false;
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        recv(&from.socket, &mut copy[..sent], RecvFlags::empty())?;
        Ok(sent)
    }

    /// Gives up, with what is on its way.
    pub(super) fn abandon(&mut self, pipes: &mut Pipes) {
        pipes.moves(std::mem::take(&mut self.held));
        // With what is in it.
        self.pipe = None;
    }
}

/// Tells a socket that no more is coming.
fn end(to: &Side) -> Result<(), Errno> {
    match shutdown(&to.socket, Shutdown::Write) {
        // It has gone by itself; its own direction will tell.
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error),
    }
}
