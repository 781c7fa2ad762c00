//! Acquires the privilege to build labs.
//!
//! Root with its capabilities has it. Any other user becomes root of a new user namespace, with a mount
//! namespace whose `/run` is a new tmpfs, so that names in `/run/netns` are not visible to other processes.

use crate::reap::reap;
use portway_netlink::namespace::unshare_user;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;
use std::io;

/// The privilege with which labs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// As root of the machine, or of the container.
    Root,
    /// As root of a user namespace.
    UserNamespace,
}

/// Why labs cannot be built here.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The process has more than one thread.
    #[error(
        "a lab must be entered while the process has a single thread, but it has {0}: call enter() first thing in main"
    )]
    Threads(usize),
    /// A step towards the user namespace failed.
    #[error(
        "a lab needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN, or a user namespace; this process has no such \
         capabilities, and could not {step}: {source}. {advice}"
    )]
    UserNamespace {
        /// The step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
        /// How to allow it.
        advice: String,
    },
}

/// Acquires the privilege to build labs, and removes namespaces and processes of labs that were killed. To be called at
/// the start of `main`, while the process has a single thread.
pub fn enter() -> Result<Privilege, EnterError> {
    // Before a user namespace is entered: from inside it, the namespaces and environments of processes outside cannot
    // be read.
    report(&reap());
    raise_open_files();
    if has_capabilities() {
        return Ok(Privilege::Root);
    }
    match fs::read_dir("/proc/self/task").map_or(1, Iterator::count) {
        1 => {}
        threads => return Err(EnterError::Threads(threads)),
    }
    become_root().map(|()| Privilege::UserNamespace)
}

fn report(reaped: &crate::Reaped) {
    if !reaped.namespaces.is_empty() || !reaped.processes.is_empty() {
        tracing::info!(
            namespaces = reaped.namespaces.len(),
            processes = reaped.processes.len(),
            "removed namespaces and processes of a lab that was killed"
        );
    }
    for error in &reaped.errors {
        tracing::warn!(%error, "cannot remove a network namespace of a lab that was killed");
    }
}

/// The usual limit of 1024 descriptors is too low for a process that serves for all pods, so it is raised to the hard
/// limit.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).ok();
}

fn has_capabilities() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    geteuid().is_root() && capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

fn become_root() -> Result<(), EnterError> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    step("unshare a user namespace", unshare_user())?;
    // Without this, only a privileged process may map groups (user_namespaces(7)).
    step("give up setgroups", fs::write("/proc/self/setgroups", "deny"))?;
    step("map the user", fs::write("/proc/self/uid_map", format!("0 {uid} 1")))?;
    step("map the group", fs::write("/proc/self/gid_map", format!("0 {gid} 1")))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("make mounts private", mount_change("/", private).map_err(Into::into))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    step("mount a tmpfs on /run", mount("tmpfs", "/run", "tmpfs", flags, c"mode=0755").map_err(Into::into))
}

fn step(step: &'static str, result: io::Result<()>) -> Result<(), EnterError> {
    result.map_err(|source| EnterError::UserNamespace { step, source, advice: advice() })
}

/// The sysctl of this system that forbids user namespaces, if it is one of the known ones.
fn advice() -> String {
    let settings = [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("user/max_user_namespaces", "0", "15000"),
        ("user/max_net_namespaces", "0", "15000"),
    ];
    for (name, forbidding, wanted) in settings {
        let value = fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default();
        if value.trim() == forbidding {
            let key = name.replace('/', ".");
            return format!("This system forbids user namespaces: run as root, or set sysctl {key}={wanted}");
        }
    }
    "Run as root; in a container, allow unshare and mount (seccomp profile, CAP_SYS_ADMIN)".into()
}
