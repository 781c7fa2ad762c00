//! One TCP connection of a server: lines in, answers out, never waiting.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A client that sends more than this without a line break is disconnected.
const LONGEST_LINE: usize = 64 * 1024;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The next question.
    Listening,
    /// Room to answer.
    Blocked,
    /// Nothing any more.
    Closed,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Connection {
    /// A connection that will first say `greeting`.
    pub(super) fn new(stream: TcpStream, greeting: String) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, input: Vec::new(), output: greeting.into_bytes() })
    }

    /// Reads and writes as far as it goes.
    pub(super) fn advance(&mut self, name: &str) -> State {
        self.try_advance(name).unwrap_or(State::Closed)
    }

    fn try_advance(&mut self, name: &str) -> io::Result<State> {
        let mut buffer = [0; 4096];
        loop {
            // Answers first: a client that does not read is not read from either.
            if !self.flush()? {
                return Ok(State::Blocked);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(State::Closed),
                Ok(length) => self.input.extend_from_slice(&buffer[..length]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(State::Listening),
                Err(e) => return Err(e),
            }
            self.answer(name);
            if self.input.len() > LONGEST_LINE {
                return Ok(State::Closed);
            }
        }
    }

    /// Moves whole lines from the input to the output.
    fn answer(&mut self, name: &str) {
        let Some(end) = self.input.iter().rposition(|&b| b == b'\n') else { return };
        for line in self.input[..=end].split_inclusive(|&b| b == b'\n') {
            self.output.extend_from_slice(name.as_bytes());
            self.output.push(b' ');
            self.output.extend_from_slice(line);
        }
        self.input.drain(..=end);
    }

    /// Writes what there is to write; false if some is left.
    fn flush(&mut self) -> io::Result<bool> {
        let mut written = 0;
        let result = loop {
            if written == self.output.len() {
                break Ok(true);
            }
            match self.stream.write(&self.output[written..]) {
                Ok(length) => written += length,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break Ok(false),
                Err(e) => break Err(e),
            }
        };
        self.output.drain(..written);
        result
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
