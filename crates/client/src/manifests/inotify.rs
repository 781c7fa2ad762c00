//! Detects which files may have changed, with inotify.
//!
//! In: a directory, which need not exist yet. Out: names of files. The directory itself is watched, and so is its
//! nearest existing ancestor, to detect that the directory is created, removed or replaced.

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

/// Attempts to set the watches while directories are being created.
const MAX_ATTEMPTS: u32 = 8;

/// Files that may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dirty {
    /// All files.
    pub(super) all: bool,
    /// These files.
    pub(super) names: BTreeSet<OsString>,
}

impl Dirty {
    /// Adds the files of `other`.
    pub(super) fn merge(&mut self, other: Dirty) {
        self.all |= other.all;
        self.names.extend(other.names);
    }
}

/// Whether a file of this name is a manifest.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().unwrap_or_default();
    !name.as_bytes().starts_with(b".") && ["yaml", "yml", "json"].iter().any(|known| extension == *known)
}

/// A watch on a directory.
#[derive(Debug)]
pub(super) struct Watcher {
    inotify: AsyncFd<OwnedFd>,
    directory: PathBuf,
    /// Watch on the directory, if it exists.
    own: Option<i32>,
    /// Watch on the nearest existing ancestor, and the name in it that is on the path to the directory.
    ancestor: Option<(i32, OsString)>,
}

impl Watcher {
    /// Sets the watches. `directory` must be absolute.
    #[expect(
        deprecated,
        reason = "the replacement, AsyncFd::register, is unsafe; an OwnedFd meets its requirements"
    )]
    pub(super) fn new(directory: PathBuf) -> io::Result<Self> {
        let inotify = AsyncFd::new(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?)?;
        let mut watcher = Watcher { inotify, directory, own: None, ancestor: None };
        watcher.set_watches()?;
        Ok(watcher)
    }

    /// Waits until files may have changed. Cancel-safe.
    pub(super) async fn changed(&mut self) -> io::Result<Dirty> {
        loop {
            let (dirty, lost) = {
                let mut ready = self.inotify.readable().await?;
                let read = self.drain();
                ready.clear_ready();
                read?
            };
            if lost {
                self.set_watches()?;
            }
            if dirty != Dirty::default() {
                return Ok(dirty);
            }
        }
    }

    /// Reads all queued events. Also returns whether the watches have to be set again.
    fn drain(&self) -> io::Result<(Dirty, bool)> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(self.inotify.get_ref(), &mut buffer);
        let (mut dirty, mut lost) = (Dirty::default(), false);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok((dirty, lost)),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            let removed =
                ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                (dirty.all, lost) = (true, true);
            } else if Some(event.wd()) == self.own {
                match name {
                    Some(name) => self.record(&mut dirty, event.events(), name),
                    None if event.events().intersects(removed) => (dirty.all, lost) = (true, true),
                    None => {}
                }
            } else if let Some((ancestor, next)) = &self.ancestor
                && event.wd() == *ancestor
                && (event.events().intersects(removed) || name == Some(next))
            {
                (dirty.all, lost) = (true, true);
            }
        }
    }

    fn record(&self, dirty: &mut Dirty, events: ReadFlags, name: &OsStr) {
        if name.as_bytes().starts_with(b"..") {
            dirty.all = true;
        } else if is_manifest(name) && !(events.contains(ReadFlags::CREATE) && self.is_being_written(name)) {
            dirty.names.insert(name.to_owned());
        }
    }

    /// Whether a new file is probably still being written: a regular file with one link. Another event follows when it
    /// is closed. Links are complete at once, and no other event follows.
    fn is_being_written(&self, name: &OsStr) -> bool {
        let metadata = std::fs::symlink_metadata(self.directory.join(name));
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
    }

    /// Sets the watches for the directories that exist now. Existing watches are kept.
    fn set_watches(&mut self) -> io::Result<()> {
        let files = WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        let itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        for _ in 0..MAX_ATTEMPTS {
            let ancestor = self.watch_ancestor(names | itself)?;
            let own = match self.add(&self.directory, files | itself) {
                Err(Errno::NOENT | Errno::NOTDIR) => None,
                added => Some(added?),
            };
            self.remove_unused_watches(own, ancestor.as_ref().map(|(watch, _, _)| *watch));
            self.own = own;
            let missing = match &ancestor {
                Some((_, folder, next)) if own.is_none() => Some(folder.join(next)),
                _ => None,
            };
            self.ancestor = ancestor.map(|(watch, _, next)| (watch, next));
            // It may have been created before the watch on its ancestor was set; then there is no event for it.
            if !missing.is_some_and(|missing| missing.is_dir()) {
                return Ok(());
            }
        }
        Err(io::Error::other("cannot watch a parent directory; it must be readable"))
    }

    /// Watches the nearest existing ancestor. Returns the watch, the ancestor, and the name to expect in it.
    fn watch_ancestor(&self, flags: WatchFlags) -> io::Result<Option<(i32, PathBuf, OsString)>> {
        let mut path = self.directory.as_path();
        while let (Some(folder), Some(next)) = (path.parent(), path.file_name()) {
            match self.add(folder, flags) {
                // A directory without read permission cannot be watched, and seldom needs to be.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => path = folder,
                added => return Ok(Some((added?, folder.to_owned(), next.to_owned()))),
            }
        }
        Ok(None)
    }

    fn add(&self, path: &Path, flags: WatchFlags) -> Result<i32, Errno> {
        inotify::add_watch(self.inotify.get_ref(), path, flags)
    }

    /// Removes the previous watches that are not in use any more. The kernel may have removed them already.
    fn remove_unused_watches(&self, own: Option<i32>, ancestor: Option<i32>) {
        let old = [self.own, self.ancestor.as_ref().map(|(watch, _)| *watch)];
        for watch in old.into_iter().flatten() {
            if Some(watch) != own && Some(watch) != ancestor {
                let _ = inotify::remove_watch(self.inotify.get_ref(), watch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_recognized_by_name() {
        for name in ["a.yaml", "b.yml", "c.d.json"] {
            assert!(is_manifest(OsStr::new(name)), "{name}");
        }
        for name in ["a.txt", ".a.yaml", ".#a.yaml", "..data", "yaml", ".yaml", "a.yaml~", "a.yaml.swp"] {
            assert!(!is_manifest(OsStr::new(name)), "{name}");
        }
    }
}
