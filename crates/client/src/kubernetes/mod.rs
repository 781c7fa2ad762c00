//! List and watch of one kind at an API server.
//!
//! In: an [`Access`] and a [`Selection`]. Out: [`Notice`](crate::Notice)s. The way a response takes:
//!
//! ```text
//! resource (requests as values) ─▶ response (bytes) ─▶ wire (parts) ─▶ object ─▶ step (decides) ─▶ watch (does)
//! ```
//!
//! Only `response`, `write` and `watch` do I/O, over a `transport` that `access` has made of a `kubeconfig` or of a pod's
//! service account. `step` is the whole of the behaviour: a state, an input, what to do next.

mod access;
mod advice;
mod backoff;
mod credential;
mod exec;
mod kubeconfig;
mod object;
mod resource;
mod response;
mod status;
mod step;
mod throttle;
mod tls;
mod transport;
mod watch;
mod wire;
mod write;

pub use access::{Access, Client, ConnectError, Encoding, connect};
pub use resource::Selection;
pub use watch::watch;
pub(crate) use write::WriteError;
