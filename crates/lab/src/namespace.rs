//! A network namespace with a name.
//!
//! The name is a file in `/run/netns`, as with `ip netns`, so that a lab can be inspected with `ip netns exec` or
//! `nsenter`. It begins with the owner, so that [`crate::reap()`] can remove it after the owner has ended. Threads
//! enter a namespace, never the whole process: [`Namespace::run`] starts a thread for each call.

use crate::LabError;
use crate::owner::Owner;
use crate::process::Process;
use crate::reap::kill_processes_in;
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

/// The directory of named network namespaces.
pub(crate) const DIRECTORY: &str = "/run/netns";
/// The prefix of the lab's namespaces.
pub(crate) const PREFIX: &str = "portway";

/// The network namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace; removed, with the processes in it, when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    path: PathBuf,
    handle: OwnedFd,
    inode: u64,
    /// Whether processes may still run in it.
    may_have_processes: AtomicBool,
}

impl Namespace {
    /// Creates a namespace.
    pub fn new(name: &str) -> Result<Namespace, LabError> {
        Namespace::with(name, || Ok(())).map(|(namespace, ())| namespace)
    }

    /// Creates a namespace and calls `setup` in it.
    pub(crate) fn with<T: Send>(
        name: &str,
        setup: impl FnOnce() -> Result<T, LabError> + Send,
    ) -> Result<(Namespace, T), LabError> {
        let path = Path::new(DIRECTORY).join(format!("{PREFIX}.{}.{name}", Owner::current()));
        let failed = |source: io::Error| LabError::system(format!("create network namespace {name}"), source);
        fs::create_dir_all(DIRECTORY).map_err(failed)?;
        // Creating the file reserves the name; it is mounted on afterwards.
        File::create_new(&path).map_err(failed)?;
        let created = on_new_thread(|| {
            unshare_network().map_err(failed)?;
            mount_bind(OWN, &path).map_err(|e| failed(e.into()))?;
            let handle = File::open(OWN).map_err(failed)?;
            let inode = handle.metadata().map_err(failed)?.ino();
            let name = name.to_owned();
            let may_have_processes = AtomicBool::new(true);
            // From here on an early return drops the value, which removes the namespace.
            let namespace =
                Namespace { name, path: path.clone(), handle: handle.into(), inode, may_have_processes };
            setup().map(|result| (namespace, result))
        });
        if created.is_err() {
            remove_mount(&path).ok();
        }
        created
    }

    /// Its name, without the owner.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file in `/run/netns`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` in it, on a thread of its own, and waits for the result. Threads that `work` starts are in it as
    /// well.
    ///
    /// # Panics
    ///
    /// If `work` panics, or if the namespace cannot be entered, because the process has given up its privileges since
    /// it created the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_new_thread(|| {
            self.enter();
            work()
        })
    }

    /// Moves the calling thread into it.
    pub(crate) fn enter(&self) {
        let entered = move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network));
        assert!(entered.is_ok(), "cannot enter network namespace {}: {entered:?}", self.name);
    }

    /// Starts a process in it.
    pub fn spawn(&self, command: Command) -> Result<Process, LabError> {
        let operation = format!("start {} in {}", command.get_program().to_string_lossy(), self.name);
        self.run(|| Process::spawn(command)).map_err(|source| LabError::system(operation, source))
    }

    /// The inode that identifies it, if processes may run in it. The caller then has to kill them: a second call
    /// returns none.
    pub(crate) fn take_inode_to_clear(&self) -> Option<u64> {
        self.may_have_processes.swap(false, Ordering::Relaxed).then_some(self.inode)
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
        if let Some(inode) = self.take_inode_to_clear() {
            kill_processes_in(&BTreeSet::from([inode]));
        }
        if let Err(error) = remove_mount(&self.path) {
            tracing::warn!(namespace = self.name, %error, "cannot remove a network namespace");
        }
    }
}

/// Removes the name of a namespace: unmounts and removes its file. It is no error if the name does not exist.
pub(crate) fn remove_mount(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        // Not a mount: the process that created the file failed or was killed before it mounted the namespace.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
