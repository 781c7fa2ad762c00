//! One TCP connection of a server: answers each line that it receives. No call blocks.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A client that sends more than this without a line break is disconnected.
const LONGEST_LINE: usize = 64 * 1024;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for the next line.
    Reading,
    /// It waits until an answer can be written.
    Writing,
    /// It is closed.
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
    /// A connection whose first answer is `greeting`.
    pub(super) fn new(stream: TcpStream, greeting: String) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, input: Vec::new(), output: greeting.into_bytes() })
    }

    /// Reads and writes until a call would block.
    pub(super) fn advance(&mut self, name: &str) -> State {
        self.try_advance(name).unwrap_or(State::Closed)
    }

    fn try_advance(&mut self, name: &str) -> io::Result<State> {
        let mut buffer = [0; 4096];
        loop {
            // Answers first: no more is read from a client that does not read its answers.
            if !self.flush()? {
                return Ok(State::Writing);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(State::Closed),
                Ok(length) => self.input.extend_from_slice(&buffer[..length]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(State::Reading),
                Err(e) => return Err(e),
            }
            self.answer(name);
            if self.input.len() > LONGEST_LINE {
                return Ok(State::Closed);
            }
        }
    }

    /// Answers all complete lines of the input.
    fn answer(&mut self, name: &str) {
        let Some(end) = self.input.iter().rposition(|&b| b == b'\n') else { return };
        for line in self.input[..=end].split_inclusive(|&b| b == b'\n') {
            self.output.extend_from_slice(name.as_bytes());
            self.output.push(b' ');
            self.output.extend_from_slice(line);
        }
        self.input.drain(..=end);
    }

    /// Writes the output; false if some of it could not be written yet.
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
