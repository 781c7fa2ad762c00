//! Another kernel: user-mode Linux, for what the host's does not have.
//!
//! A guest is a process that is a whole Linux, with the host's files as its own and a network of its own. It boots in
//! seconds, runs one program, and is gone; should that hang, after twenty minutes. Labs are built in it as on the host:
//! [`run`] takes a program and brings out what it wrote and how it ended, [`play`] has this same program play some of
//! its tests there.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel, as Debian's package `user-mode-linux` has it.
const KERNEL: &str = "linux.uml";
/// What a guest sees of itself.
const MARKER: &str = "PORTWAY_GUEST";
/// What a lab needs is far less; the kernel takes only what it uses.
const MEMORY: &str = "mem=1024M";
const INIT: &str = include_str!("guest/init.sh");

/// How a program ended in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; none if the guest ended before it did.
    pub status: Option<i32>,
    /// What it wrote.
    pub text: String,
}

impl Output {
    /// Whether it went well.
    pub fn success(&self) -> bool {
        self.status == Some(0)
    }
}

/// Why there is no guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// There is no such kernel.
    #[error(
        "no {KERNEL}: install the package user-mode-linux (and kmod), whose kernel has what this one lacks"
    )]
    Missing,
    /// The system refused something.
    #[error("guest: {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
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

/// Whether something that needs ip_vs has to be run in a guest.
pub fn is_needed() -> bool {
    !is_inside() && !has_module("ip_vs")
}

/// Runs a program in a guest of its own and waits for its end. `scratch` is a directory that exists: the program makes its
/// files there, and the guest, but nobody else, sees them.
pub fn run(program: &Path, arguments: &[impl AsRef<OsStr>], scratch: &Path) -> Result<Output, GuestError> {
    let system = |what| move |source| GuestError::System { what, source };
    let directory = Directory::new(scratch).map_err(system("make its directory"))?;
    directory.write(program, arguments, scratch).map_err(system("write down what it is to do"))?;
    let mut command = Command::new(KERNEL);
    command
        .args(["rootfstype=hostfs", "root=/dev/root", "hostfs=/", "rw", MEMORY, "quiet", "con=null"])
        .arg("con0=null,fd:1")
        .arg(format!("init={}", directory.file("init").display()))
        .arg(format!("{MARKER}={}", directory.path.display()))
        .stdin(Stdio::null());
    // What the kernel does not know it hands to its first process, as environment.
    for (name, value) in std::env::vars().filter(|(name, _)| name.starts_with("PORTWAY_")) {
        command.arg(format!("{name}={value}"));
    }
    let output = match command.output() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(GuestError::Missing),
        other => other.map_err(system("start"))?,
    };
    let status = fs::read_to_string(directory.file("status")).ok().and_then(|s| s.trim().parse().ok());
    let mut text = fs::read(directory.file("output")).map(|t| String::from_utf8_lossy(&t).into_owned());
    if status.is_none() {
        // What the kernel itself had to say.
        let console = String::from_utf8_lossy(&output.stdout).into_owned();
        text = text.map(|text| format!("{text}\n{console}")).or(Ok(console));
    }
    Ok(Output { status, text: text.map_err(system("read what it wrote"))? })
}

/// Plays the tests of this program whose names begin with `section::` in a guest of their own, so many at a time. One
/// guest for a whole section, because a boot takes as long as a test does.
pub fn play(section: &str, at_a_time: usize, scratch: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("the path of this program: {e}"))?;
    let arguments = [format!("{section}::"), format!("--test-threads={at_a_time}")];
    let output = run(&program, &arguments, scratch).map_err(|e| e.to_string())?;
    if output.success() && !output.text.contains(" 0 passed") {
        return Ok(());
    }
    Err(format!("in user-mode Linux ({:?}):\n{}", output.status, output.text))
}

/// Where guest and host meet; removed when dropped.
struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Beside the scratch directory, which the guest covers with its own.
    fn new(scratch: &Path) -> io::Result<Directory> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let parent = scratch.parent().unwrap_or(scratch);
        let path = parent.join(format!("guest-{}-{number}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Directory { path })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write(&self, program: &Path, arguments: &[impl AsRef<OsStr>], scratch: &Path) -> io::Result<()> {
        let mut command = format!("{}\n", program.display());
        for argument in arguments {
            command += &format!("{}\n", argument.as_ref().to_string_lossy());
        }
        fs::write(self.file("command"), command)?;
        fs::write(self.file("scratch"), scratch.display().to_string())?;
        fs::write(self.file("init"), INIT)?;
        fs::set_permissions(self.file("init"), fs::Permissions::from_mode(0o755))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}
