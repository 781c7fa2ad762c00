//! Virtual servers, sets and addresses of other programs are not changed.

use super::{Servers, start, start_again, wait_until};
use crate::agent_lab::AgentLab;
use crate::tool::Legacy;
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;

pub(crate) const TESTS: &[Test] = &[("foreign_objects_are_not_changed", foreign_objects)];
pub(crate) const MARKS: &[Test] = &[("foreign_marks_are_avoided", marks)];
pub(crate) const EXCLUDED: &[Test] = &[
    ("servers_at_excluded_addresses_are_not_touched", excluded),
    ("a_service_at_an_excluded_address_is_served", served),
];

/// Foreign virtual servers: at an address that no Service has, at the node's address with a port that is not a node
/// port, at an address where node ports do not answer, and by a firewall mark.
const SERVERS: &[&str] = &[
    "-A -t 203.0.113.5:80 -s wrr",
    "-a -t 203.0.113.5:80 -r 10.244.1.10:8080 -m -w 7",
    "-A -u 203.0.113.5:80 -s rr -p 600",
    "-A -t 192.168.50.11:8888 -s sh",
    "-a -t 192.168.50.11:8888 -r 10.244.1.11:8080 -m",
    "-A -t 10.244.1.1:30001 -s wrr",
    "-a -t 10.244.1.1:30001 -r 10.244.1.11:8080 -m -w 7",
    "-A -f 77 -s lc",
    "-a -f 77 -r 10.244.1.10:8080 -g",
    "-A -t [fd50::11]:8888 -s rr",
];
const SETS: &str = "create mine hash:ip\nadd mine 203.0.113.7\ncreate KUBE-MINE hash:net\nadd KUBE-MINE 203.0.113.0/25\n\
    create KUBE-SRC-1 hash:ip,port\nadd KUBE-SRC-1 10.96.0.1,tcp:80\n";
const RULES: &str =
    "*filter\n:MINE - [0:0]\n-A INPUT -j MINE\n-A MINE -m set --match-set mine src -j DROP\nCOMMIT\n";
const LINKS: &[&str] = &[
    "ip link add mine0 type dummy",
    "ip address add 203.0.113.77/32 dev mine0",
    "ip address add 10.96.0.200/32 dev lo",
    "ip address add fd96::200/128 dev lo",
];

/// The foreign objects as the tools list them.
#[derive(Debug, PartialEq, Eq)]
struct ForeignObjects {
    servers: Servers,
    sets: Vec<String>,
    rules: Vec<String>,
    links: String,
}

impl ForeignObjects {
    fn create(lab: &AgentLab) -> Result<ForeignObjects, Failed> {
        SERVERS.iter().try_for_each(|arguments| lab.ipvsadm(arguments).map(drop))?;
        LINKS.iter().try_for_each(|command| lab.on_node(command).map(drop))?;
        lab.tool("ipset", &["restore"], SETS)?;
        lab.load(Legacy, "iptables", RULES)?;
        let foreign = ForeignObjects::list(lab)?;
        ensure(foreign.servers.len() == 6 && foreign.sets.len() == 3, || format!("{foreign:#?}"))?;
        Ok(foreign)
    }

    fn list(lab: &AgentLab) -> Result<ForeignObjects, Failed> {
        let is_foreign = |name: &String| {
            ["203.0.113.5:", "]:8888", ":8888", "10.244.1.1:30001", "FWM 77"]
                .iter()
                .any(|word| name.contains(word))
        };
        let mut servers = lab.servers()?;
        servers.retain(|name, _| is_foreign(name));
        let saved = ["mine", "KUBE-MINE", "KUBE-SRC-1"].map(|set| lab.tool("ipset", &["save", set], ""));
        let sets = saved.into_iter().collect::<Result<_, _>>()?;
        let rules = lab.save(Legacy, "iptables")?;
        let rules = rules.lines().filter(|l| l.contains("MINE")).map(str::to_owned).collect();
        let links = lab.on_node("ip address show mine0")? + &lab.on_node("ip address show lo")?;
        Ok(ForeignObjects { servers, sets, rules, links })
    }

    fn are_unchanged(&self, lab: &AgentLab, when: &str) -> Outcome {
        let now = ForeignObjects::list(lab)?;
        ensure(now == *self, || format!("{when}: it was {self:#?}\nand is {now:#?}"))
    }
}

