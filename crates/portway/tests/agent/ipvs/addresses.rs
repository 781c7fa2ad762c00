//! Addresses of the node: node ports have a virtual server at each, and the addresses stay on their links.

use super::{start, wait_until};
use crate::agent_lab::{AgentLab, NODE_PORT};
use crate::{Outcome, Test, ensure, objects};
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = &[
    ("node_ports_follow_the_addresses_of_the_node", node_addresses),
    ("node_ports_answer_at_configured_addresses_only", configured_addresses),
    ("an_external_ip_that_the_node_owns_is_served_there", external_ip),
    ("node_ports_answer_at_localhost", |lab| {
        crate::localhost::answers(lab, &["--proxy-mode=ipvs", "--nodeport-addresses=localhost,primary"])
    }),
    ("a_removed_pod_link_causes_no_repair", removed_link),
];

/// Waits until a virtual server exists, or does not exist.
fn is_served(lab: &AgentLab, server: &str, wanted: bool) -> Outcome {
    let is_it = |name: &String| name.starts_with(&format!("{server} "));
    wait_until(|| lab.servers(), |servers| servers.keys().any(is_it) == wanted).map(drop)
}

fn node_addresses(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    for ip in lab.node_ips() {
        lab.reaches(SocketAddr::new(ip, NODE_PORT), &["pod1a", "pod1b"])?;
    }
    for (net, server, to) in [
        ("172.16.0.1/24", "TCP 172.16.0.1:30001", "172.16.0.1:30001"),
        ("fd16::1/64", "TCP [fd16::1]:30001", "[fd16::1]:30001"),
    ] {
        is_served(lab, server, false)?;
        for _ in 0..2 {
            lab.add_address(net)?;
            is_served(lab, server, true)?;
            lab.reaches(to.parse()?, &["pod1a", "pod1b"])?;
            lab.remove_address(net)?;
            is_served(lab, server, false)?;
        }
    }
    // The changes are not reported as drift.
    let log = lab.agent()?.log().clone();
    ensure(!log.contains("repaired rules that another process had changed"), || log.to_string())?;
    let loopback = lab.servers()?;
    let loopback = loopback.keys().find(|s| s.contains("127.0.0.1") || s.contains("[::1]"));
    ensure(loopback.is_none(), || format!("{loopback:?}"))?;
    lab.web_works()
}

/// All links to pods have the same address on the node's end, so removing one does not remove the address.
fn removed_link(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let full_syncs = |lab: &mut AgentLab| -> Result<usize, libtest_mimic::Failed> {
        Ok(lab.agent()?.log().to_string().lines().filter(|line| line.contains("full=true")).count())
    };
    let before = full_syncs(lab)?;
    lab.on_node("ip link delete veth-pod1b")?;
    // Long enough for two checks.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let after = full_syncs(lab)?;
    ensure(before == after, || format!("{after} full syncs instead of {before}"))?;
    is_served(lab, "TCP 10.244.1.1:30001", true)
}

fn configured_addresses(lab: &mut AgentLab) -> Outcome {
    start(lab, &["--nodeport-addresses=192.168.50.0/24,172.17.0.0/16"])?;
    lab.web_works()?;
    is_served(lab, "TCP 192.168.50.11:30001", true)?;
    is_served(lab, "TCP 10.244.1.1:30001", false)?;
    lab.add_address("172.16.0.1/24")?;
    lab.add_address("172.17.0.1/24")?;
    is_served(lab, "TCP 172.17.0.1:30001", true)?;
    is_served(lab, "TCP 172.16.0.1:30001", false)?;
    lab.reaches("172.17.0.1:30001".parse()?, &["pod1a", "pod1b"])?;
    lab.reaches_no_pod("172.16.0.1:30001".parse()?)
}

fn external_ip(lab: &mut AgentLab) -> Outcome {
    lab.apply("shop.yaml", &objects::service("shop", "10.96.0.60", "externalIPs: ['172.16.0.9']"));
    lab.apply("shop-slice.yaml", &objects::slice("shop", "shop", &lab.pod_ips("pod1a")[..1]));
    start(lab, &[])?;
    let on_device = |wanted: bool| {
        wait_until(|| lab.bound(), |bound| bound.contains("172.16.0.9/32") == wanted).map(drop)
    };
    on_device(true)?;
    lab.reaches("172.16.0.9:80".parse()?, &["pod1a"])?;
    for _ in 0..2 {
        lab.add_address("172.16.0.9/24")?;
        on_device(false)?;
        lab.reaches("172.16.0.9:80".parse()?, &["pod1a"])?;
        // Node ports answer at this address as well.
        is_served(lab, "TCP 172.16.0.9:30001", true)?;
        lab.reaches("172.16.0.9:30001".parse()?, &["pod1a", "pod1b"])?;
        lab.remove_address("172.16.0.9/24")?;
        on_device(true)?;
        is_served(lab, "TCP 172.16.0.9:30001", false)?;
        lab.reaches("172.16.0.9:80".parse()?, &["pod1a"])?;
    }
    let device = lab.on_node("ip address show eth0")?;
    ensure(device.contains("192.168.50.11/24"), || format!("the node's address was removed:\n{device}"))
}
