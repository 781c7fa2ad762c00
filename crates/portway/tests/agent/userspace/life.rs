//! Agents and carriers come and go; connections stay.

use super::{another, carrier, is_gone, is_there, open, process, start, udp};
use crate::traffic::Traffic;
use crate::world::{WEB, World, patience};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("an_agent_that_is_killed_costs_no_connection", killed),
    ("an_agent_that_stops_leaves_it_to_the_kernel", stopped),
    ("a_carrier_that_is_killed_is_replaced", carrier_killed),
    ("so_it_is_when_something_changes_at_that_moment", carrier_killed_in_between),
    ("cleanup_ends_the_carrier_when_its_connections_have", cleaned),
    ("an_agent_beside_takes_nothing_away", twice),
    ("nobody_else_can_get_at_the_carrier", private),
    ("doors_are_at_addresses_that_are_there", addresses),
    ("nobody_gets_in_by_a_door_itself", directly),
    ("a_signal_to_all_of_a_group_is_the_agents_to_hear", both_signalled),
    ("rules_that_others_change_are_repaired", tampered),
];

fn web() -> SocketAddr {
    SocketAddr::new(WEB[0], 80)
}

fn signal(number: u32, signal: Signal) -> Outcome {
    let pid = Pid::from_raw(number as i32).ok_or("no process")?;
    Ok(kill_process(pid, signal)?)
}

fn killed(world: &mut World) -> Outcome {
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let number = carrier(world)?;
    for _ in 0..3 {
        world.kill()?;
        is_there(number)?;
        traffic.is_alive("without an agent")?;
        start(world, &[])?;
        world.logged(&["linked to the process that carries connections", &format!("process={number}")])?;
        traffic.is_alive("with another agent")?;
    }
    // What the last one was not told is told by the next.
    world.kill()?;
    world.delete("web-v4.yaml");
    start(world, &[])?;
    world.reaches_nobody(web())?;
    world.apply("web-v4.yaml", &crate::objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.reaches(web(), &["pod1b"])
}

fn stopped(world: &mut World) -> Outcome {
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let number = carrier(world)?;
    let doors = |world: &World| world.nft(&["list", "map", "ip", "portway", "endpoints"]);
    let pod = world.pod_ips("pod1a")[0].to_string();
    ensure(!doors(world)?.contains(&pod), || "the rules lead to pods".to_owned())?;
    world.stop()?;
    let map = doors(world)?;
    ensure(map.contains(&pod), || format!("the rules do not lead to pods:\n{map}"))?;
    traffic.is_alive("after the agent has stopped")?;
    is_there(number)?;
    traffic.end()?;
    is_gone(number)?;
    world.web_works()?;
    start(world, &[])?;
    Traffic::begin(world)?.end()
}

fn carrier_killed(world: &mut World) -> Outcome {
    udp::dns(world, "dns", "10.96.0.53", &["pod1a", "pod1b"]);
    start(world, &[])?;
    world.web_works()?;
    let number = carrier(world)?;
    let rules = |world: &World| -> Result<[String; 2], Failed> {
        let map = |family| world.nft(&["list", "map", family, "portway", "endpoints"]);
        Ok([map("ip")?, map("ip6")?])
    };
    let before = rules(world)?;
    let mut flow = udp::ask(world, "10.96.0.53:53".parse()?)?;
    signal(number, Signal::KILL)?;
    // Whoever finds out first must not keep it to themselves.
    world.status("/metrics")?;
    another(world, number)?;
    world.web_works()?;
    is_gone(number)?;
    // Its doors are where the other's were, so no rule had to change, and the kernel leads flows on.
    let after = rules(world)?;
    ensure(before == after, || format!("rules changed from {before:?} to {after:?}"))?;
    let answer = flow.ask("still there?");
    ensure(answer.is_ok(), || format!("the UDP flow: {answer:?}"))
}

/// The next change finds that it is gone, before anybody has looked.
fn carrier_killed_in_between(world: &mut World) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let number = carrier(world)?;
    let doors = |world: &World| -> Result<Vec<String>, Failed> {
        let map = world.nft(&["list", "map", "ip", "portway", "endpoints"])?;
        let node = world.node_ips()[0].to_string();
        let mut doors: Vec<String> = map
            .split(&[',', '\n'])
            .filter_map(|e| e.split_once(&format!(": {node} . ")))
            .map(|(_, port)| port.trim().to_owned())
            .collect();
        doors.sort();
        doors.dedup();
        Ok(doors)
    };
    let before = doors(world)?;
    ensure(!before.is_empty(), || "no doors".to_owned())?;
    signal(number, Signal::KILL)?;
    crate::switch::follows_changes(world)?;
    world.web_works()?;
    let after = doors(world)?;
    ensure(before == after, || format!("doors were at {before:?} and are at {after:?}"))?;
    let log = world.agent()?.log().to_string();
    ensure(!log.contains("nobody carries"), || log.clone())?;
    is_there(carrier(world)?)
}

