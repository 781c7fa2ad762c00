//! The userspace mode: a relay process accepts connections to Services and connects to their endpoints.
//!
//! ```text
//! client ──▶ VIP:port ──rules──▶ listener ──▶ routes ──▶ Service port ──▶ endpoint
//!            (kernel: destination translated)  (relay: accepted, balanced, connected, spliced)
//! ```
//!
//! Rules redirect packets for a Service to a *listener*, a listening socket of the relay. They also reject, drop, and
//! filter by source, because the kernel does that before a connection is accepted. The rules are those of another mode,
//! which is given every plan with a listener in place of its endpoints ([`redirect`]); that mode repairs, verifies and
//! removes them. The relay looks up the original destination of a connection; [`routes`] finds the Service port that
//! owns it; [`balance`] chooses an endpoint; `tcp` and `udp` move the bytes. [`eval`] follows a packet along this path
//! without a kernel.
//!
//! The relay ([`Relay`]) is a separate process: it keeps running, with every connection, when the agent is killed,
//! replaced or restarted. The agent sends it changes through a [`RelayClient`].
//!
//! Node ports at loopback addresses are served by the relay in every mode: see [`LocalhostNodePorts`].
//!
//! Invariants:
//! - A rule points to a listener only after the relay has the route. A route is removed only after no rule points to
//!   it.
//! - A connection costs two file descriptors, and a pipe only while bytes wait in it.
//! - Before the agent stops, the rules are pointed at the real endpoints ([`portway_dataplane::Backend::stop`]).

pub mod balance;
mod clock;
mod control_socket;
mod engine;
pub mod eval;
mod exposition;
mod header;
mod leftovers;
mod limits;
mod listeners;
mod localhost;
mod loopback;
mod mode;
pub mod redirect;
mod relay;
mod relay_client;
pub mod routes;
mod stats;
mod tcp;
mod udp;
mod wire;

pub use engine::Engine;
pub use localhost::LocalhostNodePorts;
pub use loopback::LoopbackCounts;
pub use mode::{MODE, Userspace};
pub use relay::{Handle, Relay};
pub use relay_client::RelayClient;
pub use stats::{BUCKETS, Counts, PortStats};
