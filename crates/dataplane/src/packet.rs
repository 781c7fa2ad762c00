//! The words for a packet and what becomes of it, as every mode's `eval` uses them.

use portway_model::{Protocol, Target};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The first packet of a connection, as it comes to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// How.
    pub protocol: Protocol,
    /// At which port.
    pub port: u16,
    /// The interface it came in on; none if the node itself sent it.
    pub input: Option<String>,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to one of these.
    Delivered {
        /// All that it may go to.
        to: BTreeSet<Target>,
        /// It leaves with the node's address.
        masqueraded: bool,
    },
    /// It is refused with a reset or an ICMP message.
    Rejected,
    /// It vanishes.
    Dropped,
    /// No rule of ours concerns it.
    Untouched,
}
