//! Removal of the namespaces and processes of labs whose process was killed.
//!
//! The owner of a namespace is in its name, and the owner of a process in its environment. Namespaces and processes
//! whose owner has ended are removed; those of a running owner are never changed. An error is reported, and the rest is
//! removed nevertheless.

use crate::namespace::{DIRECTORY, PREFIX, remove_mount};
use crate::owner::Owner;
use crate::process::MARKER;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The result of [`reap`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Names of removed namespaces.
    pub namespaces: Vec<String>,
    /// Numbers of killed processes.
    pub processes: Vec<u32>,
    /// Namespaces that could not be removed, with the errors.
    pub errors: Vec<String>,
}

/// Removes the namespaces and processes of labs whose process has ended.
pub fn reap() -> Reaped {
    let mut reaped = Reaped::default();
    let stale = stale_namespaces();
    let inodes: BTreeSet<u64> = stale.iter().filter_map(|p| fs::metadata(p).ok()).map(|m| m.ino()).collect();
    reaped.processes = kill_where(|pid| is_orphan(pid) || is_in(pid, &inodes));
    for path in stale {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match remove_mount(&path) {
            Ok(()) => reaped.namespaces.push(name),
            Err(error) => reaped.errors.push(format!("namespace {name}: {error}")),
        }
    }
    reaped
}

/// Kills the processes in these network namespaces, except this one.
pub(crate) fn kill_processes_in(inodes: &BTreeSet<u64>) {
    if !inodes.is_empty() {
        kill_where(|pid| is_in(pid, inodes));
    }
}

fn stale_namespaces() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
    let stale = |name: &str| owner_of(name).is_some_and(|owner| !owner.is_alive());
    entries.flatten().filter(|e| e.file_name().to_str().is_some_and(stale)).map(|e| e.path()).collect()
}

/// The owner in a namespace's name: `portway.<pid>.<start>.<name>`.
fn owner_of(name: &str) -> Option<Owner> {
    let rest = name.strip_prefix(PREFIX)?.strip_prefix('.')?;
    let (pid, rest) = rest.split_once('.')?;
    let (start, _) = rest.split_once('.')?;
    format!("{pid}.{start}").parse().ok()
}

/// Whether a process was started by a lab whose process has ended.
fn is_orphan(pid: u32) -> bool {
    // In another PID namespace, the owner's number is that of another process.
    if namespace_inode(pid, "pid") != namespace_inode(std::process::id(), "pid") {
        return false;
    }
    // The environment of other users' processes cannot be read; no lab of this user started them.
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let mut entries = environment.split(|&b| b == 0).filter_map(|e| std::str::from_utf8(e).ok());
    let owner = entries.find_map(|e| e.strip_prefix(MARKER)?.strip_prefix('=')?.parse::<Owner>().ok());
    owner.is_some_and(|owner| !owner.is_alive())
}

fn namespace_inode(pid: u32, kind: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/{kind}")).ok().map(|m| m.ino())
}

fn is_in(pid: u32, inodes: &BTreeSet<u64>) -> bool {
    !inodes.is_empty() && namespace_inode(pid, "net").is_some_and(|inode| inodes.contains(&inode))
}

/// Kills the processes for which `must_kill` is true, waits until they have ended, and returns their numbers.
fn kill_where(must_kill: impl Fn(u32) -> bool) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let me = std::process::id();
    let mut killed = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if pid == me || !must_kill(pid) {
            continue;
        }
        let Some(handle) = Pid::from_raw(pid as i32).and_then(|p| pidfd_open(p, PidfdFlags::empty()).ok())
        else {
            continue;
        };
        // Checked again now that the process number cannot be reused.
        if must_kill(pid) && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
            killed.push((pid, handle));
        }
    }
    let timeout = Timespec { tv_sec: 2, tv_nsec: 0 };
    for (_, handle) in &killed {
        // Readable when the process has ended. A process that takes longer hangs in the kernel, and waiting would not
        // help.
        poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&timeout)).ok();
    }
    killed.into_iter().map(|(pid, _)| pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_parsed_from_the_name_of_a_namespace() {
        let me = Owner::current();
        assert_eq!(owner_of(&format!("portway.{me}.node1")), Some(me));
        assert_eq!(owner_of(&format!("portway.{me}.2.node1")), Some(me));
        for other in
            ["portway.1.node1", "portway.x.1.node1", "other.1.2.node1", "portwayx.1.2.n", "portway.1.2"]
        {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }
}
