//! Taking over from kube-proxy's ipvs mode, servers and all, under load.

use super::{Servers, again, becomes};
use crate::agent_lab::AgentLab;
use crate::tool::{FAMILIES, Legacy};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure};
use std::collections::BTreeSet;
use std::time::Duration;

// Each in a room of its own: there is much traffic.
pub(crate) const TESTS: &[Test] = &[("from_kube_proxy_in_the_same_mode", to_ipvs)];
pub(crate) const TO_IPTABLES: &[Test] = &[("from_kube_proxy_to_the_iptables_mode", to_iptables)];

/// How long what an open connection needs stays after its end.
const TIDIED: Duration = Duration::from_secs(120);

/// kube-proxy's rules of IPv4; those of IPv6 are alike.
const RULES: &str = include_str!("../kube-proxy/ipvs.rules");
/// As in IPv4, and as in IPv6.
const ALIKE: [(&str, &str); 4] = [
    ("--match-set KUBE-", "--match-set KUBE-6-"),
    ("127.0.0.0/8", "::1/128"),
    ("10.244.0.0/16", "fd10:244::/32"),
    ("icmp-port-unreachable", "icmp6-port-unreachable"),
];

/// kube-proxy's sets (`pkg/proxy/ipvs/ipset.go`): names, types, and members in either family. Besides `web` there is
/// a Service that has gone since, with node port 30077.
const SETS: &[(&str, &str, [&[&str]; 2])] = &[
    (
        "LOOP-BACK",
        "hash:ip,port,ip",
        [
            &["10.244.1.10,tcp:8080,10.244.1.10", "10.244.1.11,tcp:8080,10.244.1.11"],
            &["fd10:244:1::10,tcp:8080,fd10:244:1::10", "fd10:244:1::11,tcp:8080,fd10:244:1::11"],
        ],
    ),
    ("CLUSTER-IP", "hash:ip,port", [&["10.96.0.1,tcp:80", "10.96.0.77,tcp:80"], &["fd96::1,tcp:80"]]),
    ("LOAD-BALANCER", "hash:ip,port", [&[]; 2]),
    ("LOAD-BALANCER-FW", "hash:ip,port", [&[]; 2]),
    ("LOAD-BALANCER-LOCAL", "hash:ip,port", [&[]; 2]),
    ("LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net", [&[]; 2]),
    ("LOAD-BALANCER-SOURCE-IP", "hash:ip,port,ip", [&[]; 2]),
    ("EXTERNAL-IP", "hash:ip,port", [&[]; 2]),
    ("EXTERNAL-IP-LOCAL", "hash:ip,port", [&[]; 2]),
    ("NODE-PORT-TCP", "bitmap:port", [&["30001", "30077"], &["30001"]]),
    ("NODE-PORT-LOCAL-TCP", "bitmap:port", [&[]; 2]),
    ("NODE-PORT-UDP", "bitmap:port", [&[]; 2]),
    ("NODE-PORT-LOCAL-UDP", "bitmap:port", [&[]; 2]),
    ("NODE-PORT-SCTP-HASH", "hash:ip,port", [&[]; 2]),
    ("NODE-PORT-LOCAL-SCTP-HASH", "hash:ip,port", [&[]; 2]),
    ("HEALTH-CHECK-NODE-PORT", "bitmap:port", [&[]; 2]),
    ("IPVS-IPS", "hash:ip", [&["10.96.0.1", "10.96.0.77"], &["fd96::1"]]),
];

const ADDRESSES: [&str; 3] = ["10.96.0.1/32", "10.96.0.77/32", "fd96::1/128"];

/// Where kube-proxy has servers, and those behind each.
const SERVERS: &[(&str, &[&str])] = &[
    ("10.96.0.1:80", &["10.244.1.10:8080", "10.244.1.11:8080"]),
    ("192.168.50.11:30001", &["10.244.1.10:8080", "10.244.1.11:8080"]),
    ("10.244.1.1:30001", &["10.244.1.10:8080", "10.244.1.11:8080"]),
    ("10.96.0.77:80", &["10.244.1.10:8080"]),
    ("192.168.50.11:30077", &["10.244.1.10:8080"]),
    ("[fd96::1]:80", &["[fd10:244:1::10]:8080", "[fd10:244:1::11]:8080"]),
    ("[fd50::11]:30001", &["[fd10:244:1::10]:8080", "[fd10:244:1::11]:8080"]),
];

