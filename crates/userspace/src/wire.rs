//! The protocol between agent and relay: a request, then an answer, each as JSON after its length (four bytes,
//! big-endian).
//!
//! [`Request::Hello`], [`Request::Leave`], [`Answer::Welcome`] and [`Answer::Done`] keep their encoding in every
//! release, so that the agent of a new release can ask the relay of an old one to shut down. Any change to another
//! message needs a new [`VERSION`]: agent and relay of different versions exchange only these four.

use crate::balance::PortId;
use crate::loopback::LoopbackCounts;
use crate::redirect::ListenerPorts;
use crate::stats::Counts;
use portway_dataplane::UserspaceSettings;
use portway_model::{Family, ServiceName, ServicePlan};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

/// The release and, after the slash, the version of the messages below.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "/7");
/// The maximum length of a message, which is longer than all plans of the largest cluster.
const MAX_LENGTH: u32 = 1 << 30;

/// A request of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Asks for the version.
    Hello,
    /// Settings and all plans follow.
    Begin,
    /// New settings.
    Configure(UserspaceSettings),
    /// Asks for listeners at one of these addresses, if possible at the ports that rules point to already.
    Listeners { family: Family, addresses: Vec<IpAddr>, previous: Option<ListenerPorts> },
    /// New plans; none for a Service that was deleted.
    Change { family: Family, services: Vec<(ServiceName, Option<ServicePlan>)> },
    /// The rules of a family are committed: routes that no rule points to can be removed.
    CommitRoutes(Family),
    /// Asks for the counters.
    Count,
    /// Asks for the numbers of listeners at loopback addresses.
    CountLoopback,
    /// Asks for the number of agents.
    Agents,
    /// The rules point to endpoints: the kernel is to translate the flows of UDP sessions.
    HandOverUdp,
    /// Shut down: no rule points to the relay any more, or none will after `quiet`. Open connections may finish within
    /// `limit`; without one, within the drain time-out of the settings.
    Leave { limit: Option<Duration>, quiet: Duration },
}

/// An answer of the relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The relay's [`VERSION`] and process, and how many agents are connected.
    Welcome {
        version: String,
        process: u32,
        #[serde(default)]
        agents: usize,
    },
    /// The request was carried out.
    Done,
    /// The listeners; none if no address is of that family.
    Listeners(Option<ListenerPorts>),
    /// How many agents are connected, the asking one included.
    Agents(usize),
    /// The counters of all Service ports.
    Counts(Vec<(PortId, Counts)>),
    /// The numbers of listeners at loopback addresses.
    LoopbackCounts(LoopbackCounts),
    /// The request failed, with the reason.
    Failed(String),
}

/// Whether `version` is of a later release than `other`, by the numbers in both.
pub(crate) fn is_later(version: &str, other: &str) -> bool {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0)).collect()
    };
    numbers(version) > numbers(other)
}

/// Writes a message.
pub(crate) fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_be_bytes())?;
    to.write_all(&bytes)
}

/// Reads a message; none if the stream has ended.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes(length);
    if length > MAX_LENGTH {
        return Err(io::Error::other(format!("a message of {length} bytes is too long")));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

#[cfg(test)]
mod tests;
