//! What others do to our servers, sets, addresses and rules is repaired, and said.

use super::{Servers, start};
use crate::agent_lab::{AgentLab, WEB, patience};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;
use std::collections::BTreeSet;
use std::net::SocketAddr;

// Each in a room of its own, for there is much to wait for.
pub(crate) const SERVERS: &[Test] = &[("changed_servers_are_repaired", |world| edited(world, OF_SERVERS))];
pub(crate) const ADDRESSES: &[Test] =
    &[("changed_addresses_are_repaired", |world| edited(world, OF_ADDRESSES))];
pub(crate) const SETS: &[Test] = &[("changed_sets_are_repaired", |world| edited(world, OF_SETS))];
pub(crate) const RULES: &[Test] = &[
    ("flushed_rules_are_repaired", |world| edited(world, OF_RULES)),
    ("changes_the_cheap_check_misses_are_found_with_those_it_sees", along),
];

/// What somebody does, in which family that is noticed, whether something is then `missing`, `altered` or `foreign`, and
/// what the log says of it.
type Edits = &'static [(&'static str, &'static str, &'static str, &'static str)];

const OF_SERVERS: Edits = &[
    ("ipvsadm -C", "IPv4", "missing", "server TCP 10.96.0.1:80 is missing"),
    ("ipvsadm -D -t [fd96::1]:80", "IPv6", "missing", "server TCP [fd96::1]:80 is missing"),
    (
        "ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.10:8080",
        "IPv4",
        "missing",
        "10.244.1.10:8080 behind TCP 10.96.0.1:80 is missing",
    ),
    (
        "ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.99:8080 -m",
        "IPv4",
        "foreign",
        "10.244.1.99:8080 behind TCP 10.96.0.1:80 belongs to no Service",
    ),
    (
        "ipvsadm -e -t 192.168.50.11:30001 -r 10.244.1.10:8080 -m -w 5",
        "IPv4",
        "altered",
        "10.244.1.10:8080 behind TCP 192.168.50.11:30001 has another share",
    ),
    (
        "ipvsadm -e -t [fd96::1]:80 -r [fd10:244:1::10]:8080 -m -w 0",
        "IPv6",
        "altered",
        "[fd10:244:1::10]:8080 behind TCP [fd96::1]:80 has another share",
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

/// What changes neither how many members a set has nor which servers there are.
const HIDDEN_ONES: &[(&str, &str)] = &[
    ("ipvsadm -E -t 10.96.0.1:80 -s wrr", "server TCP 10.96.0.1:80 behaves otherwise"),
    ("ipvsadm -E -t 192.168.50.11:30001 -s rr -p 600", "server TCP 192.168.50.11:30001 behaves otherwise"),
    ("ipvsadm -A -t 10.96.0.1:99 -s rr", "server TCP 10.96.0.1:99 belongs to no Service"),
    ("ipset del KUBE-IPVS-IPS 10.96.0.1", "10.96.0.1 in KUBE-IPVS-IPS is missing"),
    ("ipset add KUBE-IPVS-IPS 10.96.0.222", "10.96.0.222 in KUBE-IPVS-IPS belongs to no Service"),
];

/// Everything that another process may change.
#[derive(Debug, PartialEq, Eq)]
struct State {
    servers: Servers,
    sets: BTreeSet<String>,
    bound: BTreeSet<String>,
    rules: BTreeSet<String>,
}

fn state(world: &AgentLab) -> Result<State, Failed> {
    let lines = |text: String| text.lines().map(str::to_owned).collect();
    Ok(State {
        servers: world.servers()?,
        sets: lines(world.on_node("ipset save")?),
        bound: world.bound()?,
        rules: lines(world.rules()?),
    })
}

/// Somebody changes something of ours: that is said, with what was wrong; it is counted; all is as it was before, and
/// works.
fn edited(world: &mut AgentLab, edits: Edits) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let before = state(world)?;
    for (doing, family, how, words) in edits {
        let repairs = format!("portway_drift_repairs_total{{ip_family=\"{family}\"}}");
        let objects = format!("portway_drift_objects_total{{ip_family=\"{family}\",change=\"{how}\"}}");
        let metrics = world.metrics()?;
        let counted = [&repairs, &objects].map(|series| metrics.value(series));
        world.on_node(doing)?;
        let about = |e: Failed| format!("{doing}: {}", super::words(e));
        world
            .logged(&[
                "WARN",
                "repaired rules that another process had changed",
                &format!("family={family}"),
                words,
            ])
            .map_err(about)?;
        eventually(patience(), || is(world, &before)).map_err(|e| format!("{doing}: {e}"))?;
        world.metric(&repairs, |n| n > counted[0])?;
        world.metric(&objects, |n| n > counted[1])?;
        let web = SocketAddr::new(WEB[usize::from(*family == "IPv6")], 80);
        world.reaches(web, &["pod1a", "pod1b"]).map_err(about)?;
    }
    world.web_works()?;
    // A repair that finds drift again after itself would never end.
    let repairs = world.agent()?.log().count("repaired rules that another process had changed");
    ensure(repairs <= 2 * edits.len(), || format!("{repairs} repairs of {} changes", edits.len()))
}

/// Something else gives occasion to compare everything.
fn along(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let before = state(world)?;
    let commands: Vec<&str> = HIDDEN_ONES.iter().map(|(doing, _)| *doing).collect();
    world.tool("sh", &["-c", &commands.join(" && ")], "")?;
    world.on_node("ip address add 10.96.0.223/32 dev kube-ipvs0")?;
    world.logged(&[
        "WARN",
        "repaired rules that another process had changed",
        "10.96.0.223 on kube-ipvs0 belongs to no Service",
    ])?;
    // A glance between two of the commands may have found the first of them earlier.
    for (_, words) in HIDDEN_ONES {
        world.logged(&["WARN", "repaired rules that another process had changed", words])?;
    }
    eventually(patience(), || is(world, &before))?;
    world.web_works()
}

fn is(world: &AgentLab, before: &State) -> Result<(), String> {
    let now = state(world).map_err(super::words)?;
    if now == *before {
        return Ok(());
    }
    let lines = |state: &State| format!("{state:#?}").lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (was, now) = (lines(before), lines(&now));
    let (lost, new) = (was.difference(&now).collect::<Vec<_>>(), now.difference(&was).collect::<Vec<_>>());
    Err(format!("lost {lost:#?}, new {new:#?}"))
}
