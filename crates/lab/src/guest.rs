//! Another kernel: user-mode Linux, for features that the host's kernel lacks.
//!
//! A guest is a process that is a whole Linux, with the host's files as its own and a network of its own. It boots in
//! seconds, runs one command after the other, and powers off when none has come for a while (`guest::pool`): test
//! processes share guests, because a boot takes as long as a test does. Labs are built in it as on the host. [`run`]
//! takes a program and returns its output and exit status; [`play`] has this same program run one of its tests there.
//!
//! The guest needs the packages user-mode-linux, kmod, mount and iproute2, and nothing else of the host: its modules are
//! found through a directory in its own tmpfs, whatever `/lib/modules` is.

mod boot;
mod pool;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// In the environment of every process in a guest: the directory that it shares with the host.
const MARKER: &str = "PORTWAY_GUEST";
/// In the environment of a test run: why guests do not boot here, in one line. Tests that need one are then not run, and
/// `make test` fails with that line.
const UNBOOTABLE: &str = "PORTWAY_NO_GUEST";
/// Where the guest reads additional configuration of modprobe: in its own tmpfs.
const MODPROBE_CONFIGURATION: &str = "/run/modprobe.d";

/// How a program ended in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; none if the guest ended before it did.
    pub status: Option<i32>,
    /// What it wrote.
    pub text: String,
}

impl Output {
    /// Whether it succeeded.
    pub fn success(&self) -> bool {
        self.status == Some(0)
    }
}

/// Why there is no guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The kernel is not installed.
    #[error("user-mode Linux cannot boot: no {}: install the package user-mode-linux", boot::KERNEL)]
    Missing,
    /// The kernel or its first process gave up.
    #[error("user-mode Linux cannot boot: {0}")]
    Boot(String),
    /// The test run has found that before.
    #[error("{0}")]
    Unbootable(String),
    /// The host refused something.
    #[error("guest: {operation}: {source}")]
    System {
        /// The operation.
        operation: &'static str,
        /// The host's error.
        source: io::Error,
    },
}

/// Names the operation that an I/O error belongs to.
fn system(operation: &'static str) -> impl Fn(io::Error) -> GuestError {
    move |source| GuestError::System { operation, source }
}

/// Whether this process runs in a guest.
pub fn is_inside() -> bool {
    std::env::var_os(MARKER).is_some()
}

/// Whether this kernel has a module, be it loaded, built in, or there to be loaded.
pub fn has_module(name: &str) -> bool {
    if Path::new("/sys/module").join(name).exists() {
        return true;
    }
    let mut modprobe = Command::new("modprobe");
    modprobe.args(["-n", "-q", name]).stdout(Stdio::null()).stderr(Stdio::null());
    modprobe.status().is_ok_and(|status| status.success())
}

/// Whether a test that needs ip_vs has to run in a guest.
pub fn is_needed() -> bool {
    !is_inside() && !has_module("ip_vs")
}

/// Whether this test run has found that guests do not boot.
pub fn is_unbootable() -> bool {
    std::env::var_os(UNBOOTABLE).is_some()
}

/// Makes a module impossible to load in this guest, for as long as the returned value lives.
pub fn hide_module(name: &str) -> io::Result<HiddenModule> {
    if !is_inside() {
        return Err(io::Error::other("modules are hidden in guests only"));
    }
    fs::create_dir_all(MODPROBE_CONFIGURATION)?;
    let file = Path::new(MODPROBE_CONFIGURATION).join(format!("hide-{name}.conf"));
    fs::write(&file, format!("install {name} /bin/false\n"))?;
    // An earlier test may have had it loaded.
    if Path::new("/sys/module").join(name).exists() {
        let removed = Command::new("rmmod").arg(name).output()?;
        if !removed.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&removed.stderr).into_owned()));
        }
    }
    Ok(HiddenModule { file })
}

/// A module that cannot be loaded while this value lives.
#[derive(Debug)]
pub struct HiddenModule {
    file: std::path::PathBuf,
}

impl Drop for HiddenModule {
    fn drop(&mut self) {
        fs::remove_file(&self.file).ok();
    }
}

/// Runs a program in a guest and waits for its end. `scratch` is an existing directory: the program makes its files there,
/// and they are visible in that guest only.
pub fn run(program: &Path, arguments: &[impl AsRef<OsStr>], scratch: &Path) -> Result<Output, GuestError> {
    // Found out once for a whole test run.
    if let Ok(why) = std::env::var(UNBOOTABLE) {
        return Err(GuestError::Unbootable(why));
    }
    pool::Slot::take(scratch)?.run(program, arguments)
}

/// Runs one test of this program, by its exact name, in a guest.
pub fn play(test: &str, scratch: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("the path of this program: {e}"))?;
    let output = run(&program, &["--exact", test], scratch).map_err(|e| e.to_string())?;
    if output.success() && output.text.contains(" 1 passed") {
        return Ok(());
    }
    Err(format!("in user-mode Linux ({:?}):\n{}", output.status, output.text))
}

#[cfg(test)]
mod tests;
