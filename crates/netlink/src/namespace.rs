//! Leaving namespaces behind: the two `unshare` calls that the lab and the tests need.
//!
//! Entering a namespace (`setns`) is safe and offered by rustix; `unshare` is unsafe in general because one of its
//! flags splits the table of file descriptors, so the harmless uses of it get names of their own here.
#![expect(unsafe_code, reason = "unshare has no safe wrapper")]

use std::io;

/// Moves the calling thread into a fresh network namespace.
pub fn unshare_network() -> io::Result<()> {
    unshare(libc::CLONE_NEWNET)
}

/// Moves the process into a fresh user, mount and network namespace. The kernel refuses it to a process with
/// more than one thread.
pub fn unshare_user() -> io::Result<()> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET)
}

fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: no memory is handed over, and neither caller asks for CLONE_FILES, so that descriptors stay
    // shared between the threads as Rust expects.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
