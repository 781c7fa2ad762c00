//! Guests that test processes share.
//!
//! A slot is a directory beside the scratch directory, with at most one guest and at most one user, the process that has
//! locked it. There are as many guests as users at a time, up to a limit. A guest that is left in an unknown state, because
//! its command failed or the process that had asked for it was killed, is killed and not used again.

use super::boot::{self, Shared};
use super::{GuestError, Output, system};
use crate::owner::Owner;
use crate::wait::eventually;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A test that takes longer is stopped in the guest.
const LONGEST: Duration = Duration::from_secs(1300);
/// A process that was killed is gone soon, or hangs in the kernel.
const KILLED: Duration = Duration::from_secs(20);
/// Guests at a time; tests beyond that wait.
const SLOTS: usize = 16;

/// A guest, or the place for one, that is this process' own until dropped.
pub(super) struct Slot {
    shared: Shared,
    scratch: PathBuf,
    _lock: File,
}

impl Slot {
    /// The first slot that is free, as soon as one is.
    pub(super) fn take(scratch: &Path) -> Result<Slot, GuestError> {
        let free = eventually(LONGEST, || match Slot::try_take(scratch) {
            Ok(Some(slot)) => Ok(Ok(slot)),
            Ok(None) => Err("all guests are busy"),
            Err(e) => Ok(Err(e)),
        });
        free.map_err(|e| GuestError::Boot(e.to_string()))?
    }

    fn try_take(scratch: &Path) -> Result<Option<Slot>, GuestError> {
        let refused = system("lock a directory for it");
        let pool = scratch.with_file_name("guests");
        for number in 0..SLOTS {
            let path = pool.join(number.to_string());
            fs::create_dir_all(&path).map_err(&refused)?;
            let lock = File::create(path.join("lock")).map_err(&refused)?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let shared = Shared::new(path);
                    return Ok(Some(Slot { shared, scratch: scratch.to_owned(), _lock: lock }));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(e) => return Err(refused(e.into())),
            }
        }
        Ok(None)
    }

    /// Runs a program in its guest, which is booted if there is none.
    pub(super) fn run(
        &mut self,
        program: &Path,
        arguments: &[impl AsRef<OsStr>],
    ) -> Result<Output, GuestError> {
        self.end_abandoned()?;
        // A guest may power off between our look and its next; another boot is then all that is lost.
        for _ in 0..3 {
            let guest = match self.guest() {
                Some(guest) => guest,
                None => boot::boot(&self.shared, &self.scratch)?,
            };
            self.ask(program, arguments).map_err(system("write down its command"))?;
            let status = eventually(LONGEST, || self.progress(guest).ok_or("it still runs"));
            match status.map_err(|e| GuestError::Boot(e.to_string()))? {
                Progress::NotTaken => {}
                Progress::Ended(status) => {
                    if status != Some(0) {
                        // Whatever went wrong may have left something behind.
                        self.end(guest)?;
                    }
                    return self.output(status).map_err(system("read its output"));
                }
            }
        }
        Err(GuestError::Boot("it powers off before it takes a command".into()))
    }

    /// The guest that runs here.
    fn guest(&self) -> Option<Owner> {
        let guest: Owner = self.shared.text("process").ok()?.trim().parse().ok()?;
        guest.is_alive().then_some(guest)
    }

    /// Kills a guest that still boots, or runs a command, for a process that is gone.
    fn end_abandoned(&self) -> Result<(), GuestError> {
        let busy = self.shared.has("command") && !self.shared.has("status") || !self.shared.has("ready");
        match self.guest().filter(|_| busy) {
            Some(guest) => self.end(guest),
            None => Ok(()),
        }
    }

    fn end(&self, guest: Owner) -> Result<(), GuestError> {
        let refused = system("kill a guest");
        guest.kill().map_err(&refused)?;
        let gone = || if guest.is_alive() { Err("it is still there") } else { Ok(()) };
        eventually(KILLED, gone).map_err(|e| refused(io::Error::other(e)))
    }

    /// Writes a command down and announces it.
    pub(super) fn ask(&self, program: &Path, arguments: &[impl AsRef<OsStr>]) -> io::Result<()> {
        self.shared.remove(&["command", "taken", "output", "status"])?;
        let mut lines = String::from("env\n");
        let variables =
            std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
        for (name, value) in variables.filter(|(name, _)| name.starts_with("PORTWAY_")) {
            lines += &format!("{name}={value}\n");
        }
        lines += &format!("{}\n", program.display());
        for argument in arguments {
            lines += &format!("{}\n", argument.as_ref().to_string_lossy());
        }
        fs::write(self.shared.file("command"), lines)?;
        self.shared.console()?.write_all(b"run\n")
    }

    /// What has become of the command; none while it waits or runs.
    fn progress(&self, guest: Owner) -> Option<Progress> {
        // Asked before the files: what a guest wrote before its end is there after it.
        let alive = guest.is_alive();
        if let Ok(status) = self.shared.text("status") {
            return Some(Progress::Ended(status.trim().parse().ok()));
        }
        match (alive, self.shared.has("taken")) {
            (true, _) => None,
            (false, false) => Some(Progress::NotTaken),
            (false, true) => Some(Progress::Ended(None)),
        }
    }

    fn output(&self, status: Option<i32>) -> io::Result<Output> {
        let mut text = self.shared.text("output")?;
        if status.is_none() {
            // The guest died; its kernel may have said why.
            text = format!("{text}\n{}", self.shared.text("log")?);
        }
        Ok(Output { status, text })
    }
}

/// What has become of a command.
enum Progress {
    /// The guest had powered off before it read it.
    NotTaken,
    /// It ended, or the guest did.
    Ended(Option<i32>),
}
