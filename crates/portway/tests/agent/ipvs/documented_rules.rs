//! What people have shown of their nodes in this mode: `ip addr`, `ipvsadm -ln`, the sets.

use super::{Servers, again, becomes, start};
use crate::agent_lab::AgentLab;
use crate::documented_rules::{Service, manifest};
use crate::{Outcome, Test, ensure, objects};
use std::collections::BTreeSet;

pub(crate) const TESTS: &[Test] = &[
    ("documented_rules_are_found_in_ours", found),
    ("the_number_of_rules_does_not_depend_on_services", constant),
    ("a_restart_adopts_existing_rules", adopts),
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

/// `ipvsadm -ln` of a document, with the UDP server that it leaves out, and without connections.
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

/// `ip addr` in seed 003.
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

/// The others that kube-proxy's users know, and their types.
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

/// Only these Services, as the seed has them.
fn begin(world: &mut AgentLab) -> Outcome {
    for (i, service) in SERVICES.iter().enumerate() {
        world.apply(&format!("seed{i}.yaml"), &manifest(service));
    }
    // It has the address of `kubernetes`.
    ["web.yaml", "web-v4.yaml", "web-v6.yaml"].iter().for_each(|file| world.delete(file));
    start(world, &["--cluster-cidr=10.244.0.0/16"])?;
    world.logged(&["synced", "family=IPv4"])?;
    world.logged(&["synced", "family=IPv6"]).map(drop)
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
    // The kernel lists those behind a server in the order they came, or the other way round.
    servers.iter_mut().for_each(|server| server[1..].sort_unstable());
    let lines = |of: &[&str]| of.iter().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
    (lines(head), servers.iter().map(|server| lines(server).join("\n")).collect())
}

fn found(world: &mut AgentLab) -> Outcome {
    begin(world)?;
    let listed = world.ipvsadm("-ln")?;
    ensure(sorted(&listed) == sorted(LISTED), || format!("wanted\n{LISTED}\nbut there is\n{listed}"))?;

    let device = world.on_node("ip addr show kube-ipvs0")?;
    ensure(device.contains(DEVICE), || format!("not {DEVICE}:\n{device}"))?;
    let inet: BTreeSet<&str> = device.lines().filter(|l| l.starts_with("    inet")).collect();
    ensure(inet == BTreeSet::from(ADDRESSES), || format!("not only {ADDRESSES:#?}:\n{device}"))?;

    for (set, members) in MEMBERS {
        let wanted: BTreeSet<String> = members.iter().map(|m| (*m).to_owned()).collect();
        let there = world.members(set)?;
        ensure(there == wanted, || format!("{set}: wanted {wanted:#?}, but there is {there:#?}"))?;
    }
    for (set, kind) in EMPTY {
        for set in [(*set).to_owned(), set.replacen("KUBE-", "KUBE-6-", 1)] {
            // Of one, kube-proxy has to cut the name.
            let set = &set[..31.min(set.len())];
            let list = world.tool("ipset", &["list", set], "")?;
            let right = list.contains(&format!("Type: {kind}\n")) && list.trim_end().ends_with("Members:");
            ensure(right, || format!("not an empty {kind}:\n{list}"))?;
        }
    }
    Ok(())
}

/// Services of every kind: some with node ports, some with load balancers that only some may reach.
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

fn constant(world: &mut AgentLab) -> Outcome {
    begin(world)?;
    ["seed1.yaml", "seed2.yaml"].iter().for_each(|file| world.delete(file));
    becomes(|| world.servers(), |servers| servers.len() == 1)?;
    let one = world.rules()?;
    let count = one.lines().filter(|l| l.starts_with("-A ")).count();
    ensure(count > 20, || format!("only {count} rules:\n{one}"))?;
    world.apply("many.yaml", &many(50));
    let last = |servers: &Servers| {
        let has = |name: &str| servers.contains_key(name);
        has("TCP 10.97.0.49:80 rr")
            && has("TCP 10.97.0.48:1048 rr")
            && has("TCP 203.0.113.9:1048 rr")
            && has("TCP 198.51.100.46:80 rr")
            && has("TCP 192.168.50.11:31049 rr")
    };
    becomes(|| world.servers(), last)?;
    let fifty = world.rules()?;
    ensure(one == fifty, || format!("with one Service\n{one}\nand with 51\n{fifty}"))?;
    world.delete("many.yaml");
    becomes(|| world.servers(), |servers| servers.len() == 1)?;
    becomes(|| world.bound(), |bound| bound.len() == 1)?;
    Ok(())
}

/// Everything there is, except for numbers of packets and connections.
fn everything(world: &AgentLab) -> Result<String, libtest_mimic::Failed> {
    let mut sets: Vec<String> = world.on_node("ipset save")?.lines().map(str::to_owned).collect();
    sets.sort_unstable();
    let device = world.on_node("ip -d address show kube-ipvs0")?;
    Ok(format!("{}{device}{:#?}{sets:#?}", world.rules()?, world.servers()?))
}

fn adopts(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    world.apply("many.yaml", &many(8));
    becomes(|| world.servers(), |servers| servers.contains_key("TCP 198.51.100.6:80 rr"))?;
    world.stop()?;
    let before = everything(world)?;
    world.web_works()?;
    again(world, &[])?;
    for family in ["IPv4", "IPv6"] {
        let first = world.logged(&["synced", &format!("family={family}")])?;
        ensure(first.contains("full=true added=0 removed=0"), || {
            format!("a restart changed something: {first}")
        })?;
    }
    let after = everything(world)?;
    ensure(before == after, || format!("it was\n{before}\nand is\n{after}"))?;
    // It knows what it has taken over.
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])
}
