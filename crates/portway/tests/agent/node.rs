//! Nodes that are not as one would like: without IPv6, without a Node object.

use crate::agent_lab::{AgentLab, NODE_PORT, PORTWAY, patience};
use crate::http::Page;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Probe, eventually};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    ("ipv4_works_where_ipv6_is_disabled", without_ipv6),
    ("a_kernel_without_ipv6_is_programmed_for_ipv4", no_ipv6),
    ("disabling_ipv6_does_not_affect_ipv4", ipv6_goes),
    ("node_ports_do_not_answer_on_loopback", loopback),
    ("without_a_node_object_its_addresses_are_found", no_node_object),
    ("an_address_added_later_is_used", later_address),
];

fn switch_ipv6_off(world: &AgentLab) -> std::io::Result<()> {
    world.node().run(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))
}

/// IPv4 in all its ways: cluster IP, node port, changes, health.
fn ipv4_works(world: &mut AgentLab) -> Outcome {
    let node_port = SocketAddr::new(world.node_ips()[0], NODE_PORT);
    world.reaches("10.96.0.1:80".parse()?, &["pod1a", "pod1b"])?;
    world.reaches(node_port, &["pod1a", "pod1b"])?;
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let healthy = || {
        world.health("/healthz").and_then(|p| if p.status == 200 { Ok(()) } else { Err(format!("{p:?}")) })
    };
    eventually(patience(), healthy)?;
    let failures =
        world.metrics()?.value("kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"}");
    ensure(failures == 0.0, || format!("{failures} failed syncs"))
}

fn without_ipv6(world: &mut AgentLab) -> Outcome {
    switch_ipv6_off(world)?;
    // A Node that has lost its IPv6 and does not know it yet, and a load balancer that asks by IPv4.
    let spec = "type: LoadBalancer\nexternalTrafficPolicy: Local\nhealthCheckNodePort: 30500";
    world.apply("shop.yaml", &objects::service("shop", "10.96.0.60", spec));
    world.apply("shop-slice.yaml", &objects::slice("shop", "shop", &world.pod_ips("pod1a")[..1]));
    world.start(&[])?;
    ipv4_works(world)?;
    let check = SocketAddr::new(world.node_ips()[0], 30500);
    let page = eventually(patience(), || Page::get(world.client(), check, "/"))?;
    ensure(page.status == 200, || format!("{page:?}"))
}

/// A kernel without IPv6 has no list of its addresses; an empty `/proc` is as good as such a kernel, and has nothing
/// else to read or to set either.
fn no_ipv6(world: &mut AgentLab) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh", PORTWAY, "proxy"]);
    command.args(world.flags());
    world.start_as(command)?;
    world.logged(&["this kernel has no IPv6, or it is off: only IPv4 is programmed"])?;
    ipv4_works(world)?;
    let tables = world.nft(&["list", "tables"])?;
    ensure(tables.trim() == "table ip portway", || format!("other tables than ours for IPv4:\n{tables}"))?;
    // A family that is not programmed is not waited for: it would make the health check fail later.
    let page = world.health("/livez")?.json()?;
    let families: Vec<&String> = page["status"].as_object().into_iter().flat_map(|s| s.keys()).collect();
    ensure(families == ["IPv4"], || page.to_string())
}

fn ipv6_goes(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    switch_ipv6_off(world)?;
    ipv4_works(world)
}

fn loopback(world: &mut AgentLab) -> Outcome {
    world.start(&["--nodeport-addresses=0.0.0.0/0,::/0"])?;
    world.web_works()?;
    for ip in world.node_ips() {
        let outcome = Probe::tcp(world.node(), SocketAddr::new(ip, NODE_PORT)).count(8).run();
        ensure(outcome.all_answered(), || format!("{ip}: {outcome}"))?;
    }
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 1, 2, 3).into(), Ipv6Addr::LOCALHOST.into()] {
        let outcome = Probe::tcp(world.node(), SocketAddr::new(ip, NODE_PORT)).count(4).run();
        ensure(outcome.answered() == 0, || format!("{ip}: {outcome}"))?;
    }
    Ok(())
}

fn no_node_object(world: &mut AgentLab) -> Outcome {
    world.delete("node1.yaml");
    world.start(&[])?;
    world.web_works()?;
    for ip in world.node_ips() {
        world.reaches(SocketAddr::new(ip, NODE_PORT), &["pod1a", "pod1b"])?;
    }
    // Primary only: the node's address towards its pods is not one that node ports answer on.
    let gateway = SocketAddr::new([10, 244, 1, 1].into(), NODE_PORT);
    let outcome = Probe::tcp(world.client(), gateway).run();
    ensure(outcome.answered() == 0, || format!("{gateway}: {outcome}"))?;
    // Load balancers are to send elsewhere; the kubelet has no reason to restart us.
    let [healthz, livez] = [world.health("/healthz")?, world.health("/livez")?];
    ensure(healthz.status == 503 && livez.status == 200, || format!("{healthz:?} {livez:?}"))
}

fn later_address(world: &mut AgentLab) -> Outcome {
    let spec = "type: LoadBalancer\nexternalTrafficPolicy: Local\nhealthCheckNodePort: 30500";
    world.apply("shop.yaml", &objects::service("shop", "10.96.0.60", spec));
    world.apply("shop-slice.yaml", &objects::slice("shop", "shop", &world.pod_ips("pod1a")[..1]));
    world.start(&["--nodeport-addresses=192.168.50.0/24,172.16.0.0/16", "--nftables-sync-period=500ms"])?;
    let ask = |ip: IpAddr| Page::get(world.client(), SocketAddr::new(ip, 30500), "/");
    eventually(patience(), || ask(world.node_ips()[0]))?;
    let later: IpAddr = [172, 16, 0, 1].into();
    world.add_address("172.16.0.1/24")?;
    let page = eventually(patience(), || ask(later))?;
    ensure(page.status == 200, || format!("{page:?}"))
}
