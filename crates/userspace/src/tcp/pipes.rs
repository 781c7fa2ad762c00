//! Pipes, through which `splice` moves bytes from one socket to another.
//!
//! A pipe is taken when there are bytes to move and given back when it is empty, so that only connections with a slow
//! reader hold one for longer. The bytes in all pipes are counted: beyond [`MAX_WAITING`], every read is small.

use crate::limits::{Limits, Permit, Use};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The size of a pipe, and of a read.
const SIZE: usize = 512 * 1024;
/// The size of a read while more than [`MAX_WAITING`] bytes are in pipes.
const SMALL_READ: usize = 4096;
/// Bytes in all pipes together beyond which reads are small.
const MAX_WAITING: usize = 64 << 20;
/// How many empty pipes a worker keeps, if the limits allow.
const MAX_SPARE: usize = 32;

/// A pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) read: OwnedFd,
    pub(super) write: OwnedFd,
    _permit: Permit,
}

impl Pipe {
    fn open(permit: Permit) -> io::Result<Pipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Without privilege this fails beyond `fs.pipe-max-size`; the default size works too.
        _ = fcntl_setpipe_size(&write, SIZE);
        Ok(Pipe { read, write, _permit: permit })
    }
}

/// One worker's pipes.
#[derive(Debug)]
pub(super) struct Pipes {
    spare: Vec<Pipe>,
    limits: Arc<Limits>,
    waiting: Arc<AtomicUsize>,
}

impl Pipes {
    /// No pipes yet; they are opened as the limits allow. `waiting` counts the bytes in the pipes of all workers.
    pub(super) fn new(limits: Arc<Limits>, waiting: Arc<AtomicUsize>) -> Pipes {
        Pipes { spare: Vec::new(), limits, waiting }
    }

    /// Takes an empty pipe; none if there are no descriptors for one.
    pub(super) fn take(&mut self) -> Option<Pipe> {
        self.spare.pop().or_else(|| Pipe::open(self.limits.permit(Use::Pipe)?).ok())
    }

    /// Gives an empty pipe back.
    pub(super) fn give_back(&mut self, pipe: Pipe) {
        if self.spare.len() < self.limits.spare().min(MAX_SPARE) {
            self.spare.push(pipe);
        }
    }

    /// How much to read from a socket at a time.
    pub(super) fn read_size(&self) -> usize {
        if self.waiting.load(Relaxed) < MAX_WAITING { SIZE } else { SMALL_READ }
    }

    /// Counts bytes that entered a pipe.
    pub(super) fn add_waiting(&self, bytes: usize) {
        self.waiting.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that left a pipe.
    pub(super) fn remove_waiting(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Relaxed);
    }
}
