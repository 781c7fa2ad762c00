//! Getting the privilege to build labs.
//!
//! Root with its capabilities has it. Any other user becomes root of a new user namespace, with a mount
//! namespace whose `/run` is a fresh tmpfs, so that names in `/run/netns` are not visible to other processes.

use crate::reap::reap;
use portway_netlink::namespace::unshare_user;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;
use std::io;

/// By what right labs are built.
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
    /// Called too late.
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
        /// Which step.
        step: &'static str,
        /// What the system said.
        source: io::Error,
        /// What to do about it.
        advice: String,
    },
}

/// Gets the privilege to build labs, and removes what killed ones left behind. To be called first thing in `main`,
/// while the process has a single thread.
pub fn enter() -> Result<Privilege, EnterError> {
    // Before any namespace is left: from inside a user namespace the processes outside could not be seen through.
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
            "removed what a killed lab left behind"
        );
    }
    for resisted in &reaped.resisted {
        tracing::warn!(%resisted, "could not remove what a killed lab left behind");
    }
}

/// The usual 1024 descriptors are few for a process that serves for all pods; nothing speaks against what we may have.
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

/// The setting of this system that stands in the way, if one of the usual suspects does.
fn advice() -> String {
    let suspects = [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("user/max_user_namespaces", "0", "15000"),
        ("user/max_net_namespaces", "0", "15000"),
    ];
    for (name, obstructive, wanted) in suspects {
        let value = fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default();
        if value.trim() == obstructive {
            let key = name.replace('/', ".");
            return format!("This system forbids user namespaces: run as root, or set sysctl {key}={wanted}");
        }
    }
    "Run as root; in a container, allow unshare and mount (seccomp profile, CAP_SYS_ADMIN)".into()
}
