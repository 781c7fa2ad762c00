//! A network namespace with a name.
//!
//! The name is a file in `/run/netns`, as `ip netns` has it, so that people can look into a lab with `ip netns exec`
//! or `nsenter`. It begins with the owner, by which [`crate::reap()`] knows whether it is still needed. Threads
//! enter a namespace, never the whole process: [`Namespace::run`] takes a fresh one for each piece of work.

use crate::LabError;
use crate::owner::Owner;
use crate::process::Process;
use crate::reap::kill_inhabitants;
use portway_netlink::namespace::unshare_network;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Where named network namespaces are.
pub(crate) const DIRECTORY: &str = "/run/netns";
/// The prefix of the lab's namespaces.
pub(crate) const PREFIX: &str = "portway";

/// The network namespace of the thread that looks.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace; removed, with the processes in it, when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    path: PathBuf,
    handle: OwnedFd,
    inode: u64,
    /// Whether processes may still run in it.
    inhabited: AtomicBool,
}

impl Namespace {
    /// Makes a namespace.
    pub fn new(name: &str) -> Result<Namespace, LabError> {
        Namespace::with(name, || Ok(())).map(|(namespace, ())| namespace)
    }

    /// Makes a namespace and sets it up from the inside.
    pub(crate) fn with<T: Send>(
        name: &str,
        setup: impl FnOnce() -> Result<T, LabError> + Send,
    ) -> Result<(Namespace, T), LabError> {
        let path = Path::new(DIRECTORY).join(format!("{PREFIX}.{}.{name}", Owner::current()));
        let failed = |source: io::Error| LabError::system(format!("make network namespace {name}"), source);
        fs::create_dir_all(DIRECTORY).map_err(failed)?;
        // Creating the file reserves the name; it is mounted on afterwards.
        File::create_new(&path).map_err(failed)?;
        let made = on_fresh_thread(|| {
            unshare_network().map_err(failed)?;
            mount_bind(OWN, &path).map_err(|e| failed(e.into()))?;
            let handle = File::open(OWN).map_err(failed)?;
            let inode = handle.metadata().map_err(failed)?.ino();
            let name = name.to_owned();
            let inhabited = AtomicBool::new(true);
            // From here on an early return drops the namespace, and with that removes it.
            let namespace = Namespace { name, path: path.clone(), handle: handle.into(), inode, inhabited };
            setup().map(|result| (namespace, result))
        });
        if made.is_err() {
            remove_mount(&path).ok();
        }
        made
    }

    /// Its name, without the owner.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` in it, on a thread of its own, and waits. Threads that `work` starts are in it as well.
    ///
    /// # Panics
    ///
    /// If `work` does, or if the namespace cannot be entered, which only a process that has given up its
    /// privileges since it made the namespace will see.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_fresh_thread(|| {
            self.enter();
            work()
        })
    }

    /// Moves the calling thread into it, for good.
    pub(crate) fn enter(&self) {
        let entered = move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network));
        assert!(entered.is_ok(), "cannot enter network namespace {}: {entered:?}", self.name);
    }

    /// Starts a process in it.
    pub fn spawn(&self, command: Command) -> Result<Process, LabError> {
        let what = format!("start {} in {}", command.get_program().to_string_lossy(), self.name);
        self.run(|| Process::spawn(command)).map_err(|source| LabError::system(what, source))
    }

    /// What its inhabitants are known by, if it may have any; they are then the caller's to kill.
    pub(crate) fn take_inhabited(&self) -> Option<u64> {
        self.inhabited.swap(false, Ordering::Relaxed).then_some(self.inode)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl AsRef<Namespace> for Namespace {
    fn as_ref(&self) -> &Namespace {
        self
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(inode) = self.take_inhabited() {
            kill_inhabitants(&BTreeSet::from([inode]));
        }
        if let Err(error) = remove_mount(&self.path) {
            tracing::warn!(namespace = self.name, %error, "network namespace not removed");
        }
    }
}

/// Takes away the name of a namespace; one that is gone already is no error.
pub(crate) fn remove_mount(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        // Not a mount: its maker died, or failed, between the two steps.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn on_fresh_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
