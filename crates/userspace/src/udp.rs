//! UDP: a session for each client and Service port, with a socket of its own towards the endpoint.
//!
//! Datagrams arrive at a listener, and answers are sent from it, so that the kernel translates their source back. The
//! original destination is looked up in connection tracking when a session begins, and every two seconds while it is
//! used. A session must not outlive the tracked flow: datagrams from the same client port to another Service would be
//! taken for datagrams of the old session. When the agent stops, the kernel takes over the flows (`hand_over`).

mod hand_over;
mod sessions;
mod timeouts;
mod worker;

pub(crate) use worker::Worker;
