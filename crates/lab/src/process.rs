//! Processes started in a namespace; they are killed when their handle is dropped.

use crate::owner::Owner;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::process::{Child, Command, ExitStatus};

/// The environment variable with the owner, in every process of a lab. It identifies the process after the owner has
/// ended, even in a user namespace, where the names of namespaces end with the owner.
pub(crate) const MARKER: &str = "PORTWAY_LAB";

/// A process that is killed when this handle is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a process in the namespaces of the calling thread.
    pub(crate) fn spawn(mut command: Command) -> io::Result<Process> {
        let child = command.env(MARKER, Owner::current().to_string()).spawn()?;
        Ok(Process { child })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The underlying child, to take its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Sends a signal; nothing happens if it has ended already.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        match Pid::from_raw(self.child.id() as i32) {
            Some(pid) => Ok(kill_process(pid, signal)?),
            None => Ok(()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
