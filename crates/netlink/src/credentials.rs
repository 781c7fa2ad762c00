//! The process and the user at the other end of a Unix socket (`SO_PEERCRED`).
//!
//! rustix reads the process as a number that is never 0, but the kernel returns 0 for a process that is not visible in
//! the caller's process namespace, so this is a call of its own.
#![expect(unsafe_code, reason = "no safe wrapper accepts process 0")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process that listens at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Not known if the process is in a container of its own.
    pub process: Option<u32>,
    /// The user id of the process, in the caller's user namespace.
    pub user: u32,
}

/// The process that listens at the other end, as it was when it began to listen.
pub fn peer(stream: &UnixStream) -> io::Result<Peer> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a value of the size in `length`, which the kernel fills at most.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every bit pattern is a valid `ucred`, and the value was zeroed.
    let credentials = unsafe { credentials.assume_init() };
    Ok(Peer {
        process: u32::try_from(credentials.pid).ok().filter(|process| *process != 0),
        user: credentials.uid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_socket_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let user = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
        assert_eq!(peer(&one).unwrap(), Peer { process: Some(std::process::id()), user });
    }
}
