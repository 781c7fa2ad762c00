//! Node ports at 127.0.0.1 (docs/semantics.md, section 3): they answer in the iptables mode, but not to adjacent hosts.

use crate::agent_lab::{AgentLab, NODE_PORT, wait_timeout};
use crate::tool::{Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Probe, eventually};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("node_ports_answer_at_localhost_and_are_counted_nf_tables", |lab| answers(lab, Nft)),
    ("node_ports_answer_at_localhost_and_are_counted_legacy", |lab| answers(lab, Legacy)),
    ("neighbours_cannot_reach_localhost_node_ports_nf_tables", |lab| martians(lab, Nft)),
    ("neighbours_cannot_reach_localhost_node_ports_legacy", |lab| martians(lab, Legacy)),
    ("localhost_node_ports_can_be_switched_while_running", switched_while_running),
    ("route_localnet_is_restored_when_the_mode_ends", restored),
    ("route_localnet_is_restored_when_the_mode_ends_with_a_kubelet", |lab| {
        lab.kubelet(Nft)?;
        restored(lab)
    }),
    ("route_localnet_that_was_on_before_stays_on", was_on_before),
    ("the_previous_route_localnet_is_restored_after_restart_and_flush", restored_after_restart),
];

const HEADER: &str =
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n";
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
/// A port of the node that only processes on the node may reach.
const PRIVATE_PORT: u16 = 9999;

