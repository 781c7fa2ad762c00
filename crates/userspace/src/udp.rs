//! UDP: a session for each client and Service port, with a socket of its own towards the endpoint.
//!
//! Datagrams arrive at a listener, and answers leave from it, so the kernel translates the source of answers back. The
//! original destination is looked up in connection tracking once per session. So a session must not outlive the tracked
//! flow: datagrams from the same client port to another Service would be taken for datagrams of the old session.

mod sessions;
mod timeouts;
mod worker;

pub(crate) use worker::Worker;
