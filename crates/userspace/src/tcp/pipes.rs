//! Pipes, which bytes pass through on their way from one socket to another.
//!
//! A pipe is taken when there are bytes to move and given back when none are left in it, so that only connections
//! whose reader is slow have one for longer. How much waits in all of them is watched: beyond a bound,
//! little is taken from anybody at a time.

use crate::limits::{Limits, Permit, Use};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a pipe holds.
const SIZE: usize = 512 * 1024;
/// What is taken at a time when too much waits.
const SIP: usize = 4096;
/// How much may wait in all pipes together before that.
const WAITING: usize = 64 << 20;
/// Empty pipes that are kept, if limits allow.
const SPARE: usize = 32;

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
        // A small one works too: the kernel has a limit for users without privileges.
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
    /// As many as limits allow. What waits in the pipes of all workers is in `waiting`.
    pub(super) fn new(limits: Arc<Limits>, waiting: Arc<AtomicUsize>) -> Pipes {
        Pipes { spare: Vec::new(), limits, waiting }
    }

    /// An empty one; none if there are too many.
    pub(super) fn take(&mut self) -> Option<Pipe> {
        self.spare.pop().or_else(|| Pipe::open(self.limits.permit(Use::Pipe)?).ok())
    }

    /// Gives an empty one back.
    pub(super) fn give_back(&mut self, pipe: Pipe) {
        if self.spare.len() < self.limits.spare().min(SPARE) {
            self.spare.push(pipe);
        }
    }

    /// How much to take from a socket at a time.
    pub(super) fn gulp(&self) -> usize {
        if self.waiting.load(Relaxed) < WAITING { SIZE } else { SIP }
    }

    /// So much began to wait.
    pub(super) fn waits(&self, bytes: usize) {
        self.waiting.fetch_add(bytes, Relaxed);
    }

    /// So much waits no more.
    pub(super) fn moves(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Relaxed);
    }
}
