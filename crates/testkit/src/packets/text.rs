//! The text of a row: parsing packets, printing verdicts.

use crate::cluster::{ENDPOINT_HOSTS, address};
use portway_dataplane::trace::{Packet, Verdict};
use portway_model::{Family, Protocol, Target};

/// The packet of a row. Packets of a pod arrive on the pod's interface; packets of the node itself have no input
/// interface.
///
/// # Panics
/// If the text cannot be parsed.
pub fn packet(family: Family, from: &str, to: &str) -> Packet {
    let (host, interface) = match from.split_once('%') {
        Some((host, interface)) => (host, Some(interface.to_owned())),
        None if ["node", "alternative", "lo"].contains(&from) => (from, None),
        None if from.len() == 1 => (from, Some(format!("veth-{from}"))),
        None => (from, Some("eth0".to_owned())),
    };
    let (to, protocol) = to.split_once('/').unwrap_or((to, "TCP"));
    let (to, port) = to.split_once(':').unwrap();
    Packet {
        source: address(family, host),
        destination: address(family, to),
        protocol: Protocol::parse(protocol).unwrap(),
        port: port.parse().unwrap(),
        input: interface,
    }
}

/// Prints verdicts as a row has them: `a b masqueraded`, `rejected`; several are joined with `or`.
pub fn outcome(family: Family, verdicts: &[Verdict]) -> String {
    let mut all: Vec<String> = verdicts.iter().map(|v| verdict(family, v)).collect();
    all.sort();
    all.join(" or ")
}

fn verdict(family: Family, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Delivered { to, masqueraded } => {
            let mut names: Vec<String> = to.iter().map(|t| target(family, *t)).collect();
            names.sort();
            names.extend(masqueraded.then(|| "masqueraded".to_owned()));
            names.join(" ")
        }
        other => format!("{other:?}").to_lowercase(),
    }
}

/// The host of a target, with the port unless that is 8080.
pub(super) fn target(family: Family, target: Target) -> String {
    let name = ENDPOINT_HOSTS.iter().find(|p| address(family, p) == target.ip);
    match (name, target.port) {
        (Some(name), 8080) => (*name).to_owned(),
        (Some(name), port) => format!("{name}:{port}"),
        (None, _) => target.to_string(),
    }
}
