//! Which files may have changed.
//!
//! In: a directory, which need not exist yet. Out: names, as the kernel tells them. The directory itself is watched, and
//! the nearest folder above it that exists, so that its coming, going and being replaced are noticed too.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// How often the directory may come and go while its watches are being set.
const ATTEMPTS: u32 = 8;

/// What may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dirty {
    /// Anything.
    pub(super) all: bool,
    /// Or these files.
    pub(super) names: BTreeSet<OsString>,
}

impl Dirty {
    /// Both together.
    pub(super) fn merge(&mut self, other: Dirty) {
        self.all |= other.all;
        self.names.extend(other.names);
    }
}

/// Whether a file of this name is read.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().unwrap_or_default();
    !name.as_bytes().starts_with(b".") && ["yaml", "yml", "json"].iter().any(|known| extension == *known)
}

/// A watch on a directory.
#[derive(Debug)]
pub(super) struct Watcher {
    kernel: AsyncFd<OwnedFd>,
    directory: PathBuf,
    own: Option<i32>,
    above: Option<(i32, OsString)>,
}

impl Watcher {
    /// Begins to watch. `directory` must be absolute.
    #[expect(
        deprecated,
        reason = "its successor is unsafe for types that lie about their descriptor; OwnedFd does not"
    )]
    pub(super) fn new(directory: PathBuf) -> io::Result<Self> {
        let kernel = AsyncFd::new(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?)?;
        let mut watcher = Watcher { kernel, directory, own: None, above: None };
        watcher.arm()?;
        Ok(watcher)
    }

    /// Waits until something may have changed. Cancel-safe.
    pub(super) async fn changed(&mut self) -> io::Result<Dirty> {
        loop {
            let (dirty, lost) = {
                let mut ready = self.kernel.readable().await?;
                let read = self.drain();
                ready.clear_ready();
                read?
            };
            if lost {
                self.arm()?;
            }
            if dirty != Dirty::default() {
                return Ok(dirty);
            }
        }
    }

    /// Takes in all events there are. Also tells whether the watches have to be set anew.
    fn drain(&self) -> io::Result<(Dirty, bool)> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(self.kernel.get_ref(), &mut buffer);
        let (mut dirty, mut lost) = (Dirty::default(), false);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok((dirty, lost)),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            let gone =
                ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                (dirty.all, lost) = (true, true);
            } else if Some(event.wd()) == self.own {
                match name {
                    Some(name) => self.note(&mut dirty, event.events(), name),
                    None if event.events().intersects(gone) => (dirty.all, lost) = (true, true),
                    None => {}
                }
            } else if let Some((above, next)) = &self.above
                && event.wd() == *above
                && (event.events().intersects(gone) || name == Some(next))
            {
                (dirty.all, lost) = (true, true);
            }
        }
    }

    fn note(&self, dirty: &mut Dirty, events: ReadFlags, name: &OsStr) {
        if name.as_bytes().starts_with(b"..") {
            dirty.all = true;
        } else if is_manifest(name) && !(events.contains(ReadFlags::CREATE) && self.is_being_written(name)) {
            dirty.names.insert(name.to_owned());
        }
    }

    /// A file that was created by opening it is still empty, and is told of again when it is closed. Links are complete at
    /// once and are not.
    fn is_being_written(&self, name: &OsStr) -> bool {
        let metadata = std::fs::symlink_metadata(self.directory.join(name));
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
    }

    /// Sets the watches on what is there now. A watch that is already there stays.
    fn arm(&mut self) -> io::Result<()> {
        let files = WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        let itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        for _ in 0..ATTEMPTS {
            let above = self.watch_above(names | itself)?;
            let own = match self.add(&self.directory, files | itself) {
                Err(Errno::NOENT | Errno::NOTDIR) => None,
                added => Some(added?),
            };
            self.forget(own, above.as_ref().map(|(watch, _, _)| *watch));
            self.own = own;
            let missing = match &above {
                Some((_, folder, next)) if own.is_none() => Some(folder.join(next)),
                _ => None,
            };
            self.above = above.map(|(watch, _, next)| (watch, next));
            // It may have come between the two; then there will be no event for it.
            if !missing.is_some_and(|missing| missing.is_dir()) {
                return Ok(());
            }
        }
        Err(io::Error::other("a folder above it cannot be watched; it must be readable"))
    }

    /// Watches the nearest folder above that exists: the watch, the folder, and what should be in it.
    fn watch_above(&self, flags: WatchFlags) -> io::Result<Option<(i32, PathBuf, OsString)>> {
        let mut below = self.directory.as_path();
        while let (Some(folder), Some(next)) = (below.parent(), below.file_name()) {
            match self.add(folder, flags) {
                // One that may be passed through but not read cannot be watched, and seldom need be.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => below = folder,
                added => return Ok(Some((added?, folder.to_owned(), next.to_owned()))),
            }
        }
        Ok(None)
    }

    fn add(&self, path: &Path, flags: WatchFlags) -> Result<i32, Errno> {
        inotify::add_watch(self.kernel.get_ref(), path, flags)
    }

    /// Removes the watches that are in use no more. They may be gone already.
    fn forget(&self, own: Option<i32>, above: Option<i32>) {
        let old = [self.own, self.above.as_ref().map(|(watch, _)| *watch)];
        for watch in old.into_iter().flatten() {
            if Some(watch) != own && Some(watch) != above {
                let _ = inotify::remove_watch(self.kernel.get_ref(), watch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_manifests_are_read() {
        for name in ["a.yaml", "b.yml", "c.d.json"] {
            assert!(is_manifest(OsStr::new(name)), "{name}");
        }
        for name in ["a.txt", ".a.yaml", ".#a.yaml", "..data", "yaml", ".yaml", "a.yaml~", "a.yaml.swp"] {
            assert!(!is_manifest(OsStr::new(name)), "{name}");
        }
    }
}
