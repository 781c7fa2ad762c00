//! Connections stay open while agents and relays start, stop and are killed.

use super::{another_relay, has_ended, is_running, open, process, relay, start, udp};
use crate::agent_lab::{AgentLab, WEB, wait_timeout};
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
    ("killing_the_agent_breaks_no_connection", agent_killed),
    ("stopping_the_agent_points_the_rules_at_endpoints", agent_stopped),
    ("a_killed_relay_is_replaced", relay_killed),
    ("a_relay_killed_before_a_change_is_replaced_by_that_sync", relay_killed_before_change),
    ("cleanup_ends_the_relay_after_its_last_connection", cleanup),
    ("a_second_agent_stands_back_from_the_relay", two_agents),
    ("the_control_socket_is_private_and_removed", control_socket),
    ("listeners_are_at_an_address_of_the_node", listener_addresses),
    ("dialling_a_listener_directly_is_reset", dialled_directly),
    ("the_relay_ignores_signals_while_an_agent_is_connected", both_signalled),
    ("rules_changed_by_another_process_are_repaired", tampered),
];

fn web() -> SocketAddr {
    SocketAddr::new(WEB[0], 80)
}

fn signal(pid: u32, signal: Signal) -> Outcome {
    let process = Pid::from_raw(pid as i32).ok_or("not a process id")?;
    Ok(kill_process(process, signal)?)
}

