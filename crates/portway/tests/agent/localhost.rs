//! Node ports at 127.0.0.1 (docs/semantics.md, section 3): there in the iptables mode, and not for neighbours.

use crate::agent_lab::{AgentLab, NODE_PORT, patience};
use crate::tool::{Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Probe, eventually};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("node_ports_answer_at_localhost_and_are_counted_nf_tables", |world| answers(world, Nft)),
    ("node_ports_answer_at_localhost_and_are_counted_legacy", |world| answers(world, Legacy)),
    ("neighbours_cannot_reach_localhost_node_ports_nf_tables", |world| martians(world, Nft)),
    ("neighbours_cannot_reach_localhost_node_ports_legacy", |world| martians(world, Legacy)),
    ("localhost_node_ports_can_be_switched_while_running", live),
    ("route_localnet_is_restored_when_the_mode_ends", ends_with_the_mode),
    ("route_localnet_is_restored_when_the_mode_ends_with_a_kubelet", |world| {
        world.kubelet(Nft)?;
        ends_with_the_mode(world)
    }),
    ("route_localnet_that_was_on_before_stays_on", was_on_before),
    ("the_previous_route_localnet_survives_restart_and_flush", remembered),
];

const HEADER: &str =
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n";
const SETTING: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
/// A port that is there for this machine alone.
const PRIVATE: u16 = 9999;

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn routed(world: &AgentLab) -> Result<bool, Failed> {
    let text = world.node().run(|| std::fs::read_to_string(SETTING))?;
    Ok(text.trim() == "1")
}

fn is_routed(world: &AgentLab, wanted: bool, when: &str) -> Outcome {
    eventually(patience(), || match routed(world) {
        Ok(on) if on == wanted => Ok(()),
        other => Err(format!("{when}: route_localnet on is {other:?}")),
    })?;
    Ok(())
}

/// Waits until a node port answers on the node at 127.0.0.1.
fn answered(world: &AgentLab, port: u16) -> Outcome {
    eventually(patience(), || {
        let outcome = Probe::tcp(world.node(), at(port)).count(16).run();
        if outcome.all_answered() { Ok(()) } else { Err(format!("127.0.0.1:{port}: {outcome}")) }
    })?;
    Ok(())
}

/// Waits until none answers.
fn unanswered(world: &AgentLab, port: u16) -> Outcome {
    eventually(patience(), || {
        let outcome = Probe::tcp(world.node(), at(port)).count(4).run();
        if outcome.all_refused() { Ok(()) } else { Err(format!("127.0.0.1:{port}: {outcome}")) }
    })?;
    Ok(())
}

