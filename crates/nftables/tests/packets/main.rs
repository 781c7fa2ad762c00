//! Packets followed through the rules: who reaches what, from where, and under whose address.
//!
//! Each row is `(from, to, what becomes of it)`; each table holds for both families. `from` may name the interface
//! behind a `%`. Endpoints are told by their places; those at port 8080 without the port.

#[path = "../cluster/mod.rs"]
mod cluster;

mod affinity;
mod cluster_ips;
mod external;
mod sources;

use cluster::{PODS, World, address};
use portway_dataplane::Settings;
use portway_dataplane::packet::{Packet, Verdict};
use portway_model::{Family, Protocol, Target};
use portway_nftables::eval::{Host, Trace, eval};
use portway_nftables::table::Table;

/// Follows all rows in both families, and tells of all that went elsewhere, with the way they took.
fn check(mut world: World, settings: &Settings, rows: &[(&str, &str, &str)]) {
    let mut wrong = String::new();
    for family in Family::ALL {
        let mut mode = world.programmed(family, settings);
        let table = mode.kernel().table().unwrap();
        for (from, to, expected) in rows {
            let trace = follow(table, family, from, to);
            let found = outcome(family, &trace);
            if found != *expected {
                wrong += &format!("{family}: {from} to {to}: {found}, not {expected}\n{}", trace.paths[0]);
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

fn follow(table: &Table, family: Family, from: &str, to: &str) -> Trace {
    let addresses = ["node", "alternative"].map(|place| address(family, place));
    eval(table, family, &packet(family, from, to), &Host { addresses: addresses.into() })
}

fn packet(family: Family, from: &str, to: &str) -> Packet {
    let (place, interface) = match from.split_once('%') {
        Some((place, interface)) => (place, Some(interface.to_owned())),
        None if ["node", "alternative", "lo"].contains(&from) => (from, None),
        None if from.len() == 1 => (from, Some(format!("veth-{from}"))),
        None => (from, Some("eth0".to_owned())),
    };
    let (to, protocol) = to.split_once('/').unwrap_or((to, "TCP"));
    let (to, port) = to.split_once(':').unwrap();
    Packet {
        source: address(family, place),
        destination: address(family, to),
        protocol: Protocol::parse(protocol).unwrap(),
        port: port.parse().unwrap(),
        input: interface,
    }
}

/// `a b masqueraded`, `rejected`, …; several with `or`.
fn outcome(family: Family, trace: &Trace) -> String {
    let mut all: Vec<String> = trace.verdicts.iter().map(|v| verdict(family, v)).collect();
    all.sort();
    all.join(" or ")
}

fn verdict(family: Family, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Delivered { to, masqueraded } => {
            let mut names: Vec<String> = to.iter().map(|t| place(family, *t)).collect();
            names.sort();
            names.extend(masqueraded.then(|| "masqueraded".to_owned()));
            names.join(" ")
        }
        other => format!("{other:?}").to_lowercase(),
    }
}

fn place(family: Family, target: Target) -> String {
    let name = PODS.iter().find(|p| address(family, p) == target.ip);
    match (name, target.port) {
        (Some(name), 8080) => (*name).to_owned(),
        (Some(name), port) => format!("{name}:{port}"),
        (None, _) => target.to_string(),
    }
}