fn localhost(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn route_localnet(lab: &AgentLab) -> Result<bool, Failed> {
    let text = lab.node().run(|| std::fs::read_to_string(ROUTE_LOCALNET))?;
    Ok(text.trim() == "1")
}

fn has_route_localnet(lab: &AgentLab, wanted: bool, when: &str) -> Outcome {
    eventually(wait_timeout(), || match route_localnet(lab) {
        Ok(on) if on == wanted => Ok(()),
        other => Err(format!("{when}: route_localnet is {other:?}")),
    })?;
    Ok(())
}

/// Waits until a node port answers on the node at 127.0.0.1.
fn answered(lab: &AgentLab, port: u16) -> Outcome {
    eventually(wait_timeout(), || {
        let outcome = Probe::tcp(lab.node(), localhost(port)).count(16).run();
        if outcome.all_answered() { Ok(()) } else { Err(format!("127.0.0.1:{port}: {outcome}")) }
    })?;
    Ok(())
}

/// Waits until connections to a node port at 127.0.0.1 are refused.
fn unanswered(lab: &AgentLab, port: u16) -> Outcome {
    eventually(wait_timeout(), || {
        let outcome = Probe::tcp(lab.node(), localhost(port)).count(4).run();
        if outcome.all_refused() { Ok(()) } else { Err(format!("127.0.0.1:{port}: {outcome}")) }
    })?;
    Ok(())
}

fn answers(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    let spec = "type: NodePort\nexternalTrafficPolicy: Local";
    let shop = objects::service("shop", "10.96.0.60", spec);
    lab.apply("shop.yaml", &shop.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30002"));
    lab.apply("shop-slice.yaml", &objects::slice("shop", "shop", &lab.pod_ips("pod1a")[..1]));
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    let accepted = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total";
    ensure(lab.metrics()?.value(accepted) == 0.0, || "packets were counted before a connection".to_owned())?;
    answered(lab, NODE_PORT)?;
    has_route_localnet(lab, true, "running")?;
    let first = lab.metric(accepted, |n| n >= 16.0)?;
    answered(lab, 30002)?;
    lab.metric(accepted, |n| n >= first + 16.0)?;
    // Connections to other addresses are not counted, and node ports do not answer at ::1.
    let before = lab.metrics()?.value(accepted);
    lab.reaches(SocketAddr::new(lab.node_ips()[0], NODE_PORT), &["pod1a", "pod1b"])?;
    let outcome = Probe::tcp(lab.node(), SocketAddr::new(Ipv6Addr::LOCALHOST.into(), NODE_PORT)).run();
    ensure(outcome.answered() == 0, || format!("[::1]: {outcome}"))?;
    let after = lab.metrics()?.value(accepted);
    ensure(after == before, || format!("{} connections to other addresses were counted", after - before))
}

/// CVE-2020-8558: an adjacent host without 127.0.0.1 on its loopback device sends packets for 127.0.0.1 to the node.
fn martians(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    lab.serve_on_node(PRIVATE_PORT)?;
    let node = lab.node_ips()[0].to_string();
    let on_client = |arguments: &[&str]| lab.client_runs("ip", arguments);
    on_client(&["address", "del", "127.0.0.1/8", "dev", "lo"])?;
    lab.client().run(|| std::fs::write(ROUTE_LOCALNET, "1"))?;
    let own: IpAddr = lab.client_ips()[0];
    on_client(&["route", "add", "127.0.0.0/8", "via", &node, "src", &own.to_string()])?;
    let attack = || {
        Probe::tcp(lab.client(), localhost(PRIVATE_PORT)).count(4).timeout(Duration::from_millis(250)).run()
    };
    // Without a proxy and without the kubelet's rule, such packets are accepted if route_localnet is on. This shows
    // that the attack of this test works.
    lab.iptables(variant, &["-F", "KUBE-FIREWALL"])?;
    lab.node().run(|| std::fs::write(ROUTE_LOCALNET, "1"))?;
    let outcome = attack();
    ensure(outcome.all_answered(), || format!("the attack does not work: {outcome}"))?;
    lab.node().run(|| std::fs::write(ROUTE_LOCALNET, "0"))?;
    ensure(attack().answered() == 0, || "the attack works without route_localnet".to_owned())?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    has_route_localnet(lab, true, "running")?;
    let outcome =
        Probe::tcp(lab.client(), localhost(PRIVATE_PORT)).count(4).timeout(Duration::from_millis(250)).run();
    ensure(outcome.all_timed_out(), || format!("an adjacent host was answered: {outcome}"))?;
    let outcome = Probe::tcp(lab.node(), localhost(PRIVATE_PORT)).count(4).run();
    ensure(outcome.all_answered(), || format!("on the node itself: {outcome}"))
}

fn switched_while_running(lab: &mut AgentLab) -> Outcome {
    lab.write("config.yaml", &format!("{HEADER}iptables: {{localhostNodePorts: false}}\n"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    lab.web_works()?;
    unanswered(lab, NODE_PORT)?;
    ensure(!route_localnet(lab)?, || "route_localnet was set without need".to_owned())?;
    let rules = lab.save(Nft, "iptables")?;
    ensure(!rules.contains("KUBE-FIREWALL"), || format!("KUBE-FIREWALL was created without need:\n{rules}"))?;
    for on in [true, false] {
        lab.write("config.yaml", &format!("{HEADER}iptables: {{localhostNodePorts: {on}}}\n"));
        if on {
            answered(lab, NODE_PORT)?;
        } else {
            unanswered(lab, NODE_PORT)?;
        }
        has_route_localnet(lab, on, "changed")?;
    }
    let rules = lab.save(Nft, "iptables")?;
    ensure(!rules.contains("KUBE-FIREWALL"), || format!("KUBE-FIREWALL was left behind:\n{rules}"))?;
    lab.web_works()
}

fn restored(lab: &mut AgentLab) -> Outcome {
    ensure(!route_localnet(lab)?, || "route_localnet is on in a new namespace".to_owned())?;
    lab.start(&["--proxy-mode=iptables"])?;
    answered(lab, NODE_PORT)?;
    has_route_localnet(lab, true, "running")?;
    lab.stop()?;
    has_route_localnet(lab, true, "stopped, with the rules in place")?;
    cleanup(lab)?;
    has_route_localnet(lab, false, "after cleanup")?;
    // A change of the mode restores it as well.
    lab.start(&["--proxy-mode=iptables"])?;
    answered(lab, NODE_PORT)?;
    lab.stop()?;
    lab.start(&["--proxy-mode=nftables"])?;
    has_route_localnet(lab, false, "in another mode")?;
    lab.web_works()?;
    // The previous value is no longer stored: later changes by an administrator stay.
    lab.stop()?;
    lab.node().run(|| std::fs::write(ROUTE_LOCALNET, "1"))?;
    cleanup(lab)?;
    has_route_localnet(lab, true, "set by an administrator")
}

fn cleanup(lab: &AgentLab) -> Outcome {
    let output = lab.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())
}

fn was_on_before(lab: &mut AgentLab) -> Outcome {
    lab.node().run(|| std::fs::write(ROUTE_LOCALNET, "1"))?;
    lab.start(&["--proxy-mode=iptables"])?;
    answered(lab, NODE_PORT)?;
    lab.stop()?;
    lab.start(&["--proxy-mode=nftables"])?;
    lab.web_works()?;
    lab.logged(&["removed leftovers of a previous proxy mode", "location=\"iptables"])?;
    ensure(route_localnet(lab)?, || "the mode change turned it off".to_owned())?;
    lab.stop()?;
    cleanup(lab)?;
    ensure(route_localnet(lab)?, || "cleanup turned it off".to_owned())
}

fn restored_after_restart(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--proxy-mode=iptables"])?;
    answered(lab, NODE_PORT)?;
    lab.stop()?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.logged(&["synced", "family=IPv6"])?;
    lab.iptables(Nft, &["-F"])?;
    lab.logged(&["repaired rules that another process had changed", "family=IPv4"])?;
    answered(lab, NODE_PORT)?;
    lab.stop()?;
    cleanup(lab)?;
    has_route_localnet(lab, false, "after cleanup")
}
