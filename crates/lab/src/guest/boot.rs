//! Booting a guest: a kernel, its first process, and the directory that both share with the host.
//!
//! Input: a directory of the host, and the scratch directory over which the guest mounts a tmpfs. Output: a guest that
//! is ready for commands, or an error of one line: the step that failed, its error, and the package to install.

use super::{GuestError, MARKER, system};
use crate::owner::Owner;
use crate::wait::eventually;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The kernel, as Debian's package `user-mode-linux` has it.
pub(super) const KERNEL: &str = "linux.uml";
/// More than a lab needs; the host provides only the memory that the guest uses.
const MEMORY: &str = "mem=1024M";
/// How long a boot may take. On an idle machine it takes seconds.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
const INIT: &str = include_str!("init.sh");

/// The directory that host and guest share; `init.sh` describes its files.
#[derive(Clone, Debug)]
pub(super) struct SharedDirectory {
    path: PathBuf,
}

impl SharedDirectory {
    pub(super) fn new(path: PathBuf) -> SharedDirectory {
        SharedDirectory { path }
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file(name).exists()
    }

    pub(super) fn text(&self, name: &str) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.file(name))?).into_owned())
    }

    /// Removes files; a file that does not exist is no error.
    pub(super) fn remove(&self, names: &[&str]) -> io::Result<()> {
        for name in names {
            match fs::remove_file(self.file(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// The console's input, a FIFO. It is opened for reading and writing, so that neither side waits for the other to
    /// open it.
    pub(super) fn console(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.file("console"))
    }
}

/// Boots a guest and waits until its first process has set it up. The guest continues after this process has ended; its
/// file `process` identifies it.
pub(super) fn boot(shared: &SharedDirectory, scratch: &Path) -> Result<Owner, GuestError> {
    boot_with(shared, scratch, INIT)
}

/// The same with another first process.
pub(super) fn boot_with(shared: &SharedDirectory, scratch: &Path, init: &str) -> Result<Owner, GuestError> {
    if shared.path.to_string_lossy().contains(char::is_whitespace) {
        let problem =
            "its path has white space, which the kernel's command line does not allow; move the project";
        return Err(GuestError::Boot(format!("{}: {problem}", shared.path.display())));
    }
    write_files(shared, scratch, init).map_err(system("write the files of its first process"))?;
    let command = command(shared).map_err(system("open its console"))?;
    let mut kernel = match spawn_on_one_processor(command) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(GuestError::Missing),
        spawned => spawned.map_err(system("start"))?,
    };
    let guest = Owner::of(kernel.id()).ok_or_else(|| GuestError::Boot("it ended at once".into()))?;
    fs::write(shared.file("process"), guest.to_string())
        .map_err(system("write the number of its process"))?;
    let ready = eventually(BOOT_TIMEOUT, || progress(shared, &mut kernel).ok_or("it is still booting"));
    match ready {
        Ok(Ok(())) => Ok(guest),
        Ok(Err(error)) => Err(GuestError::Boot(error)),
        Err(gave_up) => {
            guest.kill().ok();
            kernel.wait().ok();
            Err(GuestError::Boot(format!("{gave_up}; its last line: {}", last_line(shared))))
        }
    }
}

/// The guest's kernel and its processes are processes of the host that alternate at every system call. On one processor
/// that is a context switch; across two it is a wake-up, which costs four times as much (measured: 50 s against 13 s
/// for three tests).
fn spawn_on_one_processor(mut command: Command) -> io::Result<Child> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // A child inherits the CPU affinity of the thread that starts it, so it is started by a thread of its own.
    let spawn = move || {
        let allowed = sched_getaffinity(None)?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        let turn = std::process::id() as usize + NEXT.fetch_add(1, Ordering::Relaxed);
        if let Some(&cpu) = allowed.get(turn % allowed.len().max(1)) {
            let mut one = CpuSet::new();
            one.set(cpu);
            sched_setaffinity(None, &one)?;
        }
        command.spawn()
    };
    thread::spawn(spawn)
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
}

/// Whether the guest is ready or has failed; none while it boots.
fn progress(shared: &SharedDirectory, kernel: &mut Child) -> Option<Result<(), String>> {
    if shared.has("ready") {
        return Some(Ok(()));
    }
    let status = kernel.try_wait().ok()??;
    let failure = shared.text("failure").unwrap_or_default();
    if failure.trim().is_empty() {
        return Some(Err(format!("{KERNEL} ended with {status}; its last line: {}", last_line(shared))));
    }
    Some(Err(failure.trim().to_owned()))
}

/// The last line of the kernel's log that is not empty.
fn last_line(shared: &SharedDirectory) -> String {
    let text = shared.text("log").unwrap_or_default();
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.unwrap_or("(none)").to_owned()
}

fn write_files(shared: &SharedDirectory, scratch: &Path, init: &str) -> io::Result<()> {
    shared.remove(&["ready", "failure", "command", "taken", "output", "status", "console", "log"])?;
    fs::write(shared.file("scratch"), scratch.display().to_string())?;
    fs::write(shared.file("init"), init)?;
    fs::set_permissions(shared.file("init"), fs::Permissions::from_mode(0o755))?;
    Ok(mknodat(CWD, shared.file("console"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
}

fn command(shared: &SharedDirectory) -> io::Result<Command> {
    let log = File::create(shared.file("log"))?;
    let mut command = Command::new(KERNEL);
    command
        .args(["rootfstype=hostfs", "root=/dev/root", "hostfs=/", "rw", MEMORY, "quiet", "con=null"])
        .arg("con0=fd:0,fd:1")
        .arg(format!("init={}", shared.file("init").display()))
        .arg(format!("{MARKER}={}", shared.path.display()))
        // The directory of its control socket; the default is in the user's home directory.
        .arg(format!("uml_dir={}", shared.file("uml").display()))
        .stdin(shared.console()?)
        .stderr(log.try_clone()?)
        .stdout(log)
        // Not in the process group of the test run, so that a signal to that group does not end the guest. It powers
        // off when it is idle.
        .process_group(0);
    Ok(command)
}