fn cleaned(world: &mut World) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let number = carrier(world)?;
    // As a network plugin has it: the kernel goes on translating open connections as long as anybody does.
    world.nft(&["add", "table", "ip", "plugin"])?;
    world.nft(&["add", "chain", "ip", "plugin", "post", "{ type nat hook postrouting priority 100 ; }"])?;
    world.nft(&["add", "rule", "ip", "plugin", "post", "ip saddr 203.0.113.0/24 masquerade"])?;
    let mut conversation = open(world, web())?;
    world.kill()?;
    let said = String::from_utf8(world.portway(&["cleanup", "--dry-run"])?.stdout)?;
    ensure(said.contains("would remove userspace: the process that carries connections"), || said.clone())?;
    let said = String::from_utf8(world.portway(&["cleanup"])?.stdout)?;
    ensure(said.contains("removed userspace: the process that carries connections"), || said.clone())?;
    let answer = conversation.ask("still there?");
    ensure(answer.is_ok(), || format!("the open connection: {answer:?}"))?;
    drop(conversation);
    is_gone(number)?;
    let said = String::from_utf8(world.portway(&["cleanup", "--dry-run"])?.stdout)?;
    ensure(said.contains("nothing to remove"), || said.clone())
}

/// One that is started while another runs, as a rolling update may do it, and stays when the other is told to stop.
fn twice(world: &mut World) -> Outcome {
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let number = carrier(world)?;
    let mut command = std::process::Command::new(crate::world::PORTWAY);
    command.arg("proxy").args(world.flags()).arg("--proxy-mode=userspace");
    let mut second = portway_lab::Agent::run(world.node(), command)?;
    second.wait_for(&format!("process={number}"), patience())?;
    // While both are there, both tell what changes.
    for _ in 0..3 {
        crate::switch::follows_changes(world)?;
        world.web_works()?;
    }
    world.stop()?;
    second.wait_for("synced", patience())?;
    is_there(number)?;
    traffic.is_alive("with the second agent")?;
    crate::switch::follows_changes(world)?;
    traffic.end()?;
    world.web_works()
}

fn private(world: &mut World) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let number = carrier(world)?;
    let inside = std::path::Path::new("/run/portway");
    let mode = std::fs::metadata(inside)?.permissions().mode() & 0o777;
    ensure(mode == 0o700, || format!("{} has mode {mode:o}", inside.display()))?;
    let namespace = std::fs::metadata(process(number).join("ns/net"))?.ino();
    let socket = inside.join(format!("carrier-{namespace}.socket"));
    let mode = std::fs::metadata(&socket)?.permissions().mode() & 0o777;
    ensure(mode == 0o600, || format!("{} has mode {mode:o}", socket.display()))?;
    world.stop()?;
    is_gone(number)?;
    for left in [&socket, &socket.with_extension("lock")] {
        ensure(!left.exists(), || format!("{} is left behind", left.display()))?;
    }
    // One that is killed cannot tidy up; the next one does.
    start(world, &[])?;
    let killed = carrier(world)?;
    world.kill()?;
    signal(killed, Signal::KILL)?;
    is_gone(killed)?;
    world.portway(&["cleanup"])?;
    ensure(!socket.exists(), || format!("{} is left behind", socket.display()))
}

/// The Node object names an address that is not there, then one that goes.
fn addresses(world: &mut World) -> Outcome {
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
    let there = || match world.nft(&["list", "map", "ip", "portway", "endpoints"]) {
        Ok(map) if map.contains("192.168.50.77") => Ok(()),
        other => Err(format!("doors are elsewhere: {other:?}")),
    };
    eventually(patience(), there)?;
    world.web_works()?;
    world.remove_address("192.168.50.77/24")?;
    world.web_works()
}

fn directly(world: &mut World) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let number = carrier(world)?;
    // Ports it listens at, from the node's own table.
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
    let doors: Vec<SocketAddr> = table.lines().filter_map(listening).collect();
    ensure(doors.len() == 2, || format!("doors: {doors:?}\n{table}"))?;
    // Nobody without privileges could have listened there before us.
    ensure(doors.iter().all(|door| door.port() < 1024), || format!("doors: {doors:?}"))?;
    for door in doors {
        let got = world.client().run(|| {
            let mut stream = TcpStream::connect(door)?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.read(&mut [0; 16])
        });
        let reset = got.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
        ensure(reset, || format!("{door}: {got:?}"))?;
    }
    Ok(())
}

/// As a service manager does it that ends all processes of a service.
fn both_signalled(world: &mut World) -> Outcome {
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let number = carrier(world)?;
    signal(number, Signal::TERM)?;
    world.stop()?;
    traffic.is_alive("after both were told to end")?;
    traffic.end()?;
    is_gone(number)
}

fn tampered(world: &mut World) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    world.nft(&["flush", "map", "ip", "portway", "endpoints"])?;
    world.logged(&["WARN", "repaired our rules", "missing"])?;
    world.web_works()?;
    world.nft(&["delete", "table", "ip6", "portway"])?;
    world.logged(&["WARN", "repaired our rules", "family=IPv6"])?;
    world.web_works()
}
