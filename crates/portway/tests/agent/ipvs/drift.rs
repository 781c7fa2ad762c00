//! Changes of virtual servers, sets, addresses and rules by other processes are repaired and logged.

use super::{Servers, start};
use crate::agent_lab::{AgentLab, WEB, wait_timeout};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;
use std::collections::BTreeSet;
use std::net::SocketAddr;

// In separate sections, since each test takes long.
pub(crate) const SERVERS: &[Test] = &[("changed_servers_are_repaired", |lab| edited(lab, OF_SERVERS))];
pub(crate) const ADDRESSES: &[Test] = &[("changed_addresses_are_repaired", |lab| edited(lab, OF_ADDRESSES))];
pub(crate) const SETS: &[Test] = &[("changed_sets_are_repaired", |lab| edited(lab, OF_SETS))];
pub(crate) const RULES: &[Test] = &[
    ("flushed_rules_are_repaired", |lab| edited(lab, OF_RULES)),
    ("changes_the_cheap_check_misses_are_found_with_those_it_sees", undetected_changes),
];

/// A command, the family in which its effect is detected, the state of the changed object (`missing`, `altered` or
/// `foreign`), and the text in the log about the repair.
type Edits = &'static [(&'static str, &'static str, &'static str, &'static str)];

const OF_SERVERS: Edits = &[
    ("ipvsadm -C", "IPv4", "missing", "server TCP 10.96.0.1:80 is missing"),
    ("ipvsadm -D -t [fd96::1]:80", "IPv6", "missing", "server TCP [fd96::1]:80 is missing"),
    (
        "ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.10:8080",
        "IPv4",
        "missing",
        "real server 10.244.1.10:8080 of TCP 10.96.0.1:80 is missing",
    ),
    (
        "ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.99:8080 -m",
        "IPv4",
        "foreign",
        "real server 10.244.1.99:8080 of TCP 10.96.0.1:80 belongs to no Service",
    ),
    (
        "ipvsadm -e -t 192.168.50.11:30001 -r 10.244.1.10:8080 -m -w 5",
        "IPv4",
        "altered",
        "real server 10.244.1.10:8080 of TCP 192.168.50.11:30001 has another weight",
    ),
    (
        "ipvsadm -e -t [fd96::1]:80 -r [fd10:244:1::10]:8080 -m -w 0",
        "IPv6",
        "altered",
        "real server [fd10:244:1::10]:8080 of TCP [fd96::1]:80 has another weight",
    ),
];

const OF_ADDRESSES: Edits = &[
    (
        "ip address delete 10.96.0.1/32 dev kube-ipvs0",
        "IPv4",
        "missing",
        "10.96.0.1 on kube-ipvs0 is missing",
    ),
    (
        "ip address add 10.96.0.222/32 dev kube-ipvs0",
        "IPv4",
        "foreign",
        "10.96.0.222 on kube-ipvs0 belongs to no Service",
    ),
    ("ip address delete fd96::1/128 dev kube-ipvs0", "IPv6", "missing", "fd96::1 on kube-ipvs0 is missing"),
    ("ip link delete kube-ipvs0", "IPv4", "missing", "device kube-ipvs0 is missing"),
    ("ip address flush dev kube-ipvs0", "IPv6", "missing", "fd96::1 on kube-ipvs0 is missing"),
];

const OF_SETS: Edits = &[
    ("ipset flush KUBE-CLUSTER-IP", "IPv4", "missing", "10.96.0.1,tcp:80 in KUBE-CLUSTER-IP is missing"),
    ("ipset flush KUBE-6-LOOP-BACK", "IPv6", "missing", "in KUBE-6-LOOP-BACK is missing"),
    (
        "ipset add KUBE-CLUSTER-IP 10.96.0.222,tcp:80",
        "IPv4",
        "foreign",
        "10.96.0.222,tcp:80 in KUBE-CLUSTER-IP belongs to no Service",
    ),
    (
        "ipset add KUBE-NODE-PORT-TCP 31234",
        "IPv4",
        "foreign",
        "31234 in KUBE-NODE-PORT-TCP belongs to no Service",
    ),
    ("ipset del KUBE-IPVS-IPS 10.96.0.1", "IPv4", "missing", "10.96.0.1 in KUBE-IPVS-IPS is missing"),
    ("ipset flush", "IPv4", "missing", "30001 in KUBE-NODE-PORT-TCP is missing"),
];

const OF_RULES: Edits = &[
    (
        "iptables-legacy -w -t nat -F KUBE-SERVICES",
        "IPv4",
        "missing",
        "`-A KUBE-SERVICES -m comment --comment \"Kubernetes service lb portal\" -m set --match-set KUBE-LOAD-BALANCER",
    ),
    (
        "iptables-legacy -w -t nat -F POSTROUTING",
        "IPv4",
        "missing",
        "`-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING` is missing",
    ),
    (
        "ip6tables-legacy -w -t filter -I KUBE-IPVS-FILTER -j DROP",
        "IPv6",
        "foreign",
        "`-A KUBE-IPVS-FILTER -j DROP` does not belong there",
    ),
    (
        "iptables-legacy -w -t mangle -F",
        "IPv4",
        "missing",
        "`-A KUBE-SOURCE-RANGES-FIREWALL -j DROP` is missing",
    ),
];

