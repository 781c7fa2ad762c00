//! A directory of manifests as a source of events, for use without an API server.
//!
//! In: a directory with `.yaml`, `.yml` and `.json` files, as for `kubectl apply -f`, and the set of resources to read
//! from them. Out: [`Notice`](crate::Notice)s. Data flow of a change:
//!
//! ```text
//! inotify (which files) ─▶ file (reads) ─▶ document ─▶ parse (objects) ─▶ index (changes) ─▶ reader (sends)
//! ```
//!
//! What always holds:
//!
//! - Each object is accepted or rejected alone. A rejected object keeps the last version that this file had of it. If the
//!   name of a rejected object is not known, it may be any of those that are missing from the file: they stay too.
//! - If an object is in two files, the lexicographically first file takes precedence. When the object is removed from
//!   that file, the version in the other file is sent.
//! - While the directory is missing, no events are sent. Objects of files that are missing from an existing directory
//!   are deleted.
//! - Only names and fingerprints of objects are kept. Objects of the first list are sent as they are read; later, new and
//!   changed objects are held until all files that have changed have been read.
//!
//! Files whose name begins with a dot are ignored (temporary files of editors; `..data`, but when the kubelet replaces
//! it, all files are read again), and so are subdirectories. Symbolic links are followed, but a change of their target
//! is detected only if it is made as the kubelet does it, by replacing `..data`.

mod document;
mod file;
mod fingerprint;
mod index;
mod inotify;
mod kind;
mod list;
mod parse;
mod reader;
mod set;
mod strict;
mod watch;

pub use parse::parse;
pub use set::ResourceSet;
pub use watch::watch;
