//! The node's own addresses: node ports have a virtual server at each, and the addresses stay on their links.

use super::{becomes, start};
use crate::agent_lab::{AgentLab, NODE_PORT};
use crate::{Outcome, Test, ensure, objects};
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = &[
    ("node_ports_follow_the_addresses_of_the_node", follow),
    ("node_ports_answer_at_configured_addresses_only", only),
    ("an_external_ip_that_the_node_owns_is_served_there", external),
    ("a_removed_pod_link_causes_no_repair", cable),
];

/// Waits until there is a server at an address, or none any more.
fn is_served(world: &AgentLab, server: &str, wanted: bool) -> Outcome {
    let there = |name: &String| name.starts_with(&format!("{server} "));
    becomes(|| world.servers(), |servers| servers.keys().any(there) == wanted).map(drop)
}

fn follow(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    for ip in world.node_ips() {
        world.reaches(SocketAddr::new(ip, NODE_PORT), &["pod1a", "pod1b"])?;
    }
    for (net, server, to) in [
        ("172.16.0.1/24", "TCP 172.16.0.1:30001", "172.16.0.1:30001"),
        ("fd16::1/64", "TCP [fd16::1]:30001", "[fd16::1]:30001"),
    ] {
        is_served(world, server, false)?;
        for _ in 0..2 {
            world.add_address(net)?;
            is_served(world, server, true)?;
            world.reaches(to.parse()?, &["pod1a", "pod1b"])?;
            world.remove_address(net)?;
            is_served(world, server, false)?;
        }
    }
    // It is not reported as drift.
    let log = world.agent()?.log().clone();
    ensure(!log.contains("repaired rules that another process had changed"), || log.to_string())?;
    let loopback = world.servers()?;
    let loopback = loopback.keys().find(|s| s.contains("127.0.0.1") || s.contains("[::1]"));
    ensure(loopback.is_none(), || format!("{loopback:?}"))?;
    world.web_works()
}

/// Each pod's cable has the same address at the node's end.
fn cable(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let compared = |world: &mut AgentLab| -> Result<usize, libtest_mimic::Failed> {
        Ok(world.agent()?.log().to_string().lines().filter(|line| line.contains("full=true")).count())
    };
    let before = compared(world)?;
    world.on_node("ip link delete veth-pod1b")?;
    // Until it was looked at twice.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let after = compared(world)?;
    ensure(before == after, || format!("everything was compared {after} times instead of {before}"))?;
    is_served(world, "TCP 10.244.1.1:30001", true)
}

fn only(world: &mut AgentLab) -> Outcome {
    start(world, &["--nodeport-addresses=192.168.50.0/24,172.17.0.0/16"])?;
    world.web_works()?;
    is_served(world, "TCP 192.168.50.11:30001", true)?;
    is_served(world, "TCP 10.244.1.1:30001", false)?;
    world.add_address("172.16.0.1/24")?;
    world.add_address("172.17.0.1/24")?;
    is_served(world, "TCP 172.17.0.1:30001", true)?;
    is_served(world, "TCP 172.16.0.1:30001", false)?;
    world.reaches("172.17.0.1:30001".parse()?, &["pod1a", "pod1b"])?;
    world.reaches_nobody("172.16.0.1:30001".parse()?)
}

fn external(world: &mut AgentLab) -> Outcome {
    world.apply("shop.yaml", &objects::service("shop", "10.96.0.60", "externalIPs: ['172.16.0.9']"));
    world.apply("shop-slice.yaml", &objects::slice("shop", "shop", &world.pod_ips("pod1a")[..1]));
    start(world, &[])?;
    let on_device =
        |wanted: bool| becomes(|| world.bound(), |bound| bound.contains("172.16.0.9/32") == wanted).map(drop);
    on_device(true)?;
    world.reaches("172.16.0.9:80".parse()?, &["pod1a"])?;
    for _ in 0..2 {
        world.add_address("172.16.0.9/24")?;
        on_device(false)?;
        world.reaches("172.16.0.9:80".parse()?, &["pod1a"])?;
        // What else answers there goes on answering.
        is_served(world, "TCP 172.16.0.9:30001", true)?;
        world.reaches("172.16.0.9:30001".parse()?, &["pod1a", "pod1b"])?;
        world.remove_address("172.16.0.9/24")?;
        on_device(true)?;
        is_served(world, "TCP 172.16.0.9:30001", false)?;
        world.reaches("172.16.0.9:80".parse()?, &["pod1a"])?;
    }
    let device = world.on_node("ip address show eth0")?;
    ensure(device.contains("192.168.50.11/24"), || format!("the node's own is gone:\n{device}"))
}