/// Creates a Service with a node port, and deletes it.
fn change_services(lab: &AgentLab) -> Outcome {
    let late = objects::service("late", "10.96.0.80", "type: NodePort");
    lab.apply("late.yaml", &late.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30002"));
    lab.apply("late-slice.yaml", &objects::slice("late", "late", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    lab.delete("late.yaml");
    wait_until(
        || lab.servers(),
        |all| !all.keys().any(|s| s.contains("10.96.0.80:") || s.contains(":30002")),
    )?;
    Ok(())
}

fn foreign_objects(lab: &mut AgentLab) -> Outcome {
    let foreign = ForeignObjects::create(lab)?;
    start(lab, &["--nodeport-addresses=192.168.50.0/24,fd50::/64"])?;
    lab.web_works()?;
    foreign.are_unchanged(lab, "after the start")?;
    change_services(lab)?;
    foreign.are_unchanged(lab, "after a sync")?;
    for (command, text) in [
        ("ip link delete kube-ipvs0", "device kube-ipvs0 is missing"),
        ("ipset flush KUBE-CLUSTER-IP", "KUBE-CLUSTER-IP is missing"),
        ("ipvsadm -D -t 10.96.0.1:80", "server TCP 10.96.0.1:80 is missing"),
    ] {
        lab.on_node(command)?;
        lab.logged(&["repaired rules that another process had changed", text])?;
        lab.web_works()?;
        foreign.are_unchanged(lab, &format!("after {command} was repaired"))?;
    }
    lab.kill()?;
    start_again(lab, &["--nodeport-addresses=192.168.50.0/24,fd50::/64"])?;
    for family in ["IPv4", "IPv6"] {
        lab.logged(&["synced", &format!("family=\"{family}\""), "full=true"])?;
    }
    foreign.are_unchanged(lab, "after a restart")?;
    lab.stop()?;
    let output = lab.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    foreign.are_unchanged(lab, "after cleanup")?;
    // No other object is left.
    let servers = lab.servers()?;
    ensure(servers == foreign.servers, || format!("left: {servers:#?}"))?;
    let left = lab.ipvs_leftovers()?;
    ensure(left == ["KUBE-SRC-1"], || format!("left: {left:?}"))
}

/// Foreign servers by mark are created while the agent runs, in both families, with the marks that it would use next.
fn marks(lab: &mut AgentLab) -> Outcome {
    let flags = ["--cluster-cidr=10.244.0.0/16,fd10:244::/32"];
    start(lab, &flags)?;
    lab.web_works()?;
    for arguments in [
        "-A -f 4096 -s wrr",
        "-a -f 4096 -r 10.9.9.9:8080 -g -w 7",
        "-A -f 4097 -6 -s wrr",
        "-A -f 4098 -s sh",
    ] {
        lab.ipvsadm(arguments)?;
    }
    let foreign = |lab: &AgentLab| -> Result<Servers, Failed> {
        let mut servers = lab.servers()?;
        servers.retain(|name, _| name.starts_with("FWM") && !name.ends_with(" rr"));
        Ok(servers)
    };
    let created = foreign(lab)?;
    ensure(created.len() == 3, || format!("{created:#?}"))?;
    let local = objects::service("local", "10.96.0.81", "type: NodePort\nexternalTrafficPolicy: Local");
    lab.apply("local.yaml", &local.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30003"));
    lab.apply("local-slice.yaml", &objects::slice("local", "local", &lab.pod_ips("pod1b")[..1]));
    let real = format!("{}:8080 Masq 1", lab.pod_ips("pod1b")[0]);
    let served = |lab: &AgentLab| {
        let has_server =
            |all: &Servers| all.get("FWM 4097 rr").is_some_and(|servers| servers.iter().eq([&real]));
        wait_until(|| lab.servers(), has_server).map(drop)
    };
    served(lab)?;
    let unchanged = |lab: &AgentLab, when: &str| {
        let now = foreign(lab)?;
        ensure(now == created, || format!("{when}: it was {created:#?}\nand is {now:#?}"))
    };
    unchanged(lab, "after a Service got a mark")?;
    lab.on_node("ipset flush KUBE-CLUSTER-IP")?;
    lab.logged(&["repaired rules that another process had changed", "KUBE-CLUSTER-IP is missing"])?;
    unchanged(lab, "after a repair")?;
    lab.kill()?;
    start_again(lab, &flags)?;
    lab.logged(&["synced", "family=\"IPv4\"", "full=true"])?;
    served(lab)?;
    unchanged(lab, "after a restart")?;
    lab.stop()?;
    lab.portway(&["cleanup"])?;
    unchanged(lab, "after cleanup")?;
    let left = lab.servers()?;
    ensure(left == created, || format!("left: {left:#?}"))
}

fn excluded(lab: &mut AgentLab) -> Outcome {
    // The excluded server is at an address on kube-ipvs0, like servers of an earlier run.
    lab.on_node("ip link add kube-ipvs0 type dummy")?;
    lab.on_node("ip address add 10.99.0.1/32 dev kube-ipvs0")?;
    lab.on_node("ip address add 10.98.0.1/32 dev kube-ipvs0")?;
    for arguments in [
        "-A -t 10.99.0.1:80 -s wrr",
        "-a -t 10.99.0.1:80 -r 10.244.1.10:8080 -m -w 3",
        "-A -t 10.98.0.1:80 -s rr",
        "-a -t 10.98.0.1:80 -r 10.244.1.10:8080 -m",
    ] {
        lab.ipvsadm(arguments)?;
    }
    let foreign = |lab: &AgentLab, when: &str| -> Outcome {
        let servers = lab.servers()?;
        let there = servers.get("TCP 10.99.0.1:80 wrr");
        let right = there.is_some_and(|real| real.iter().eq(["10.244.1.10:8080 Masq 3"]));
        ensure(right, || format!("{when}: {servers:#?}"))
    };
    let flags = ["--ipvs-exclude-cidrs=10.99.0.0/16,2001:db8::/32"];
    start(lab, &flags)?;
    lab.web_works()?;
    foreign(lab, "after the start")?;
    // A server at an address on kube-ipvs0 that is not excluded is removed as a leftover.
    let servers = lab.servers()?;
    ensure(!servers.keys().any(|s| s.contains("10.98.0.1")), || format!("left: {servers:#?}"))?;
    change_services(lab)?;
    foreign(lab, "after a sync")?;
    lab.on_node("ipset flush KUBE-CLUSTER-IP")?;
    lab.logged(&["repaired rules that another process had changed", "KUBE-CLUSTER-IP is missing"])?;
    foreign(lab, "after a repair")?;
    lab.kill()?;
    start_again(lab, &flags)?;
    lab.logged(&["synced", "family=\"IPv4\"", "full=true"])?;
    foreign(lab, "after a restart")?;
    lab.stop()?;
    let output = lab.portway(&["cleanup", "--exclude-cidrs=10.99.0.0/16"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    foreign(lab, "after cleanup")?;
    // The device stays because of its foreign addresses, without the alias that Portway stores there.
    let printed = String::from_utf8(output.stdout)?;
    ensure(!printed.contains("removed ipvs: device kube-ipvs0"), || printed.clone())?;
    let device = lab.on_node("ip link show kube-ipvs0")?;
    ensure(!device.contains("alias"), || device.clone())?;
    let printed = String::from_utf8(lab.portway(&["cleanup", "--exclude-cidrs=10.99.0.0/16"])?.stdout)?;
    ensure(printed.contains("nothing to remove"), || printed.clone())
}

/// The ranges protect virtual servers of other programs; they do not keep a Service from being served.
fn served(lab: &mut AgentLab) -> Outcome {
    lab.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    lab.apply("late-slice.yaml", &objects::slice("late", "late", &lab.pod_ips("pod1b")[..1]));
    let flags = ["--ipvs-exclude-cidrs=10.96.0.80/28,192.168.50.0/24"];
    start(lab, &flags)?;
    lab.web_works()?;
    let at = "10.96.0.80:80".parse()?;
    lab.reaches(at, &["pod1b"])?;
    lab.reaches(
        std::net::SocketAddr::new(lab.node_ips()[0], crate::agent_lab::NODE_PORT),
        &["pod1a", "pod1b"],
    )?;
    lab.kill()?;
    start_again(lab, &flags)?;
    lab.logged(&["synced", "family=\"IPv4\"", "full=true"])?;
    lab.reaches(at, &["pod1b"])?;
    lab.delete("late.yaml");
    portway_lab::eventually(crate::agent_lab::wait_timeout(), || {
        let servers = lab.servers().map_err(|e| format!("{e:?}"))?;
        let left = servers.keys().any(|s| s.contains("10.96.0.80"));
        if left { Err(format!("{servers:#?}")) } else { Ok(()) }
    })?;
    Ok(())
}
