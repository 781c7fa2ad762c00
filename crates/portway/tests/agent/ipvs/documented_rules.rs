//! kube-proxy's ipvs objects as published documents print them (`ip addr`, `ipvsadm -ln`, sets), for the same Services.

use super::{Servers, start, start_again, wait_until};
use crate::agent_lab::AgentLab;
use crate::documented_rules::{Service, manifest};
use crate::{Outcome, Test, ensure, objects};
use std::collections::BTreeSet;

pub(crate) const TESTS: &[Test] = &[
    ("documented_rules_are_programmed", documented),
    ("the_number_of_rules_does_not_depend_on_services", constant_rules),
    ("a_restart_adopts_existing_rules", restart),
];

const SERVICES: &[Service<'_>] = &[
    ("default/kubernetes", "10.96.0.1", &[("https", "TCP", 443, 8443)], &["192.168.49.2"]),
    (
        "kube-system/kube-dns",
        "10.96.0.10",
        &[("dns", "UDP", 53, 53), ("dns-tcp", "TCP", 53, 53), ("metrics", "TCP", 9153, 9153)],
        &["172.17.0.2"],
    ),
    (
        "default/nginx",
        "10.109.134.113",
        &[("", "TCP", 8080, 80)],
        &["172.17.0.3", "172.17.0.4", "172.17.0.5"],
    ),
];

/// `ipvsadm -ln` as documented, with the UDP server that the document omits, and without connections.
const LISTED: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.96.0.1:443 rr
  -> 192.168.49.2:8443            Masq    1      0          0
TCP  10.96.0.10:53 rr
  -> 172.17.0.2:53                Masq    1      0          0
TCP  10.96.0.10:9153 rr
  -> 172.17.0.2:9153              Masq    1      0          0
TCP  10.109.134.113:8080 rr
  -> 172.17.0.3:80                Masq    1      0          0
  -> 172.17.0.4:80                Masq    1      0          0
  -> 172.17.0.5:80                Masq    1      0          0
UDP  10.96.0.10:53 rr
  -> 172.17.0.2:53                Masq    1      0          0
";

/// `ip addr` as documented.
const DEVICE: &str = ": kube-ipvs0: <BROADCAST,NOARP> mtu 1500 qdisc noop state DOWN group default";
const ADDRESSES: [&str; 3] = [
    "    inet 10.96.0.1/32 scope global kube-ipvs0",
    "    inet 10.96.0.10/32 scope global kube-ipvs0",
    "    inet 10.109.134.113/32 scope global kube-ipvs0",
];

/// The sets that are not empty, and their members.
const MEMBERS: &[(&str, &[&str])] = &[
    (
        "KUBE-CLUSTER-IP",
        &[
            "10.96.0.1,tcp:443",
            "10.96.0.10,udp:53",
            "10.96.0.10,tcp:53",
            "10.96.0.10,tcp:9153",
            "10.109.134.113,tcp:8080",
        ],
    ),
    (
        "KUBE-LOOP-BACK",
        &[
            "192.168.49.2,tcp:8443,192.168.49.2",
            "172.17.0.2,udp:53,172.17.0.2",
            "172.17.0.2,tcp:53,172.17.0.2",
            "172.17.0.2,tcp:9153,172.17.0.2",
            "172.17.0.3,tcp:80,172.17.0.3",
            "172.17.0.4,tcp:80,172.17.0.4",
            "172.17.0.5,tcp:80,172.17.0.5",
        ],
    ),
    ("KUBE-IPVS-IPS", &["10.96.0.1", "10.96.0.10", "10.109.134.113"]),
];

