//! A directory of manifests as a source of events, where there is no API server.
//!
//! In: a directory with `.yaml`, `.yml` and `.json` files, as `kubectl apply -f` takes them, and the set of resources to
//! read from them. Out: [`Notice`](crate::Notice)s. The way a change takes:
//!
//! ```text
//! inotify (which files) ─▶ file (reads) ─▶ document ─▶ parse (objects) ─▶ index (what changed) ─▶ reader (sends)
//! ```
//!
//! What always holds:
//!
//! - A file counts as a whole: if any document in it is bad, all of its last good content stays.
//! - Of an object in two files, the one in the lexicographically first file counts. When that goes, the other
//!   takes over.
//! - A directory that is missing changes nothing; files that are missing from a directory that is there do.
//! - Objects are not kept, only their names and fingerprints; new and changed ones until they are sent.
//!
//! Names that begin with a dot are passed over (editors' temporary files; `..data`, whose swap by the kubelet causes
//! all files to be read again), and so are folders. A symbolic link is followed, but a change behind it is noticed only if
//! it is made the way the kubelet makes it.

mod document;
mod file;
mod fingerprint;
mod index;
mod inotify;
mod parse;
mod reader;
mod set;
mod strict;
mod watch;

pub use parse::{ParseError, parse};
pub use set::ResourceSet;
pub use watch::watch;
