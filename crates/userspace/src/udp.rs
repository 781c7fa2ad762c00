//! UDP: a session for each client and Service, with a socket of its own towards the endpoint.
//!
//! A datagram comes to a door, so its client sees answers come from where it sent to: the kernel translates them back. Where
//! that was, the kernel is asked once for each session; so a session must not outlive the kernel's memory of the flow, or
//! what the client sends elsewhere from the same port would be taken for more of the same.

mod sessions;
mod timeouts;
mod worker;

pub(crate) use worker::Worker;
