//! List and watch of one kind at an API server.
//!
//! In: an [`Access`] and a [`Selection`]. Out: [`Notice`](crate::Notice)s. The way a response takes:
//!
//! ```text
//! resource (requests as values) ─▶ response (bytes) ─▶ wire (parts) ─▶ object ─▶ step (decides) ─▶ watch (does)
//! ```
//!
//! Only `response` and `watch` do I/O. `step` is the whole of the behaviour: a state, an input, what to do next.
//! kube-rs gives configuration, authentication and transport; its own watcher reads JSON into whole objects, which
//! is what the memory budget forbids.

mod access;
mod advice;
mod backoff;
mod credential;
mod object;
mod resource;
mod response;
mod status;
mod step;
mod throttle;
mod transport;
mod watch;
mod wire;

pub use access::{Access, Client, ConnectError, Encoding, connect};
pub use resource::Selection;
pub use watch::watch;
