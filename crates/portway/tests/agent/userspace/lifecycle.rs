//! Agents and relays start and end; connections stay.

use super::{another, has_ended, is_running, open, process, relay, start, udp};
use crate::agent_lab::{AgentLab, WEB, patience};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("killing_the_agent_breaks_no_connection", killed),
    ("stopping_the_agent_points_the_rules_at_endpoints", stopped),
    ("a_killed_relay_is_replaced", relay_killed),
    ("a_relay_killed_before_a_change_is_replaced_by_that_sync", relay_killed_before_change),
    ("cleanup_ends_the_relay_after_its_last_connection", cleaned),
    ("two_agents_share_a_relay", twice),
    ("the_control_socket_is_private_and_removed", private),
    ("listeners_are_at_an_address_of_the_node", addresses),
    ("dialling_a_listener_directly_is_reset", directly),
    ("the_relay_ignores_signals_while_an_agent_is_connected", both_signalled),
    ("rules_changed_by_others_are_repaired", tampered),
];

fn web() -> SocketAddr {
    SocketAddr::new(WEB[0], 80)
}

fn signal(number: u32, signal: Signal) -> Outcome {
    let pid = Pid::from_raw(number as i32).ok_or("no process")?;
    Ok(kill_process(pid, signal)?)
}

fn killed(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let number = relay(world)?;
    for _ in 0..3 {
        world.kill()?;
        is_running(number)?;
        traffic.is_alive("without an agent")?;
        start(world, &[])?;
        world.logged(&["connected to the relay", &format!("process={number}")])?;
        traffic.is_alive("with another agent")?;
    }
    // A change that no agent saw is sent by the next one.
    world.kill()?;
    world.delete("web-v4.yaml");
    start(world, &[])?;
    world.reaches_nobody(web())?;
    world.apply("web-v4.yaml", &crate::objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.reaches(web(), &["pod1b"])
}

fn stopped(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let number = relay(world)?;
    let endpoints = |world: &AgentLab| world.nft(&["list", "map", "ip", "portway", "endpoints"]);
    let pod = world.pod_ips("pod1a")[0].to_string();
    ensure(!endpoints(world)?.contains(&pod), || "the rules point to pods".to_owned())?;
    world.stop()?;
    let map = endpoints(world)?;
    ensure(map.contains(&pod), || format!("the rules do not point to pods:\n{map}"))?;
    traffic.is_alive("after the agent has stopped")?;
    is_running(number)?;
    traffic.end()?;
    has_ended(number)?;
    world.web_works()?;
    start(world, &[])?;
    Traffic::begin(world)?.end()
}

fn relay_killed(world: &mut AgentLab) -> Outcome {
    udp::dns(world, "dns", "10.96.0.53", &["pod1a", "pod1b"]);
    start(world, &[])?;
    world.web_works()?;
    let number = relay(world)?;
    let rules = |world: &AgentLab| -> Result<[String; 2], Failed> {
        let map = |family| world.nft(&["list", "map", family, "portway", "endpoints"]);
        Ok([map("ip")?, map("ip6")?])
    };
    let before = rules(world)?;
    let mut flow = udp::ask(world, "10.96.0.53:53".parse()?)?;
    signal(number, Signal::KILL)?;
    // A scrape that finds no relay must not hide that from the agent.
    world.status("/metrics")?;
    another(world, number)?;
    world.web_works()?;
    has_ended(number)?;
    // The new relay has the same ports, so no rule had to change, and tracked flows stay valid.
    let after = rules(world)?;
    ensure(before == after, || format!("rules changed from {before:?} to {after:?}"))?;
    let answer = flow.ask("still there?");
    ensure(answer.is_ok(), || format!("the UDP flow: {answer:?}"))
}

/// The sync of a change finds that the relay has ended, before the agent's periodic check does.
fn relay_killed_before_change(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let number = relay(world)?;
    let listeners = |world: &AgentLab| -> Result<Vec<String>, Failed> {
        let map = world.nft(&["list", "map", "ip", "portway", "endpoints"])?;
        let node = world.node_ips()[0].to_string();
        let mut listeners: Vec<String> = map
            .split(&[',', '\n'])
            .filter_map(|e| e.split_once(&format!(": {node} . ")))
            .map(|(_, port)| port.trim().to_owned())
            .collect();
        listeners.sort();
        listeners.dedup();
        Ok(listeners)
    };
    let before = listeners(world)?;
    ensure(!before.is_empty(), || "no listeners".to_owned())?;
    signal(number, Signal::KILL)?;
    crate::mode_change::follows_changes(world)?;
    world.web_works()?;
    let after = listeners(world)?;
    ensure(before == after, || format!("listeners were at ports {before:?} and are at {after:?}"))?;
    let log = world.agent()?.log().to_string();
    ensure(!log.contains("no relay:"), || log.clone())?;
    is_running(relay(world)?)
}

fn cleaned(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let number = relay(world)?;
    // As a network plugin does: the kernel translates packets of open connections as long as any NAT rule exists.
    world.nft(&["add", "table", "ip", "plugin"])?;
    world.nft(&["add", "chain", "ip", "plugin", "post", "{ type nat hook postrouting priority 100 ; }"])?;
    world.nft(&["add", "rule", "ip", "plugin", "post", "ip saddr 203.0.113.0/24 masquerade"])?;
    let mut conversation = open(world, web())?;
    world.kill()?;
    let said = String::from_utf8(world.portway(&["cleanup", "--dry-run"])?.stdout)?;
    ensure(said.contains("would remove userspace: the relay process"), || said.clone())?;
    let said = String::from_utf8(world.portway(&["cleanup"])?.stdout)?;
    ensure(said.contains("removed userspace: the relay process"), || said.clone())?;
    let answer = conversation.ask("still there?");
    ensure(answer.is_ok(), || format!("the open connection: {answer:?}"))?;
    drop(conversation);
    has_ended(number)?;
    let said = String::from_utf8(world.portway(&["cleanup", "--dry-run"])?.stdout)?;
    ensure(said.contains("nothing to remove"), || said.clone())
}

/// A second agent is started while another runs, as a rolling update may do it, and stays when the first stops.
fn twice(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let number = relay(world)?;
    let mut command = std::process::Command::new(crate::agent_lab::PORTWAY);
    command.arg("proxy").args(world.flags()).arg("--proxy-mode=userspace");
    let mut second = portway_lab::Agent::run(world.node(), command)?;
    second.wait_for(&format!("process={number}"), patience())?;
    // While both run, both send changes.
    for _ in 0..3 {
        crate::mode_change::follows_changes(world)?;
        world.web_works()?;
    }
    world.stop()?;
    second.wait_for("synced", patience())?;
    is_running(number)?;
    traffic.is_alive("with the second agent")?;
    crate::mode_change::follows_changes(world)?;
    traffic.end()?;
    world.web_works()
}

fn private(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let number = relay(world)?;
    let directory = std::path::Path::new("/run/portway");
    let mode = std::fs::metadata(directory)?.permissions().mode() & 0o777;
    ensure(mode == 0o700, || format!("{} has mode {mode:o}", directory.display()))?;
    let namespace = std::fs::metadata(process(number).join("ns/net"))?.ino();
    let socket = directory.join(format!("relay-{namespace}.socket"));
    let mode = std::fs::metadata(&socket)?.permissions().mode() & 0o777;
    ensure(mode == 0o600, || format!("{} has mode {mode:o}", socket.display()))?;
    world.stop()?;
    has_ended(number)?;
    for left in [&socket, &socket.with_extension("lock")] {
        ensure(!left.exists(), || format!("{} is left behind", left.display()))?;
    }
    // A killed relay cannot remove its socket; cleanup does.
    start(world, &[])?;
    let killed = relay(world)?;
    world.kill()?;
    signal(killed, Signal::KILL)?;
    has_ended(killed)?;
    world.portway(&["cleanup"])?;
    ensure(!socket.exists(), || format!("{} is left behind", socket.display()))
}

/// The Node object names an address that the node does not have, then one that is removed.
fn addresses(world: &mut AgentLab) -> Outcome {
    let v6 = world.node_ips()[1];
    let node = |ip: &str| -> Result<String, libtest_mimic::Failed> {
        Ok(crate::objects::node(&[ip.parse()?, v6], ""))
    };
    world.apply("node1.yaml", &node("192.168.50.99")?);
    start(world, &[])?;
    world.web_works()?;
    world.add_address("192.168.50.77/24")?;
    world.apply("node1.yaml", &node("192.168.50.77")?);
    world.stop()?;
    start(world, &[])?;
    let moved = || match world.nft(&["list", "map", "ip", "portway", "endpoints"]) {
        Ok(map) if map.contains("192.168.50.77") => Ok(()),
        other => Err(format!("listeners are at another address: {other:?}")),
    };
    eventually(patience(), moved)?;
    world.web_works()?;
    world.remove_address("192.168.50.77/24")?;
    world.web_works()
}

fn directly(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let number = relay(world)?;
    // Its listening ports, from the kernel's table of the namespace.
    let table = std::fs::read_to_string(process(number).join("net/tcp"))?;
    let node = world.node_ips()[0];
    let listening = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (ip, port) = local.split_once(':')?;
        let ip = u32::from_str_radix(ip, 16).ok()?.to_ne_bytes();
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == "0A" && std::net::IpAddr::from(ip) == node).then_some(SocketAddr::new(node, port))
    };
    let listeners: Vec<SocketAddr> = table.lines().filter_map(listening).collect();
    ensure(listeners.len() == 2, || format!("listeners: {listeners:?}\n{table}"))?;
    // No unprivileged process can bind them.
    ensure(listeners.iter().all(|listener| listener.port() < 1024), || format!("listeners: {listeners:?}"))?;
    for listener in listeners {
        let got = world.client().run(|| {
            let mut stream = TcpStream::connect(listener)?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.read(&mut [0; 16])
        });
        let reset = got.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
        ensure(reset, || format!("{listener}: {got:?}"))?;
    }
    Ok(())
}

/// As a service manager does that signals all processes of a service.
fn both_signalled(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let number = relay(world)?;
    signal(number, Signal::TERM)?;
    world.stop()?;
    traffic.is_alive("after both were signalled")?;
    traffic.end()?;
    has_ended(number)
}

fn tampered(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    world.nft(&["flush", "map", "ip", "portway", "endpoints"])?;
    world.logged(&["WARN", "repaired rules that another process had changed", "missing"])?;
    world.web_works()?;
    world.nft(&["delete", "table", "ip6", "portway"])?;
    world.logged(&["WARN", "repaired rules that another process had changed", "family=IPv6"])?;
    world.web_works()
}