const SYSCTLS: [&str; 4] =
    ["ip_forward", "vs/conntrack", "vs/expire_nodest_conn", "vs/expire_quiescent_template"];

/// kube-proxy ran in its ipvs mode.
fn kube_proxy(world: &AgentLab) -> Outcome {
    let mut sets = String::new();
    for (name, kind, members) in SETS {
        for (prefix, family, members) in [("KUBE-", "inet", members[0]), ("KUBE-6-", "inet6", members[1])] {
            let name = format!("{prefix}{name}");
            // The kernel's limit.
            let name = &name[..31.min(name.len())];
            let options = match *kind {
                "bitmap:port" => "range 0-65535".to_owned(),
                _ => format!("family {family} hashsize 1024 maxelem 65536"),
            };
            sets += &format!("create {name} {kind} {options}\n");
            members.iter().for_each(|member| sets += &format!("add {name} {member}\n"));
        }
    }
    world.tool("ipset", &["restore"], &sets)?;
    let six = ALIKE.iter().fold(RULES.to_owned(), |rules, (four, six)| rules.replace(four, six));
    world.load(Legacy, FAMILIES[0], RULES)?;
    world.load(Legacy, FAMILIES[1], &six)?;
    for (server, behind) in SERVERS {
        world.ipvsadm(&format!("-A -t {server} -s rr"))?;
        for real in *behind {
            world.ipvsadm(&format!("-a -t {server} -r {real} -m -w 1"))?;
        }
    }
    world.on_node("ip link add kube-ipvs0 type dummy")?;
    for address in ADDRESSES {
        world.on_node(&format!("ip address add {address} dev kube-ipvs0"))?;
    }
    for name in SYSCTLS {
        world.node().run(|| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), "1"))?;
    }
    Ok(())
}

fn to_ipvs(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    kube_proxy(world)?;
    let mut traffic = Traffic::begin(world)?;
    again(world, &["--cluster-cidr=10.244.0.0/16,fd10:244::/32"])?;
    let stale = |servers: &Servers| servers.keys().any(|s| s.contains("10.96.0.77") || s.contains(":30077"));
    becomes(|| world.servers(), |servers| !stale(servers))?;
    becomes(|| world.bound(), |bound| bound.iter().eq(["10.96.0.1/32", "fd96::1/128"]))?;
    for (set, members) in [
        ("KUBE-CLUSTER-IP", "10.96.0.1,tcp:80"),
        ("KUBE-NODE-PORT-TCP", "30001"),
        ("KUBE-IPVS-IPS", "10.96.0.1"),
    ] {
        let wanted = BTreeSet::from([members.to_owned()]);
        becomes(|| world.members(set), |found| *found == wanted)?;
        // Not made anew: the rules that refer to it went on working.
        let header = world.on_node(&format!("ipset list -terse {set}"))?;
        ensure(header.contains("maxelem 65536") || header.contains("bitmap:port"), || header.clone())?;
    }
    traffic.is_alive("taken over")?;
    // Only our rules are left: this chain is in another table.
    let filter = world.on_node("iptables-legacy-save -t filter")?;
    ensure(!filter.contains("KUBE-IPVS-OUT-FILTER"), || filter.clone())?;
    let log = world.agent()?.log().clone();
    ensure(!log.contains("ERROR"), || log.to_string())?;
    traffic.end()?;
    world.web_works()
}

fn to_iptables(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    kube_proxy(world)?;
    let mut traffic = Traffic::begin(world)?;
    world.start(&["--proxy-mode=iptables", "--iptables-sync-period=1h"])?;
    becomes(
        || world.rules(),
        |rules| rules.contains("-j KUBE-SVC-") && !rules.contains("--match-set KUBE-"),
    )?;
    traffic.is_alive("taken over")?;
    world.logged(&["stay for now", "the ipvs mode stay until their last connection ends"])?;
    traffic.end()?;
    world.without_ipvs(TIDIED)?;
    world.web_works()
}
