//! List and watch of a resource at an API server, and writes to it.
//!
//! In: an [`Access`] and a [`Selection`]. Out: [`Notice`](crate::Notice)s. The way a response takes:
//!
//! ```text
//! request (a value) ─▶ response (bytes) ─▶ wire (parts) ─▶ object ─▶ step (decides) ─▶ watch (does)
//! ```
//!
//! Only `response`, `write` and `watch` do I/O, over a `transport` that `access` has made of a `kubeconfig` or of a pod's
//! service account. `step` is the whole of the behaviour: a state and an input to a state and the next request.

mod access;
mod backoff;
mod credential;
mod dial;
mod error;
mod exec;
mod failure;
mod kubeconfig;
mod object;
mod proxy;
mod request;
mod response;
mod retry;
mod status;
mod step;
mod throttle;
mod tls;
mod transport;
mod watch;
mod wire;
mod write;

pub use access::{Access, Client, ConnectError, Encoding, connect};
pub use error::{FieldCause, Reason, RequestError};
pub use request::Selection;
pub use watch::watch;
pub use write::{DeleteOptions, ObjectName, Part, Patch, Propagation};
