//! The userspace mode: the agent itself carries the connections.
//!
//! ```text
//! client ──▶ VIP:port ──rules──▶ door ──▶ routes ──▶ port ──▶ endpoint
//!             (kernel: translated)    (this process: accepted, balanced, connected, spliced)
//! ```
//!
//! Rules lead what comes for a Service to a *door*, a listening socket of this process, and decide all that a
//! process could not do as well: who is refused, dropped, or kept out by its address. They are those of another
//! mode, which gets every plan with a door in place of its endpoints ([`redirect`]); so they are repaired, verified
//! and removed as that mode does it. What comes in at a door says where it wanted to go, and [`routes`] knows whose
//! that is; [`balance`] chooses an endpoint; [`tcp`] and [`udp`] carry the bytes.
//!
//! What always holds:
//! - Nothing is led to a door before its route is known, and no route goes before nothing leads to it.
//! - A connection costs two file descriptors, and a pipe only while bytes wait in it.
//! - When the agent stops, the kernel's own rules take over before it leaves ([`Userspace::farewell`]).

pub mod balance;
mod clock;
mod doors;
mod engine;
mod header;
mod limits;
mod mode;
pub mod redirect;
pub mod routes;
mod stats;
mod tcp;
mod udp;

pub use engine::Engine;
pub use mode::Userspace;
pub use stats::{BUCKETS, Counts, PortStats};
