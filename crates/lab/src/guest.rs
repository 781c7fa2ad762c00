//! Guests: user-mode Linux, for features that the host's kernel lacks.
//!
//! A guest is a Linux kernel that runs as a process, with the host's files as its root file system and a network of its
//! own. It boots in seconds, runs one command after the other, and powers off 20 seconds after the last
//! (`guest::pool`): test processes share guests, because a boot takes as long as a test. Labs are built in a guest as
//! on the host. [`run`] runs a program and returns its output and exit status; [`run_test`] runs one test of the
//! calling program in a guest.
//!
//! The guest needs the packages user-mode-linux, kmod, mount and iproute2 on the host. It finds its modules through a
//! directory in its own tmpfs, whatever `/lib/modules` has.

mod boot;
mod pool;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// The environment variable of every process in a guest with the directory that guest and host share.
const MARKER: &str = "PORTWAY_GUEST";
/// The environment variable of a test run with the error of a guest that could not boot, in one line. Tests that need a
/// guest are then not run, and `make test` fails with that line.
const UNBOOTABLE: &str = "PORTWAY_NO_GUEST";
/// The directory of additional configuration of modprobe, in the guest's own tmpfs.
const MODPROBE_CONFIGURATION: &str = "/run/modprobe.d";

/// The result of a program in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; none if the guest ended before it did.
    pub status: Option<i32>,
    /// Its output.
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
    /// The kernel or its first process failed.
    #[error("user-mode Linux cannot boot: {0}")]
    Boot(String),
    /// An earlier guest of this test run could not boot, with this error.
    #[error("{0}")]
    Unbootable(String),
    /// An operation on the host failed.
    #[error("guest: {operation}: {source}")]
    System {
        /// The operation.
        operation: &'static str,
        /// The host's error.
        source: io::Error,
    },
}

/// Adds the operation that failed to an I/O error.
fn system(operation: &'static str) -> impl Fn(io::Error) -> GuestError {
    move |source| GuestError::System { operation, source }
}

/// Whether this process runs in a guest.
pub fn is_inside() -> bool {
    std::env::var_os(MARKER).is_some()
}

/// Whether this kernel has a module: loaded, built in, or available to be loaded.
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

/// Whether a guest of this test run could not boot, so that tests that need one are not run.
pub fn is_unbootable() -> bool {
    std::env::var_os(UNBOOTABLE).is_some()
}

/// Prevents a module from being loaded in this guest, until the returned value is dropped.
pub fn hide_module(name: &str) -> io::Result<HiddenModule> {
    if !is_inside() {
        return Err(io::Error::other("modules can be hidden only in a guest"));
    }
    fs::create_dir_all(MODPROBE_CONFIGURATION)?;
    let file = Path::new(MODPROBE_CONFIGURATION).join(format!("hide-{name}.conf"));
    fs::write(&file, format!("install {name} /bin/false\n"))?;
    // An earlier test may have loaded it.
    if Path::new("/sys/module").join(name).exists() {
        let removed = Command::new("rmmod").arg(name).output()?;
        if !removed.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&removed.stderr).into_owned()));
        }
    }
    Ok(HiddenModule { file })
}

/// A module that cannot be loaded until this value is dropped.
#[derive(Debug)]
pub struct HiddenModule {
    file: std::path::PathBuf,
}

impl Drop for HiddenModule {
    fn drop(&mut self) {
        fs::remove_file(&self.file).ok();
    }
}

/// Runs a program in a guest and waits for its end. `scratch` is an existing directory: the guest mounts a tmpfs there,
/// so files that the program creates in it are visible only in that guest.
pub fn run(program: &Path, arguments: &[impl AsRef<OsStr>], scratch: &Path) -> Result<Output, GuestError> {
    // Determined once for a whole test run.
    if let Ok(error) = std::env::var(UNBOOTABLE) {
        return Err(GuestError::Unbootable(error));
    }
    pool::Slot::take(scratch)?.run(program, arguments)
}

/// Runs one test of this program, by its exact name, in a guest.
pub fn run_test(test: &str, scratch: &Path) -> Result<(), String> {
    let program =
        std::env::current_exe().map_err(|e| format!("cannot read the path of this program: {e}"))?;
    let output = run(&program, &["--exact", test], scratch).map_err(|e| e.to_string())?;
    if output.success() && output.text.contains(" 1 passed") {
        return Ok(());
    }
    Err(format!("in user-mode Linux ({:?}):\n{}", output.status, output.text))
}

#[cfg(test)]
mod tests;
