//! Virtual servers, sets and addresses of other programs are not changed.

use super::{Servers, again, becomes, start};
use crate::agent_lab::AgentLab;
use crate::tool::Legacy;
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;

pub(crate) const TESTS: &[Test] = &[("foreign_objects_are_not_changed", stays)];
pub(crate) const MARKS: &[Test] = &[("foreign_marks_are_avoided", marks)];
pub(crate) const EXCLUDED: &[Test] = &[
    ("servers_at_excluded_addresses_are_not_touched", excluded),
    ("a_service_at_an_excluded_address_is_not_served", not_served),
];

/// Servers of others: at an address that no Service has, at the node's own address at a port that is no node port, at one
/// where node ports do not answer, and by a mark.
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

/// What there is of it.
#[derive(Debug, PartialEq, Eq)]
struct Theirs {
    servers: Servers,
    sets: Vec<String>,
    rules: Vec<String>,
    links: String,
}

impl Theirs {
    fn make(world: &AgentLab) -> Result<Theirs, Failed> {
        SERVERS.iter().try_for_each(|arguments| world.ipvsadm(arguments).map(drop))?;
        LINKS.iter().try_for_each(|command| world.on_node(command).map(drop))?;
        world.tool("ipset", &["restore"], SETS)?;
        world.load(Legacy, "iptables", RULES)?;
        let theirs = Theirs::look(world)?;
        ensure(theirs.servers.len() == 6 && theirs.sets.len() == 3, || format!("{theirs:#?}"))?;
        Ok(theirs)
    }

    fn look(world: &AgentLab) -> Result<Theirs, Failed> {
        let is_theirs = |name: &String| {
            ["203.0.113.5:", "]:8888", ":8888", "10.244.1.1:30001", "FWM 77"]
                .iter()
                .any(|word| name.contains(word))
        };
        let mut servers = world.servers()?;
        servers.retain(|name, _| is_theirs(name));
        let saved = ["mine", "KUBE-MINE", "KUBE-SRC-1"].map(|set| world.tool("ipset", &["save", set], ""));
        let sets = saved.into_iter().collect::<Result<_, _>>()?;
        let rules = world.save(Legacy, "iptables")?;
        let rules = rules.lines().filter(|l| l.contains("MINE")).map(str::to_owned).collect();
        let links = world.on_node("ip address show mine0")? + &world.on_node("ip address show lo")?;
        Ok(Theirs { servers, sets, rules, links })
    }

    fn are_there(&self, world: &AgentLab, when: &str) -> Outcome {
        let now = Theirs::look(world)?;
        ensure(now == *self, || format!("{when}: it was {self:#?}\nand is {now:#?}"))
    }
}

