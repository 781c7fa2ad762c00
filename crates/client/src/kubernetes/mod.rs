//! List and watch of a resource at an API server, and writes to it.
//!
//! In: an [`Access`] and a [`Selection`]. Out: [`Notice`](crate::Notice)s. Data flow of a list or watch:
//!
//! ```text
//! request (a value) ─▶ response (bytes) ─▶ wire (items, frames) ─▶ object ─▶ step (decides) ─▶ watch (acts)
//! ```
//!
//! Only `response` and `write` send requests, over a `transport` that `access` configures from a `kubeconfig` or from a
//! pod's service account. `step` makes all decisions: it maps a state and an input to the next state and the
//! next request.

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
mod statistics;
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
pub use statistics::RequestStatistics;
pub use watch::watch;
pub use write::{DeleteOptions, ObjectName, Patch, Propagation, Subresource};