fn answers(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    let spec = "type: NodePort\nexternalTrafficPolicy: Local";
    let shop = objects::service("shop", "10.96.0.60", spec);
    world.apply("shop.yaml", &shop.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30002"));
    world.apply("shop-slice.yaml", &objects::slice("shop", "shop", &world.pod_ips("pod1a")[..1]));
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()?;
    let accepted = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total";
    ensure(world.metrics()?.value(accepted) == 0.0, || {
        "counted before there was anything to count".to_owned()
    })?;
    answered(world, NODE_PORT)?;
    is_routed(world, true, "running")?;
    let first = world.metric(accepted, |n| n >= 16.0)?;
    answered(world, 30002)?;
    world.metric(accepted, |n| n >= first + 16.0)?;
    // What comes elsewhere is not counted, and in IPv6 there is no such thing.
    let before = world.metrics()?.value(accepted);
    world.reaches(SocketAddr::new(world.node_ips()[0], NODE_PORT), &["pod1a", "pod1b"])?;
    let outcome = Probe::tcp(world.node(), SocketAddr::new(Ipv6Addr::LOCALHOST.into(), NODE_PORT)).run();
    ensure(outcome.answered() == 0, || format!("[::1]: {outcome}"))?;
    let after = world.metrics()?.value(accepted);
    ensure(after == before, || format!("{} too many were counted", after - before))
}

/// CVE-2020-8558: a neighbour that has no 127.0.0.1 of its own sends packets for it to the node.
fn martians(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    world.serve_on_node(PRIVATE)?;
    let node = world.node_ips()[0].to_string();
    let neighbour = |arguments: &[&str]| world.client_runs("ip", arguments);
    neighbour(&["address", "del", "127.0.0.1/8", "dev", "lo"])?;
    world.client().run(|| std::fs::write(SETTING, "1"))?;
    let own: IpAddr = world.client_ips()[0];
    neighbour(&["route", "add", "127.0.0.0/8", "via", &node, "src", &own.to_string()])?;
    let attack =
        || Probe::tcp(world.client(), at(PRIVATE)).count(4).timeout(Duration::from_millis(250)).run();
    // Without a proxy: where packets to 127.0.0.1 are routed, it works. So much for this test. The kubelet's own rule
    // would keep them out.
    world.iptables(variant, &["-F", "KUBE-FIREWALL"])?;
    world.node().run(|| std::fs::write(SETTING, "1"))?;
    let outcome = attack();
    ensure(outcome.all_answered(), || format!("the way in does not lead in: {outcome}"))?;
    world.node().run(|| std::fs::write(SETTING, "0"))?;
    ensure(attack().answered() == 0, || "the way in does not need route_localnet".to_owned())?;
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()?;
    is_routed(world, true, "running")?;
    let outcome = Probe::tcp(world.client(), at(PRIVATE)).count(4).timeout(Duration::from_millis(250)).run();
    ensure(outcome.all_timed_out(), || format!("a neighbour got in: {outcome}"))?;
    let outcome = Probe::tcp(world.node(), at(PRIVATE)).count(4).run();
    ensure(outcome.all_answered(), || format!("on the node itself: {outcome}"))
}

fn live(world: &mut AgentLab) -> Outcome {
    world.write("config.yaml", &format!("{HEADER}iptables: {{localhostNodePorts: false}}\n"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    world.web_works()?;
    unanswered(world, NODE_PORT)?;
    ensure(!routed(world)?, || "route_localnet was set for nothing".to_owned())?;
    let rules = world.save(Nft, "iptables")?;
    ensure(!rules.contains("KUBE-FIREWALL"), || format!("a chain for nothing:\n{rules}"))?;
    for on in [true, false] {
        world.write("config.yaml", &format!("{HEADER}iptables: {{localhostNodePorts: {on}}}\n"));
        if on {
            answered(world, NODE_PORT)?;
        } else {
            unanswered(world, NODE_PORT)?;
        }
        is_routed(world, on, "changed")?;
    }
    let rules = world.save(Nft, "iptables")?;
    ensure(!rules.contains("KUBE-FIREWALL"), || format!("left behind:\n{rules}"))?;
    world.web_works()
}

fn ends_with_the_mode(world: &mut AgentLab) -> Outcome {
    ensure(!routed(world)?, || "this lab has it on anyway".to_owned())?;
    world.start(&["--proxy-mode=iptables"])?;
    answered(world, NODE_PORT)?;
    is_routed(world, true, "running")?;
    world.stop()?;
    is_routed(world, true, "stopped, with the rules in place")?;
    cleanup(world)?;
    is_routed(world, false, "after cleanup")?;
    // The same, by another mode.
    world.start(&["--proxy-mode=iptables"])?;
    answered(world, NODE_PORT)?;
    world.stop()?;
    world.start(&["--proxy-mode=nftables"])?;
    is_routed(world, false, "in another mode")?;
    world.web_works()?;
    // The previous value is no longer stored: later changes by an administrator stay.
    world.stop()?;
    world.node().run(|| std::fs::write(SETTING, "1"))?;
    cleanup(world)?;
    is_routed(world, true, "set by somebody else")
}

fn cleanup(world: &AgentLab) -> Outcome {
    let output = world.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())
}

fn was_on_before(world: &mut AgentLab) -> Outcome {
    world.node().run(|| std::fs::write(SETTING, "1"))?;
    world.start(&["--proxy-mode=iptables"])?;
    answered(world, NODE_PORT)?;
    world.stop()?;
    world.start(&["--proxy-mode=nftables"])?;
    world.web_works()?;
    world.logged(&["removed leftovers of a previous proxy mode", "location=iptables"])?;
    ensure(routed(world)?, || "a switch turned it off".to_owned())?;
    world.stop()?;
    cleanup(world)?;
    ensure(routed(world)?, || "cleanup turned it off".to_owned())
}

fn remembered(world: &mut AgentLab) -> Outcome {
    world.start(&["--proxy-mode=iptables"])?;
    answered(world, NODE_PORT)?;
    world.stop()?;
    world.start(&["--proxy-mode=iptables"])?;
    world.logged(&["synced", "family=IPv6"])?;
    world.iptables(Nft, &["-F"])?;
    world.logged(&["repaired rules that another process had changed", "family=IPv4"])?;
    answered(world, NODE_PORT)?;
    world.stop()?;
    cleanup(world)?;
    is_routed(world, false, "after cleanup")
}
