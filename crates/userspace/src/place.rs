//! Where agent and carrier meet: a socket in a directory that is root's alone, named after the network namespace.
//!
//! A name in the abstract namespace would be anybody's who takes it first, with every Service's traffic to be had.

use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory.
const DIRECTORY: &str = "/run/portway";
/// How long either may keep the other waiting.
const PATIENCE: Duration = Duration::from_secs(3);

/// The place of this thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    socket: PathBuf,
    lock: PathBuf,
}

impl Place {
    pub(crate) fn here() -> io::Result<Place> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        let path = |ending| Path::new(DIRECTORY).join(format!("carrier-{namespace}.{ending}"));
        Ok(Place { socket: path("socket"), lock: path("lock") })
    }

    /// Takes the place; fails if somebody has it.
    pub(crate) fn take(&self) -> io::Result<Taken> {
        private_directory(Path::new(DIRECTORY))?;
        let lock = patiently(|| lock(&self.lock))?;
        // Whoever had it is dead.
        remove(&self.socket)?;
        let listener = UnixListener::bind(&self.socket)?;
        std::fs::set_permissions(&self.socket, std::fs::Permissions::from_mode(0o600))?;
        tidy();
        Ok(Taken { listener, place: self.clone(), _lock: lock })
    }

    /// Reaches who has it; none if nobody has.
    pub(crate) fn reach(&self) -> io::Result<Option<UnixStream>> {
        let address = SocketAddrUnix::new(&self.socket)?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        match connect(&socket, &address) {
            Ok(()) => {}
            // Left behind, or never there.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => return Ok(None),
            // So many wait that it does not seem to hear anybody.
            Err(error) => return Err(error.into()),
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        patient(&stream, PATIENCE)?;
        Ok(Some(stream))
    }
}

/// Has neither wait for longer.
pub(crate) fn patient(stream: &UnixStream, time: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(time))?;
    stream.set_write_timeout(Some(time))
}

/// A place that is ours until dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    listener: UnixListener,
    place: Place,
    _lock: File,
}

impl Taken {
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // While the lock is ours, so that it is not another's that goes.
        _ = remove(&self.place.socket);
        _ = remove(&self.place.lock);
    }
}

/// Locks a file for as long as it is open. One that was removed meanwhile is nobody's lock any more.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::create(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if std::fs::metadata(path)
            .is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino()))
        {
            return Ok(file);
        }
    }
}

/// Tries for a moment: somebody who tidies up may have it.
fn patiently<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
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

/// Removes what carriers left behind that were killed.
pub(crate) fn tidy() {
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.filter(|path| path.extension().is_some_and(|ending| ending == "lock")) {
        if let Ok(_lock) = lock(&path) {
            _ = remove(&path.with_extension("socket"));
            _ = remove(&path);
        }
    }
}

/// Makes a directory that nobody else can look into, or sees that it is one.
fn private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(path)?;
    let ours = found.uid() == rustix::process::geteuid().as_raw() && found.is_dir();
    if !ours || found.mode() & 0o022 != 0 {
        let words = format!(
            "{} is not a directory of ours alone (owner {}, mode {:o})",
            path.display(),
            found.uid(),
            found.mode() & 0o7777
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_may_write_to_is_not_trusted() {
        let path = std::env::temp_dir().join(format!("portway-place-{}", std::process::id()));
        assert!(private_directory(&path).is_ok() && private_directory(&path).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(private_directory(&path).is_err_and(|e| e.to_string().contains("not a directory of ours")));
        std::fs::remove_dir(&path).expect("rmdir");
        std::fs::write(&path, "").expect("a file");
        assert!(private_directory(&path).is_err());
        std::fs::remove_file(&path).expect("rm");
    }
}
