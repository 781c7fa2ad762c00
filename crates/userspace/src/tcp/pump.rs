//! One direction of a connection: moves bytes from one socket to the other, and passes on the end of the stream.

use super::pipes::{Pipe, Pipes};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::pipe::{SpliceFlags, splice};

/// How many bytes are moved before other connections have their turn.
pub(super) const TURN_BYTES: usize = 4 << 20;
/// How many bytes are copied at a time without a pipe.
pub(super) const COPY: usize = 16 * 1024;

/// One side of a connection: its socket, and whether it is ready, as edge-triggered events reported it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) socket: OwnedFd,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// It has sent urgent data. `splice` stops at urgent data (`__tcp_read_sock` in `net/ipv4/tcp.c`), so its bytes are
    /// copied.
    pub(super) urgent: bool,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pump {
    pipe: Option<Pipe>,
    /// Bytes in the pipe.
    buffered: usize,
    /// The source has ended its stream.
    source_ended: bool,
    /// The end was passed on to the destination.
    end_sent: bool,
}

/// The result of one turn, in which at most [`TURN_BYTES`] are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Bytes that were delivered.
    pub(super) moved: u64,
    /// More may be ready, but other connections have their turn.
    pub(super) more: bool,
}

impl Pump {
    /// Whether all bytes and the end of the stream were delivered.
    pub(super) fn is_done(&self) -> bool {
        self.end_sent
    }

    /// Whether the source has ended and all its bytes were delivered, so that the end can be passed on.
    fn is_drained(&self) -> bool {
        self.source_ended && self.buffered == 0
    }

    /// Whether bytes wait in the pipe.
    pub(super) fn has_buffered(&self) -> bool {
        self.buffered > 0
    }

    /// Moves the bytes that are ready. An error ends the connection. If this direction is the `last` to end, its end
    /// needs no shutdown, because both sockets are closed then.
    pub(super) fn run(
        &mut self,
        from: &mut Peer,
        to: &mut Peer,
        pipes: &mut Pipes,
        copy: &mut [u8; COPY],
        last: bool,
    ) -> (Turn, Result<(), Errno>) {
        let mut turn = Turn::default();
        let before = self.buffered;
        let mut result = self.turn(from, to, pipes, copy, &mut turn);
        if result.is_ok() && self.is_drained() && !self.end_sent {
            self.end_sent = true;
            if !last {
                result = send_end(to);
            }
        }
        if self.buffered == 0
            && let Some(pipe) = self.pipe.take()
        {
            pipes.give_back(pipe);
        }
        if self.buffered > before {
            pipes.add_waiting(self.buffered - before);
        } else {
            pipes.remove_waiting(before - self.buffered);
        }
        (turn, result)
    }

    fn turn(
        &mut self,
        from: &mut Peer,
        to: &mut Peer,
        pipes: &mut Pipes,
        copy: &mut [u8; COPY],
        turn: &mut Turn,
    ) -> Result<(), Errno> {
        while !self.end_sent {
            if self.buffered > 0 {
                if !to.writable {
                    return Ok(());
                }
                turn.moved += self.deliver(to)? as u64;
            } else if self.source_ended || !from.readable {
                return Ok(());
            } else if turn.moved >= TURN_BYTES as u64 {
                turn.more = true;
                return Ok(());
            } else if !from.urgent && (self.pipe.is_some() || self.take_pipe(pipes)) {
                self.fetch(from, pipes.read_size())?;
            } else if !to.writable {
                return Ok(());
            } else {
                turn.moved += self.copy(from, to, copy)? as u64;
            }
        }
        Ok(())
    }

    fn take_pipe(&mut self, pipes: &mut Pipes) -> bool {
        self.pipe = pipes.take();
        self.pipe.is_some()
    }

    /// Splices from the source into the pipe. The pipe is empty, so EAGAIN can only mean that the source has no bytes.
    fn fetch(&mut self, from: &mut Peer, most: usize) -> Result<(), Errno> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match splice(&from.socket, None, &pipe.write, None, most, SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
            // 0 means the end of the stream, or urgent data next.
            Ok(0) => match recv(&from.socket, &mut [0; 1], RecvFlags::PEEK)? {
                (0, _) => self.source_ended = true,
                _ => from.urgent = true,
            },
            Ok(bytes) => self.buffered = bytes,
            Err(Errno::AGAIN) => from.readable = false,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Splices from the pipe to the destination.
    fn deliver(&mut self, to: &mut Peer) -> Result<usize, Errno> {
        let Some(pipe) = &self.pipe else { return Ok(0) };
        match splice(
            &pipe.read,
            None,
            &to.socket,
            None,
            self.buffered,
            SpliceFlags::MOVE | SpliceFlags::NONBLOCK,
        ) {
            Ok(bytes) => {
                self.buffered -= bytes;
                return Ok(bytes);
            }
            Err(Errno::AGAIN) => to.writable = false,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(0)
    }

    /// Without a pipe: peeks at the bytes, sends them, and takes only as many from the source as the destination took.
    fn copy(&mut self, from: &mut Peer, to: &mut Peer, copy: &mut [u8; COPY]) -> Result<usize, Errno> {
        let seen = match recv(&from.socket, &mut copy[..], RecvFlags::PEEK) {
            Ok((0, _)) => {
                self.source_ended = true;
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

    /// Discards the bytes in the pipe.
    pub(super) fn abandon(&mut self, pipes: &mut Pipes) {
        pipes.remove_waiting(std::mem::take(&mut self.buffered));
        // Not given back, since it is not empty.
        self.pipe = None;
    }
}

/// Ends the stream towards a peer.
fn send_end(to: &Peer) -> Result<(), Errno> {
    match shutdown(&to.socket, Shutdown::Write) {
        // The peer has closed or reset already, which the other direction reports.
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error),
    }
}
