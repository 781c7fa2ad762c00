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
use portway_iptables::eval::{Host, Ruleset, Trace, eval};
use portway_model::{Family, Protocol, Target};

/// Follows all rows in both families.
fn check(mut world: World, settings: &Settings, rows: &[(&str, &str, &str)]) {
    Family::ALL.into_iter().for_each(|family| check_in(family, &mut world, settings, rows));
}

/// Follows all rows, and tells of all that went elsewhere, with the way they took. What is wanted leads where the
/// kernel's rules do.
fn check_in(family: Family, world: &mut World, settings: &Settings, rows: &[(&str, &str, &str)]) {
    let mut wrong = String::new();
    let mut mode = world.programmed(family, settings);
    let listed = Ruleset::parse(&mode.kernel().tables().to_string());
    let wanted = Ruleset::parse(&mode.wanted());
    for (from, to, expected) in rows {
        let trace = follow(&listed, family, from, to);
        assert_eq!(trace.verdicts, follow(&wanted, family, from, to).verdicts);
        let found = outcome(family, &trace);
        if found != *expected {
            wrong += &format!("{family}: {from} to {to}: {found}, not {expected}\n{}", trace.paths[0]);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

fn follow(rules: &Ruleset, family: Family, from: &str, to: &str) -> Trace {
    eval(rules, family, &packet(family, from, to), &host(family))
}

fn host(family: Family) -> Host {
    let addresses = ["node", "alternative"].map(|place| address(family, place));
    Host { addresses: addresses.into(), ..Host::default() }
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
