//! What the agent and the carrier say to each other: a request, an answer, each with its length before it, in JSON.
//!
//! [`Request::Hello`] and [`Request::Leave`] are understood by every release, so that a new one can send an old one
//! home.

use crate::balance::PortId;
use crate::redirect::Doors;
use crate::stats::Counts;
use portway_dataplane::UserspaceSettings;
use portway_model::{Family, ServiceName, ServicePlan};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

/// What is said by those who speak alike. Any change of the messages below needs another.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "/3");
/// More than the largest cluster takes.
const LONGEST: u32 = 1 << 30;

/// From the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Who are you?
    Hello,
    /// Everything will be told anew.
    Begin,
    /// Settings.
    Configure(UserspaceSettings),
    /// Where may the rules lead? They led there before.
    Doors { family: Family, addresses: Vec<IpAddr>, before: Option<Doors> },
    /// Plans, or that there is none any more.
    Change { family: Family, services: Vec<(ServiceName, Option<ServicePlan>)> },
    /// The rules of a family are in place.
    Settle(Family),
    /// What was counted?
    Count,
    /// How many agents are there?
    Agents,
    /// Nothing is led here any more, or will not be once so long has passed. What is open may go on for the limit, or as long as
    /// settings say.
    Leave { limit: Option<Duration>, quiet: Duration },
}

/// From the carrier.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Who I am, and how many agents I have.
    Welcome {
        version: String,
        process: u32,
        #[serde(default)]
        agents: usize,
    },
    /// It is done.
    Done,
    /// They lead here; nowhere, if there is no address.
    Doors(Option<Doors>),
    /// So many agents are connected, the one that asks included.
    Agents(usize),
    /// This was counted.
    Counts(Vec<(PortId, Counts)>),
    /// It could not be done.
    Failed(String),
}

/// Whether one release comes after another, by the numbers in their versions.
pub(crate) fn is_later(version: &str, other: &str) -> bool {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0)).collect()
    };
    numbers(version) > numbers(other)
}

/// Says one thing.
pub(crate) fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_be_bytes())?;
    to.write_all(&bytes)
}

/// Hears one thing; none if the other has gone.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redirect::Reach;

    #[test]
    fn releases_have_an_order() {
        assert!(
            is_later("0.2.0/1", "0.1.9/7")
                && is_later("0.10.0/1", "0.9.0/1")
                && is_later("0.1.0/3", "0.1.0/2")
        );
        assert!(!is_later(VERSION, VERSION) && !is_later("0.0.1/1", VERSION));
    }

    /// What is said, written out: whoever changes it has to change [`VERSION`] too, and this.
    #[test]
    fn a_change_of_what_is_said_is_another_version() {
        let doors = Doors { address: [192, 0, 2, 1].into(), tcp: [1, 2], udp: [3, 4] };
        let said = [
            serde_json::to_string(&Request::Configure(UserspaceSettings::default())).expect("json"),
            serde_json::to_string(&Request::Doors {
                family: Family::V4,
                addresses: vec![doors.address],
                before: Some(doors),
            })
            .expect("json"),
            serde_json::to_string(&Request::Change { family: Family::V6, services: Vec::new() })
                .expect("json"),
            serde_json::to_string(&Answer::Welcome { version: String::new(), process: 1, agents: 1 })
                .expect("json"),
        ];
        assert_eq!(
            (VERSION.rsplit('/').next(), Reach::ALL.len(), said.join("\n").as_str()),
            (
                Some("3"),
                2,
                r#"{"configure":{"addresses":[],"balancing":"RoundRobin","connect_timeout":{"secs":1,"nanos":0},"connect_attempts":4,"drain_timeout":{"secs":600,"nanos":0},"stop_timeout":{"secs":20,"nanos":0},"udp_timeout":{"secs":120,"nanos":0},"udp_sessions":16384,"bypass_mark":8192}}
{"doors":{"family":"V4","addresses":["192.0.2.1"],"before":{"address":"192.0.2.1","tcp":[1,2],"udp":[3,4]}}}
{"change":{"family":"V6","services":[]}}
{"welcome":{"version":"","process":1,"agents":1}}"#
            )
        );
    }
}