fn agent_killed(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    let mut traffic = Traffic::begin(lab)?;
    let pid = relay(lab)?;
    for _ in 0..3 {
        lab.kill()?;
        is_running(pid)?;
        traffic.is_alive("without an agent")?;
        start(lab, &[])?;
        lab.logged(&["connected to the relay", &format!("process={pid}")])?;
        traffic.is_alive("with another agent")?;
    }
    // A change that happens without an agent is sent to the relay by the next one.
    lab.kill()?;
    lab.delete("web-v4.yaml");
    start(lab, &[])?;
    lab.reaches_no_pod(web())?;
    lab.apply("web-v4.yaml", &crate::objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.reaches(web(), &["pod1b"])
}

fn agent_stopped(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    let mut traffic = Traffic::begin(lab)?;
    let pid = relay(lab)?;
    let endpoints = |lab: &AgentLab| lab.nft(&["list", "map", "ip", "portway", "endpoints"]);
    let pod = lab.pod_ips("pod1a")[0].to_string();
    ensure(!endpoints(lab)?.contains(&pod), || "the rules point to pods".to_owned())?;
    lab.stop()?;
    let map = endpoints(lab)?;
    ensure(map.contains(&pod), || format!("the rules do not point to pods:\n{map}"))?;
    traffic.is_alive("after the agent has stopped")?;
    is_running(pid)?;
    traffic.end()?;
    has_ended(pid)?;
    lab.web_works()?;
    start(lab, &[])?;
    Traffic::begin(lab)?.end()
}

fn relay_killed(lab: &mut AgentLab) -> Outcome {
    udp::dns(lab, "dns", "10.96.0.53", &["pod1a", "pod1b"]);
    start(lab, &[])?;
    lab.web_works()?;
    let pid = relay(lab)?;
    let rules = |lab: &AgentLab| -> Result<[String; 2], Failed> {
        let map = |family| lab.nft(&["list", "map", family, "portway", "endpoints"]);
        Ok([map("ip")?, map("ip6")?])
    };
    let before = rules(lab)?;
    let mut flow = udp::ask(lab, "10.96.0.53:53".parse()?)?;
    signal(pid, Signal::KILL)?;
    // A scrape without a relay must not keep the agent from noticing that the relay has ended.
    lab.status("/metrics")?;
    another_relay(lab, pid)?;
    lab.logged(&["WARN", "the relay process ended, and its open connections with it"])?;
    lab.metric("portway_relay_ended_total", |ended| ended == 1.0)?;
    lab.web_works()?;
    has_ended(pid)?;
    // The new relay has the same ports, so rules do not change and tracked flows stay valid.
    let after = rules(lab)?;
    ensure(before == after, || format!("rules changed from {before:?} to {after:?}"))?;
    let answer = flow.ask("still there?");
    ensure(answer.is_ok(), || format!("the UDP flow: {answer:?}"))
}

/// The sync of a change detects that the relay has ended before the agent's periodic check does.
fn relay_killed_before_change(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let pid = relay(lab)?;
    let listeners = |lab: &AgentLab| -> Result<Vec<String>, Failed> {
        let map = lab.nft(&["list", "map", "ip", "portway", "endpoints"])?;
        let node = lab.node_ips()[0].to_string();
        let mut listeners: Vec<String> = map
            .split(&[',', '\n'])
            .filter_map(|e| e.split_once(&format!(": {node} . ")))
            .map(|(_, port)| port.trim().to_owned())
            .collect();
        listeners.sort();
        listeners.dedup();
        Ok(listeners)
    };
    let before = listeners(lab)?;
    ensure(!before.is_empty(), || "no listeners".to_owned())?;
    signal(pid, Signal::KILL)?;
    crate::mode_change::follows_changes(lab)?;
    lab.web_works()?;
    let after = listeners(lab)?;
    ensure(before == after, || format!("listeners were at ports {before:?} and are at {after:?}"))?;
    let log = lab.agent()?.log().to_string();
    ensure(!log.contains("no relay:"), || log.clone())?;
    is_running(relay(lab)?)
}

fn cleanup(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let pid = relay(lab)?;
    // Network plugins have NAT rules: the kernel translates packets of open connections as long as any NAT rule exists.
    lab.nft(&["add", "table", "ip", "plugin"])?;
    lab.nft(&["add", "chain", "ip", "plugin", "post", "{ type nat hook postrouting priority 100 ; }"])?;
    lab.nft(&["add", "rule", "ip", "plugin", "post", "ip saddr 203.0.113.0/24 masquerade"])?;
    let mut conversation = open(lab, web())?;
    lab.kill()?;
    let printed = String::from_utf8(lab.portway(&["cleanup", "--dry-run"])?.stdout)?;
    ensure(printed.contains("would remove userspace: the relay process"), || printed.clone())?;
    let printed = String::from_utf8(lab.portway(&["cleanup"])?.stdout)?;
    ensure(printed.contains("removed userspace: the relay process"), || printed.clone())?;
    let answer = conversation.ask("still there?");
    ensure(answer.is_ok(), || format!("the open connection: {answer:?}"))?;
    drop(conversation);
    has_ended(pid)?;
    let printed = String::from_utf8(lab.portway(&["cleanup", "--dry-run"])?.stdout)?;
    ensure(printed.contains("nothing to remove"), || printed.clone())
}

/// A second agent is started while the first runs, as in a rolling update; then the first stops.
fn two_agents(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    let mut traffic = Traffic::begin(lab)?;
    let pid = relay(lab)?;
    let mut command = std::process::Command::new(crate::agent_lab::PORTWAY);
    command.arg("proxy").args(lab.flags()).arg("--proxy-mode=userspace");
    let mut second = portway_lab::Agent::run(lab.node(), command)?;
    second.wait_for("this agent stands back", wait_timeout())?;
    // The first agent goes on.
    for _ in 0..3 {
        crate::mode_change::follows_changes(lab)?;
        lab.web_works()?;
    }
    lab.stop()?;
    second.wait_for("synced", wait_timeout())?;
    is_running(pid)?;
    traffic.is_alive("with the second agent")?;
    crate::mode_change::follows_changes(lab)?;
    traffic.end()?;
    lab.web_works()
}

fn control_socket(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let pid = relay(lab)?;
    let directory = std::path::Path::new("/run/portway");
    let mode = std::fs::metadata(directory)?.permissions().mode() & 0o777;
    ensure(mode == 0o700, || format!("{} has mode {mode:o}", directory.display()))?;
    let namespace = std::fs::metadata(process(pid).join("ns/net"))?.ino();
    let socket = directory.join(format!("relay-{namespace}.socket"));
    let mode = std::fs::metadata(&socket)?.permissions().mode() & 0o777;
    ensure(mode == 0o600, || format!("{} has mode {mode:o}", socket.display()))?;
    lab.stop()?;
    has_ended(pid)?;
    for left in [&socket, &socket.with_extension("lock")] {
        ensure(!left.exists(), || format!("{} was not removed", left.display()))?;
    }
    // A killed relay cannot remove its socket; cleanup does.
    start(lab, &[])?;
    let killed = relay(lab)?;
    lab.kill()?;
    signal(killed, Signal::KILL)?;
    has_ended(killed)?;
    lab.portway(&["cleanup"])?;
    ensure(!socket.exists(), || format!("{} was not removed", socket.display()))
}

/// The Node object names an address that the node does not have, then one that is removed.
fn listener_addresses(lab: &mut AgentLab) -> Outcome {
    let v6 = lab.node_ips()[1];
    let node = |ip: &str| -> Result<String, libtest_mimic::Failed> {
        Ok(crate::objects::node(&[ip.parse()?, v6], ""))
    };
    lab.apply("node1.yaml", &node("192.168.50.99")?);
    start(lab, &[])?;
    lab.web_works()?;
    lab.add_address("192.168.50.77/24")?;
    lab.apply("node1.yaml", &node("192.168.50.77")?);
    lab.stop()?;
    start(lab, &[])?;
    let moved = || match lab.nft(&["list", "map", "ip", "portway", "endpoints"]) {
        Ok(map) if map.contains("192.168.50.77") => Ok(()),
        other => Err(format!("listeners are at another address: {other:?}")),
    };
    eventually(wait_timeout(), moved)?;
    lab.web_works()?;
    lab.remove_address("192.168.50.77/24")?;
    lab.web_works()
}

fn dialled_directly(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let pid = relay(lab)?;
    // The listening ports of the relay, from the TCP sockets of the namespace.
    let table = std::fs::read_to_string(process(pid).join("net/tcp"))?;
    let node = lab.node_ips()[0];
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
        let got = lab.client().run(|| {
            let mut stream = TcpStream::connect(listener)?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.read(&mut [0; 16])
        });
        let reset = got.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
        ensure(reset, || format!("{listener}: {got:?}"))?;
    }
    Ok(())
}

/// A service manager may signal all processes of a service.
fn both_signalled(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    let mut traffic = Traffic::begin(lab)?;
    let pid = relay(lab)?;
    signal(pid, Signal::TERM)?;
    lab.stop()?;
    traffic.is_alive("after both were signalled")?;
    traffic.end()?;
    has_ended(pid)
}

fn tampered(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    lab.nft(&["flush", "map", "ip", "portway", "endpoints"])?;
    lab.logged(&["WARN", "repaired rules that another process had changed", "missing"])?;
    lab.web_works()?;
    lab.nft(&["delete", "table", "ip6", "portway"])?;
    lab.logged(&["WARN", "repaired rules that another process had changed", "family=\"IPv6\""])?;
    lab.web_works()
}