/// A Service comes, with a node port, and goes.
fn changes(world: &AgentLab) -> Outcome {
    let late = objects::service("late", "10.96.0.80", "type: NodePort");
    world.apply("late.yaml", &late.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30002"));
    world.apply("late-slice.yaml", &objects::slice("late", "late", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    world.delete("late.yaml");
    becomes(
        || world.servers(),
        |all| !all.keys().any(|s| s.contains("10.96.0.80:") || s.contains(":30002")),
    )?;
    Ok(())
}

fn stays(world: &mut AgentLab) -> Outcome {
    let theirs = Theirs::make(world)?;
    start(world, &["--nodeport-addresses=192.168.50.0/24,fd50::/64"])?;
    world.web_works()?;
    theirs.are_there(world, "after the start")?;
    changes(world)?;
    theirs.are_there(world, "after a sync")?;
    for (doing, words) in [
        ("ip link delete kube-ipvs0", "device kube-ipvs0 is missing"),
        ("ipset flush KUBE-CLUSTER-IP", "KUBE-CLUSTER-IP is missing"),
        ("ipvsadm -D -t 10.96.0.1:80", "server TCP 10.96.0.1:80 is missing"),
    ] {
        world.on_node(doing)?;
        world.logged(&["repaired rules that another process had changed", words])?;
        world.web_works()?;
        theirs.are_there(world, &format!("after {doing} was repaired"))?;
    }
    world.kill()?;
    again(world, &["--nodeport-addresses=192.168.50.0/24,fd50::/64"])?;
    for family in ["IPv4", "IPv6"] {
        world.logged(&["synced", &format!("family={family}"), "full=true"])?;
    }
    theirs.are_there(world, "after a restart")?;
    world.stop()?;
    let output = world.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    theirs.are_there(world, "after cleanup")?;
    // And nothing else is.
    let servers = world.servers()?;
    ensure(servers == theirs.servers, || format!("left: {servers:#?}"))?;
    let left = world.ipvs_left()?;
    ensure(left == ["KUBE-SRC-1"], || format!("left: {left:?}"))
}

/// Made while we run, with the number that we would take next; and of the other family.
fn marks(world: &mut AgentLab) -> Outcome {
    let flags = ["--cluster-cidr=10.244.0.0/16,fd10:244::/32"];
    start(world, &flags)?;
    world.web_works()?;
    for arguments in [
        "-A -f 4096 -s wrr",
        "-a -f 4096 -r 10.9.9.9:8080 -g -w 7",
        "-A -f 4097 -6 -s wrr",
        "-A -f 4098 -s sh",
    ] {
        world.ipvsadm(arguments)?;
    }
    let theirs = |world: &AgentLab| -> Result<Servers, Failed> {
        let mut servers = world.servers()?;
        servers.retain(|name, _| name.starts_with("FWM") && !name.ends_with(" rr"));
        Ok(servers)
    };
    let made = theirs(world)?;
    ensure(made.len() == 3, || format!("{made:#?}"))?;
    let local = objects::service("local", "10.96.0.81", "type: NodePort\nexternalTrafficPolicy: Local");
    world.apply("local.yaml", &local.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30003"));
    world.apply("local-slice.yaml", &objects::slice("local", "local", &world.pod_ips("pod1b")[..1]));
    let real = format!("{}:8080 Masq 1", world.pod_ips("pod1b")[0]);
    let ours = |world: &AgentLab| {
        let is_ours = |all: &Servers| all.get("FWM 4097 rr").is_some_and(|behind| behind.iter().eq([&real]));
        becomes(|| world.servers(), is_ours).map(drop)
    };
    ours(world)?;
    let unharmed = |world: &AgentLab, when: &str| {
        let now = theirs(world)?;
        ensure(now == made, || format!("{when}: it was {made:#?}\nand is {now:#?}"))
    };
    unharmed(world, "after a Service took a mark")?;
    world.on_node("ipset flush KUBE-CLUSTER-IP")?;
    world.logged(&["repaired rules that another process had changed", "KUBE-CLUSTER-IP is missing"])?;
    unharmed(world, "after a repair")?;
    world.kill()?;
    again(world, &flags)?;
    world.logged(&["synced", "family=IPv4", "full=true"])?;
    ours(world)?;
    unharmed(world, "after a restart")?;
    world.stop()?;
    world.portway(&["cleanup"])?;
    unharmed(world, "after cleanup")?;
    let left = world.servers()?;
    ensure(left == made, || format!("left: {left:#?}"))
}

fn excluded(world: &mut AgentLab) -> Outcome {
    // Also a server at an address on our device, as an earlier run's would be.
    world.on_node("ip link add kube-ipvs0 type dummy")?;
    world.on_node("ip address add 10.99.0.1/32 dev kube-ipvs0")?;
    world.on_node("ip address add 10.98.0.1/32 dev kube-ipvs0")?;
    for arguments in [
        "-A -t 10.99.0.1:80 -s wrr",
        "-a -t 10.99.0.1:80 -r 10.244.1.10:8080 -m -w 3",
        "-A -t 10.98.0.1:80 -s rr",
        "-a -t 10.98.0.1:80 -r 10.244.1.10:8080 -m",
    ] {
        world.ipvsadm(arguments)?;
    }
    let theirs = |world: &AgentLab, when: &str| -> Outcome {
        let servers = world.servers()?;
        let there = servers.get("TCP 10.99.0.1:80 wrr");
        let right = there.is_some_and(|behind| behind.iter().eq(["10.244.1.10:8080 Masq 3"]));
        ensure(right, || format!("{when}: {servers:#?}"))
    };
    let flags = ["--ipvs-exclude-cidrs=10.99.0.0/16,2001:db8::/32"];
    start(world, &flags)?;
    world.web_works()?;
    theirs(world, "after the start")?;
    // One that is not excluded was an earlier run's.
    let servers = world.servers()?;
    ensure(!servers.keys().any(|s| s.contains("10.98.0.1")), || format!("left: {servers:#?}"))?;
    changes(world)?;
    theirs(world, "after a sync")?;
    world.on_node("ipset flush KUBE-CLUSTER-IP")?;
    world.logged(&["repaired rules that another process had changed", "KUBE-CLUSTER-IP is missing"])?;
    theirs(world, "after a repair")?;
    world.kill()?;
    again(world, &flags)?;
    world.logged(&["synced", "family=IPv4", "full=true"])?;
    theirs(world, "after a restart")?;
    world.stop()?;
    let output = world.portway(&["cleanup", "--exclude-cidrs=10.99.0.0/16"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    theirs(world, "after cleanup")?;
    // The device stays for its foreign addresses, without the alias that we wrote on it.
    let said = String::from_utf8(output.stdout)?;
    ensure(!said.contains("removed ipvs: device kube-ipvs0"), || said.clone())?;
    let device = world.on_node("ip link show kube-ipvs0")?;
    ensure(!device.contains("alias"), || device.clone())?;
    let said = String::from_utf8(world.portway(&["cleanup", "--exclude-cidrs=10.99.0.0/16"])?.stdout)?;
    ensure(said.contains("nothing to remove"), || said.clone())
}

fn not_served(world: &mut AgentLab) -> Outcome {
    world.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    world.apply("late-slice.yaml", &objects::slice("late", "late", &world.pod_ips("pod1b")[..1]));
    start(world, &["--ipvs-exclude-cidrs=10.96.0.80/28"])?;
    world.web_works()?;
    let servers = world.servers()?;
    ensure(!servers.keys().any(|s| s.contains("10.96.0.80")), || format!("{servers:#?}"))?;
    let bound = world.bound()?;
    ensure(!bound.contains("10.96.0.80/32"), || format!("{bound:?}"))
}
