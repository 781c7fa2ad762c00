//! Creates namespaces: the two `unshare` calls that the lab and the tests need.
//!
//! rustix offers `setns`, which enters an existing namespace, as a safe function. `unshare` is unsafe in general,
//! because `CLONE_FILES` splits the table of file descriptors; the two functions here never pass that flag.
#![expect(unsafe_code, reason = "unshare has no safe wrapper")]

use std::io;

/// Moves the calling thread into a new network namespace.
pub fn unshare_network() -> io::Result<()> {
    unshare(libc::CLONE_NEWNET)
}

/// Moves the process into a new user, mount and network namespace. The kernel refuses this if the process
/// has more than one thread.
pub fn unshare_user() -> io::Result<()> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET)
}

fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: the call takes no pointers. Neither caller passes CLONE_FILES, so all threads keep sharing one table
    // of file descriptors, which the standard library relies on.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
