//! The Unix socket through which agents connect to the relay: in a private directory, named after the network
//! namespace.
//!
//! A socket in the abstract namespace would be unsafe: any process could bind the name first, and rules would redirect
//! the traffic of all Services to it.

use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of all control sockets.
const DIRECTORY: &str = "/run/portway";
/// How long a read or a write may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The control socket of this thread's network namespace. Its path is the same in all releases: an agent of one release
/// has to find the relay of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlSocket {
    socket: PathBuf,
    lock: PathBuf,
}

impl ControlSocket {
    pub(crate) fn of_this_namespace() -> io::Result<ControlSocket> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        let path = |ending| Path::new(DIRECTORY).join(format!("relay-{namespace}.{ending}"));
        Ok(ControlSocket { socket: path("socket"), lock: path("lock") })
    }

    /// Binds the socket and listens; fails if another relay has it.
    pub(crate) fn bind(&self) -> io::Result<Bound> {
        private_directory(Path::new(DIRECTORY))?;
        let lock = retry_while_locked(|| lock(&self.lock))?;
        // The lock is held, so a socket that exists belongs to a relay that was killed.
        remove(&self.socket)?;
        let listener = UnixListener::bind(&self.socket)?;
        std::fs::set_permissions(&self.socket, std::fs::Permissions::from_mode(0o600))?;
        remove_stale_sockets();
        Ok(Bound { listener, path: self.clone(), _lock: lock })
    }

    /// Connects to the relay; none if there is no relay.
    pub(crate) fn connect(&self) -> io::Result<Option<UnixStream>> {
        let address = SocketAddrUnix::new(&self.socket)?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        match connect(&socket, &address) {
            Ok(()) => {}
            // No socket, or the socket of a relay that was killed.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => return Ok(None),
            // Including EAGAIN: the backlog is full, because the relay does not accept.
            Err(error) => return Err(error.into()),
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        set_timeouts(&stream, TIMEOUT)?;
        Ok(Some(stream))
    }
}

/// Limits how long a read and a write may take.
pub(crate) fn set_timeouts(stream: &UnixStream, time: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(time))?;
    stream.set_write_timeout(Some(time))
}

/// A bound control socket; removed when dropped.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: UnixListener,
    path: ControlSocket,
    _lock: File,
}

impl Bound {
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Before the lock is released, so that no other relay's socket is removed.
        _ = remove(&self.path.socket);
        _ = remove(&self.path.lock);
    }
}

/// Locks a file for as long as it is open. If the file was removed before it was locked, the lock would exclude no
/// other process, so the new file at the path is locked instead.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::create(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if std::fs::metadata(path)
            .is_ok_and(|found| file.metadata().is_ok_and(|locked| locked.ino() == found.ino()))
        {
            return Ok(file);
        }
    }
}

/// Retries for 100 ms: a process that removes stale sockets may hold the lock.
fn retry_while_locked<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..20 {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    attempt()
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes the sockets and locks of relays that were killed.
pub(crate) fn remove_stale_sockets() {
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.filter(|path| path.extension().is_some_and(|ending| ending == "lock")) {
        if let Ok(_lock) = lock(&path) {
            _ = remove(&path.with_extension("socket"));
            _ = remove(&path);
        }
    }
}

/// Creates a directory that only this user can enter, or checks that an existing one is writable by this user alone.
fn private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = std::fs::symlink_metadata(path)?;
    let is_own_directory = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.is_dir();
    if !is_own_directory || metadata.mode() & 0o022 != 0 {
        let message = format!(
            "{} is not a directory that only this user can write to (owner {}, mode {:o})",
            path.display(),
            metadata.uid(),
            metadata.mode() & 0o7777
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_other_users_can_write_to_is_rejected() {
        let path = std::env::temp_dir().join(format!("portway-control-socket-{}", std::process::id()));
        assert!(private_directory(&path).is_ok() && private_directory(&path).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(private_directory(&path).is_err_and(|e| e.to_string().contains("only this user can write")));
        std::fs::remove_dir(&path).expect("rmdir");
        std::fs::write(&path, "").expect("a file");
        assert!(private_directory(&path).is_err());
        std::fs::remove_file(&path).expect("rm");
    }
}
