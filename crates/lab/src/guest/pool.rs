//! Guests that test processes share.
//!
//! A slot is a directory next to the scratch directory, with at most one guest and at most one user, the process that
//! has locked it. There are as many guests as users at the same time, up to [`SLOTS`]. A guest in an unknown state,
//! because its command failed or the process that had submitted the command was killed, is killed and not used again.

use super::boot::{self, SharedDirectory};
use super::{GuestError, Output, system};
use crate::owner::Owner;
use crate::wait::eventually;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for a free slot, and for a command; the guest itself stops a command after 1200 seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1300);
/// How long a killed guest may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of guests; further tests wait.
const SLOTS: usize = 16;

/// A directory for a guest, with or without a running guest, that this process has locked until the value is dropped.
pub(super) struct Slot {
    shared: SharedDirectory,
    scratch: PathBuf,
    _lock: File,
}

impl Slot {
    /// Locks the first free slot; waits until there is one.
    pub(super) fn take(scratch: &Path) -> Result<Slot, GuestError> {
        let free = eventually(COMMAND_TIMEOUT, || match Slot::try_take(scratch) {
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
                    let shared = SharedDirectory::new(path);
                    return Ok(Some(Slot { shared, scratch: scratch.to_owned(), _lock: lock }));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(e) => return Err(refused(e.into())),
            }
        }
        Ok(None)
    }

    /// Runs a program in the guest of this slot, which is booted if it does not run.
    pub(super) fn run(
        &mut self,
        program: &Path,
        arguments: &[impl AsRef<OsStr>],
    ) -> Result<Output, GuestError> {
        self.kill_abandoned()?;
        // A guest may power off before it reads the command; then another one is booted.
        for _ in 0..3 {
            let guest = match self.guest() {
                Some(guest) => guest,
                None => boot::boot(&self.shared, &self.scratch)?,
            };
            self.submit(program, arguments).map_err(system("write its command"))?;
            let status = eventually(COMMAND_TIMEOUT, || self.progress(guest).ok_or("it still runs"));
            match status.map_err(|e| GuestError::Boot(e.to_string()))? {
                Progress::NotTaken => {}
                Progress::Ended(status) => {
                    if status != Some(0) {
                        // The failed command may have left processes or kernel state behind.
                        self.kill(guest)?;
                    }
                    return self.output(status).map_err(system("read its output"));
                }
            }
        }
        Err(GuestError::Boot("it powers off before it takes a command".into()))
    }

    /// The running guest of this slot.
    fn guest(&self) -> Option<Owner> {
        let guest: Owner = self.shared.text("process").ok()?.trim().parse().ok()?;
        guest.is_alive().then_some(guest)
    }

    /// Kills a guest that still boots or runs a command for a process that has ended.
    fn kill_abandoned(&self) -> Result<(), GuestError> {
        let busy = self.shared.has("command") && !self.shared.has("status") || !self.shared.has("ready");
        match self.guest().filter(|_| busy) {
            Some(guest) => self.kill(guest),
            None => Ok(()),
        }
    }

    fn kill(&self, guest: Owner) -> Result<(), GuestError> {
        let refused = system("kill a guest");
        guest.kill().map_err(&refused)?;
        let gone = || if guest.is_alive() { Err("it still runs") } else { Ok(()) };
        eventually(KILL_TIMEOUT, gone).map_err(|e| refused(io::Error::other(e)))
    }

    /// Writes a command to the shared directory and announces it on the console.
    pub(super) fn submit(&self, program: &Path, arguments: &[impl AsRef<OsStr>]) -> io::Result<()> {
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

    /// Whether the command has ended; none while it waits or runs.
    fn progress(&self, guest: Owner) -> Option<Progress> {
        // Checked before the files: after a guest has ended, all files that it wrote are visible.
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
            // The guest has ended; the cause may be in its kernel's log.
            text = format!("{text}\n{}", self.shared.text("log")?);
        }
        Ok(Output { status, text })
    }
}

/// The end of a command.
enum Progress {
    /// The guest powered off before it read the command.
    NotTaken,
    /// The command ended with this status; none if the guest ended before it.
    Ended(Option<i32>),
}