/// kube-proxy's other sets, and their types.
const EMPTY: &[(&str, &str)] = &[
    ("KUBE-EXTERNAL-IP", "hash:ip,port"),
    ("KUBE-EXTERNAL-IP-LOCAL", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER-LOCAL", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER-FW", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER-SOURCE-IP", "hash:ip,port,ip"),
    ("KUBE-LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net"),
    ("KUBE-NODE-PORT-TCP", "bitmap:port"),
    ("KUBE-NODE-PORT-LOCAL-TCP", "bitmap:port"),
    ("KUBE-NODE-PORT-UDP", "bitmap:port"),
    ("KUBE-NODE-PORT-LOCAL-UDP", "bitmap:port"),
    ("KUBE-NODE-PORT-SCTP-HASH", "hash:ip,port"),
    ("KUBE-NODE-PORT-LOCAL-SCTP-HASH", "hash:ip,port"),
    ("KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port"),
];

/// Starts the agent with the documented Services only.
fn begin(lab: &mut AgentLab) -> Outcome {
    for (i, service) in SERVICES.iter().enumerate() {
        lab.apply(&format!("documented{i}.yaml"), &manifest(service));
    }
    // `web` has the cluster IP of `kubernetes`.
    ["web.yaml", "web-v4.yaml", "web-v6.yaml"].iter().for_each(|file| lab.delete(file));
    start(lab, &["--cluster-cidr=10.244.0.0/16"])?;
    lab.logged(&["synced", "family=\"IPv4\""])?;
    lab.logged(&["synced", "family=\"IPv6\""]).map(drop)
}

/// A listing in which the order of servers does not count.
fn sorted(listing: &str) -> (Vec<String>, BTreeSet<String>) {
    let lines: Vec<&str> = listing.lines().collect();
    let (head, rest) = lines.split_at(3.min(lines.len()));
    let mut servers: Vec<Vec<&str>> = Vec::new();
    for line in rest {
        match (line.starts_with("  ->"), servers.last_mut()) {
            (true, Some(server)) => server.push(line),
            _ => servers.push(vec![line]),
        }
    }
    // The kernel lists the real servers in the order of their creation or in reverse.
    servers.iter_mut().for_each(|server| server[1..].sort_unstable());
    let lines = |of: &[&str]| of.iter().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
    (lines(head), servers.iter().map(|server| lines(server).join("\n")).collect())
}

fn documented(lab: &mut AgentLab) -> Outcome {
    begin(lab)?;
    let listed = lab.ipvsadm("-ln")?;
    ensure(sorted(&listed) == sorted(LISTED), || format!("expected\n{LISTED}\nbut found\n{listed}"))?;

    let device = lab.on_node("ip addr show kube-ipvs0")?;
    ensure(device.contains(DEVICE), || format!("not {DEVICE}:\n{device}"))?;
    let inet: BTreeSet<&str> = device.lines().filter(|l| l.starts_with("    inet")).collect();
    ensure(inet == BTreeSet::from(ADDRESSES), || format!("not only {ADDRESSES:#?}:\n{device}"))?;

    for (set, members) in MEMBERS {
        let wanted: BTreeSet<String> = members.iter().map(|m| (*m).to_owned()).collect();
        let found = lab.members(set)?;
        ensure(found == wanted, || format!("{set}: expected {wanted:#?}, but found {found:#?}"))?;
    }
    for (set, kind) in EMPTY {
        for set in [(*set).to_owned(), set.replacen("KUBE-", "KUBE-6-", 1)] {
            // kube-proxy truncates the longest name.
            let set = &set[..31.min(set.len())];
            let list = lab.tool("ipset", &["list", set], "")?;
            let right = list.contains(&format!("Type: {kind}\n")) && list.trim_end().ends_with("Members:");
            ensure(right, || format!("not an empty {kind}:\n{list}"))?;
        }
    }
    Ok(())
}

/// Services of every kind: with cluster IPs, external IPs, node ports, and load balancers with source ranges.
fn many(n: usize) -> String {
    let mut text = String::new();
    for i in 1..=n {
        let spec = match i % 4 {
            0 => "externalIPs: ['203.0.113.9']\nexternalTrafficPolicy: Local".to_owned(),
            1 => "type: NodePort".to_owned(),
            2 => "type: LoadBalancer\nloadBalancerSourceRanges: ['192.168.50.0/24']".to_owned(),
            _ => String::new(),
        };
        let mut service = objects::service(&format!("s{i}"), &format!("10.97.0.{i}"), &spec);
        if i % 4 == 0 {
            service = service.replace("port: 80", &format!("port: {}", 1000 + i));
        }
        if i % 4 == 1 || i % 4 == 2 {
            service =
                service.replace("protocol: TCP", &format!("protocol: TCP\n    nodePort: {}", 31000 + i));
        }
        if i % 4 == 2 {
            service += &format!("status:\n  loadBalancer:\n    ingress: [{{ip: 198.51.100.{i}}}]\n");
        }
        text += &format!("{service}---\n");
        if i % 5 > 0 {
            let pod = format!("10.244.1.{}", 100 + i);
            let pod = pod.parse().into_iter().collect::<Vec<_>>();
            text += &format!("{}---\n", objects::slice(&format!("s{i}"), &format!("s{i}"), &pod));
        }
    }
    text
}

fn constant_rules(lab: &mut AgentLab) -> Outcome {
    begin(lab)?;
    ["documented1.yaml", "documented2.yaml"].iter().for_each(|file| lab.delete(file));
    wait_until(|| lab.servers(), |servers| servers.len() == 1)?;
    let one = lab.rules()?;
    let count = one.lines().filter(|l| l.starts_with("-A ")).count();
    ensure(count > 20, || format!("only {count} rules:\n{one}"))?;
    lab.apply("many.yaml", &many(50));
    let last = |servers: &Servers| {
        let has = |name: &str| servers.contains_key(name);
        has("TCP 10.97.0.49:80 rr")
            && has("TCP 10.97.0.48:1048 rr")
            && has("TCP 203.0.113.9:1048 rr")
            && has("TCP 198.51.100.46:80 rr")
            && has("TCP 192.168.50.11:31049 rr")
    };
    wait_until(|| lab.servers(), last)?;
    let fifty = lab.rules()?;
    ensure(one == fifty, || format!("with one Service\n{one}\nand with 51\n{fifty}"))?;
    lab.delete("many.yaml");
    wait_until(|| lab.servers(), |servers| servers.len() == 1)?;
    wait_until(|| lab.bound(), |bound| bound.len() == 1)?;
    Ok(())
}

/// All objects of the mode, without counters.
fn everything(lab: &AgentLab) -> Result<String, libtest_mimic::Failed> {
    let mut sets: Vec<String> = lab.on_node("ipset save")?.lines().map(str::to_owned).collect();
    sets.sort_unstable();
    let device = lab.on_node("ip -d address show kube-ipvs0")?;
    Ok(format!("{}{device}{:#?}{sets:#?}", lab.rules()?, lab.servers()?))
}

fn restart(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    lab.apply("many.yaml", &many(8));
    wait_until(|| lab.servers(), |servers| servers.contains_key("TCP 198.51.100.6:80 rr"))?;
    lab.stop()?;
    let before = everything(lab)?;
    lab.web_works()?;
    start_again(lab, &[])?;
    for family in ["IPv4", "IPv6"] {
        let first = lab.logged(&["synced", &format!("family=\"{family}\"")])?;
        ensure(first.contains("full=true added=0 removed=0"), || {
            format!("a restart changed something: {first}")
        })?;
    }
    let after = everything(lab)?;
    ensure(before == after, || format!("it was\n{before}\nand is\n{after}"))?;
    // The adopted rules are changed correctly.
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])
}