/// Changes of which the cheap check sees only some: it compares the expected servers and the number of members of each
/// set, so it misses an added server, and a set that has lost one member and gained another.
const PARTLY_UNDETECTED: &[(&str, &str)] = &[
    ("ipvsadm -E -t 10.96.0.1:80 -s wrr", "server TCP 10.96.0.1:80 has another scheduler, timeout or flags"),
    (
        "ipvsadm -E -t 192.168.50.11:30001 -s rr -p 600",
        "server TCP 192.168.50.11:30001 has another scheduler, timeout or flags",
    ),
    ("ipvsadm -A -t 10.96.0.1:99 -s rr", "server TCP 10.96.0.1:99 belongs to no Service"),
    ("ipset del KUBE-IPVS-IPS 10.96.0.1", "10.96.0.1 in KUBE-IPVS-IPS is missing"),
    ("ipset add KUBE-IPVS-IPS 10.96.0.222", "10.96.0.222 in KUBE-IPVS-IPS belongs to no Service"),
];

/// The objects of the mode.
#[derive(Debug, PartialEq, Eq)]
struct State {
    servers: Servers,
    sets: BTreeSet<String>,
    bound: BTreeSet<String>,
    rules: BTreeSet<String>,
}

fn state(lab: &AgentLab) -> Result<State, Failed> {
    let lines = |text: String| text.lines().map(str::to_owned).collect();
    Ok(State {
        servers: lab.servers()?,
        sets: lines(lab.on_node("ipset save")?),
        bound: lab.bound()?,
        rules: lines(lab.rules()?),
    })
}

/// Each change is logged, counted and repaired; afterwards all objects are as before, and the Service works.
fn edited(lab: &mut AgentLab, edits: Edits) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let before = state(lab)?;
    for (command, family, change, text) in edits {
        let repairs = format!("portway_drift_repairs_total{{ip_family=\"{family}\"}}");
        let objects = format!("portway_drift_objects_total{{ip_family=\"{family}\",change=\"{change}\"}}");
        let metrics = lab.metrics()?;
        let counted = [&repairs, &objects].map(|series| metrics.value(series));
        lab.on_node(command)?;
        let with_command = |e: Failed| format!("{command}: {}", super::message(e));
        lab.logged(&[
            "WARN",
            "repaired rules that another process had changed",
            &format!("family=\"{family}\""),
            text,
        ])
        .map_err(with_command)?;
        eventually(wait_timeout(), || has_state(lab, &before)).map_err(|e| format!("{command}: {e}"))?;
        lab.metric(&repairs, |n| n > counted[0])?;
        lab.metric(&objects, |n| n > counted[1])?;
        let web = SocketAddr::new(WEB[usize::from(*family == "IPv6")], 80);
        lab.reaches(web, &["pod1a", "pod1b"]).map_err(with_command)?;
    }
    lab.web_works()?;
    // A repair must not cause another one.
    let repairs = lab.agent()?.log().count("repaired rules that another process had changed");
    ensure(repairs <= 2 * edits.len(), || format!("{repairs} repairs of {} changes", edits.len()))
}

/// A change that the cheap check detects causes a full comparison, which repairs the others as well.
fn undetected_changes(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let before = state(lab)?;
    let commands: Vec<&str> = PARTLY_UNDETECTED.iter().map(|(command, _)| *command).collect();
    lab.tool("sh", &["-c", &commands.join(" && ")], "")?;
    lab.on_node("ip address add 10.96.0.223/32 dev kube-ipvs0")?;
    lab.logged(&[
        "WARN",
        "repaired rules that another process had changed",
        "10.96.0.223 on kube-ipvs0 belongs to no Service",
    ])?;
    // A check between two of the commands may have found the first of them earlier.
    for (_, text) in PARTLY_UNDETECTED {
        lab.logged(&["WARN", "repaired rules that another process had changed", text])?;
    }
    eventually(wait_timeout(), || has_state(lab, &before))?;
    lab.web_works()
}

fn has_state(lab: &AgentLab, before: &State) -> Result<(), String> {
    let now = state(lab).map_err(super::message)?;
    if now == *before {
        return Ok(());
    }
    let lines = |state: &State| format!("{state:#?}").lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (was, now) = (lines(before), lines(&now));
    let (lost, new) = (was.difference(&now).collect::<Vec<_>>(), now.difference(&was).collect::<Vec<_>>());
    Err(format!("missing {lost:#?}, new {new:#?}"))
}
