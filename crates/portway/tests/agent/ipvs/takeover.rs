//! Portway replaces kube-proxy in its ipvs mode, with its virtual servers, under load.

use super::{Servers, start_again, wait_until};
use crate::agent_lab::AgentLab;
use crate::tool::{FAMILIES, Legacy};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure};
use std::collections::BTreeSet;
use std::time::Duration;

// In separate sections, since each test has much traffic.
pub(crate) const TESTS: &[Test] = &[("from_kube_proxy_in_the_same_mode", to_ipvs)];
pub(crate) const TO_IPTABLES: &[Test] = &[("from_kube_proxy_to_the_iptables_mode", to_iptables)];

/// The time limit for the removal of the objects that open connections needed.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(120);

/// kube-proxy's rules of IPv4. The rules of IPv6 differ by [`REPLACEMENTS`].
const RULES: &str = include_str!("../kube-proxy/ipvs.rules");
/// Texts in the rules of IPv4, and their equivalents in IPv6.
const REPLACEMENTS: [(&str, &str); 4] = [
    ("--match-set KUBE-", "--match-set KUBE-6-"),
    ("127.0.0.0/8", "::1/128"),
    ("10.244.0.0/16", "fd10:244::/32"),
    ("icmp-port-unreachable", "icmp6-port-unreachable"),
];

/// kube-proxy's sets (`pkg/proxy/ipvs/ipset.go`): names, types, and members in either family. Besides `web` they have
/// a Service with node port 30077 that no longer exists.
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

/// The virtual servers of kube-proxy, and the real servers of each.
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

/// Creates the objects of kube-proxy in its ipvs mode.
fn kube_proxy(lab: &AgentLab) -> Outcome {
    let mut sets = String::new();
    for (name, kind, members) in SETS {
        for (prefix, family, members) in [("KUBE-", "inet", members[0]), ("KUBE-6-", "inet6", members[1])] {
            let name = format!("{prefix}{name}");
            // The kernel limits names to 31 characters.
            let name = &name[..31.min(name.len())];
            let options = match *kind {
                "bitmap:port" => "range 0-65535".to_owned(),
                _ => format!("family {family} hashsize 1024 maxelem 65536"),
            };
            sets += &format!("create {name} {kind} {options}\n");
            members.iter().for_each(|member| sets += &format!("add {name} {member}\n"));
        }
    }
    lab.tool("ipset", &["restore"], &sets)?;
    let ipv6_rules =
        REPLACEMENTS.iter().fold(RULES.to_owned(), |rules, (four, six)| rules.replace(four, six));
    lab.load(Legacy, FAMILIES[0], RULES)?;
    lab.load(Legacy, FAMILIES[1], &ipv6_rules)?;
    for (server, real_servers) in SERVERS {
        lab.ipvsadm(&format!("-A -t {server} -s rr"))?;
        for real in *real_servers {
            lab.ipvsadm(&format!("-a -t {server} -r {real} -m -w 1"))?;
        }
    }
    lab.on_node("ip link add kube-ipvs0 type dummy")?;
    for address in ADDRESSES {
        lab.on_node(&format!("ip address add {address} dev kube-ipvs0"))?;
    }
    for name in SYSCTLS {
        lab.node().run(|| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), "1"))?;
    }
    Ok(())
}

fn to_ipvs(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    kube_proxy(lab)?;
    let mut traffic = Traffic::begin(lab)?;
    start_again(lab, &["--cluster-cidr=10.244.0.0/16,fd10:244::/32"])?;
    let stale = |servers: &Servers| servers.keys().any(|s| s.contains("10.96.0.77") || s.contains(":30077"));
    wait_until(|| lab.servers(), |servers| !stale(servers))?;
    wait_until(|| lab.bound(), |bound| bound.iter().eq(["10.96.0.1/32", "fd96::1/128"]))?;
    for (set, members) in [
        ("KUBE-CLUSTER-IP", "10.96.0.1,tcp:80"),
        ("KUBE-NODE-PORT-TCP", "30001"),
        ("KUBE-IPVS-IPS", "10.96.0.1"),
    ] {
        let wanted = BTreeSet::from([members.to_owned()]);
        wait_until(|| lab.members(set), |found| *found == wanted)?;
        // The set was not created again, so the rules that refer to it kept working.
        let header = lab.on_node(&format!("ipset list -terse {set}"))?;
        ensure(header.contains("maxelem 65536") || header.contains("bitmap:port"), || header.clone())?;
    }
    traffic.is_alive("taken over")?;
    // Only rules of Portway are left: it has this chain in another table.
    let filter = lab.on_node("iptables-legacy-save -t filter")?;
    ensure(!filter.contains("KUBE-IPVS-OUT-FILTER"), || filter.clone())?;
    let log = lab.agent()?.log().clone();
    ensure(!log.has_level("ERROR"), || log.to_string())?;
    traffic.end()?;
    lab.web_works()
}

fn to_iptables(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    kube_proxy(lab)?;
    let mut traffic = Traffic::begin(lab)?;
    lab.start(&["--proxy-mode=iptables", "--iptables-sync-period=1h"])?;
    wait_until(
        || lab.rules(),
        |rules| rules.contains("-j KUBE-SVC-") && !rules.contains("--match-set KUBE-"),
    )?;
    traffic.is_alive("taken over")?;
    lab.logged(&["stay for now", "the ipvs mode stay until their last connection ends"])?;
    traffic.end()?;
    lab.without_ipvs(REMOVAL_TIMEOUT)?;
    lab.web_works()
}
