//! The userspace mode: a process of ours carries the connections.
//!
//! ```text
//! client ──▶ VIP:port ──rules──▶ door ──▶ routes ──▶ port ──▶ endpoint
//!             (kernel: translated)    (the carrier: accepted, balanced, connected, spliced)
//! ```
//!
//! Rules lead what comes for a Service to a *door*, a listening socket of a process that carries connections, and
//! decide all that a process could not do as well: who is refused, dropped, or kept out by its address. They are those of another
//! mode, which gets every plan with a door in place of its endpoints ([`redirect`]); so they are repaired, verified
//! and removed as that mode does it. What comes in at a door says where it wanted to go, and [`routes`] knows whose
//! that is; [`balance`] chooses an endpoint; `tcp` and `udp` carry the bytes.
//!
//! That process, the [`Carrier`], is not the agent: it lives on when the agent is killed, replaced or restarted, and with
//! it every connection. The agent tells it what changes over a [`Link`].
//!
//! What always holds:
//! - Nothing is led to a door before its route is known, and no route goes before nothing leads to it.
//! - A connection costs two file descriptors, and a pipe only while bytes wait in it.
//! - When the agent stops, the kernel's own rules take over before it leaves ([`Userspace::farewell`]).

pub mod balance;
mod carrier;
mod clock;
mod doors;
mod engine;
mod header;
mod limits;
mod link;
mod mode;
mod place;
pub mod redirect;
pub mod routes;
mod stats;
mod tcp;
mod udp;
mod wire;

pub use carrier::{Carrier, Handle};
pub use engine::Engine;
pub use link::{Link, dismiss, is_there};
pub use mode::Userspace;
pub use stats::{BUCKETS, Counts, PortStats};
