//! Node ports at loopback addresses (docs/semantics.md, section 3): the relay serves them in every mode, and no other host
//! reaches them.

use crate::agent_lab::{AgentLab, NODE_PORT, wait_timeout};
use crate::tool::{Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Probe, Protocol, eventually};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("without_a_mode_node_ports_answer_at_every_address_and_at_localhost", without_a_mode),
    ("node_ports_answer_at_localhost_in_mode_iptables", |lab| answers(lab, &["--proxy-mode=iptables"])),
    ("node_ports_answer_at_localhost_in_mode_nftables", |lab| {
        answers(lab, &["--proxy-mode=nftables", "--nodeport-addresses=localhost,primary"])
    }),
    ("node_ports_answer_at_localhost_in_mode_userspace", |lab| {
        answers(lab, &["--proxy-mode=userspace", "--nodeport-addresses=localhost,primary"])
    }),
    ("udp_flows_at_localhost_leave_a_removed_endpoint", udp_flow),
    ("neighbours_cannot_reach_loopback_addresses", |lab| martians(lab, Nft)),
    ("neighbours_cannot_reach_loopback_addresses_legacy", |lab| martians(lab, Legacy)),
    ("localhost_node_ports_can_be_switched_while_running", switched_while_running),
    ("localhost_node_ports_survive_the_agent", survive_the_agent),
    ("localhost_node_ports_follow_changes_of_services_and_modes", follow_changes),
    ("a_node_port_that_another_process_has_is_reported_and_served_later", taken_port),
    ("route_localnet_that_was_on_before_stays_on", was_on_before),
];

const HEADER: &str =
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n";
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
/// A port of the node that only processes on the node may reach.
const PRIVATE_PORT: u16 = 9999;
/// The node port of Service `shop`.
const SHOP_PORT: u16 = 30002;

pub(crate) fn localhost(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn localhost_v6(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)
}

fn route_localnet(lab: &AgentLab) -> Result<bool, Failed> {
    let text = lab.node().run(|| std::fs::read_to_string(ROUTE_LOCALNET))?;
    Ok(text.trim() == "1")
}

/// Waits until a node port answers on the node at an address.
pub(crate) fn answered(lab: &AgentLab, at: SocketAddr) -> Outcome {
    eventually(wait_timeout(), || {
        let outcome = Probe::tcp(lab.node(), at).count(16).run();
        if outcome.all_answered() { Ok(()) } else { Err(format!("{at}: {outcome}")) }
    })?;
    Ok(())
}

/// Waits until connections to an address on the node are refused.
fn unanswered(lab: &AgentLab, at: SocketAddr) -> Outcome {
    eventually(wait_timeout(), || {
        let outcome = Probe::tcp(lab.node(), at).count(4).run();
        if outcome.all_refused() { Ok(()) } else { Err(format!("{at}: {outcome}")) }
    })?;
    Ok(())
}

/// Adds Service `shop`, with policy `Local` and one endpoint, in IPv4.
fn apply_shop(lab: &AgentLab) {
    let spec = "type: NodePort\nexternalTrafficPolicy: Local";
    let shop = objects::service("shop", "10.96.0.60", spec);
    let node_port = format!("protocol: TCP\n    nodePort: {SHOP_PORT}");
    lab.apply("shop.yaml", &shop.replace("protocol: TCP", &node_port));
    lab.apply("shop-slice.yaml", &objects::slice("shop", "shop", &lab.pod_ips("pod1a")[..1]));
}

pub(crate) fn answers(lab: &mut AgentLab, flags: &[&str]) -> Outcome {
    apply_shop(lab);
    lab.start(flags)?;
    lab.web_works()?;
    let accepted = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total";
    answered(lab, localhost(NODE_PORT))?;
    let first = lab.metric(accepted, |n| n >= 16.0)?;
    answered(lab, localhost(SHOP_PORT))?;
    answered(lab, localhost_v6(NODE_PORT))?;
    lab.metric(accepted, |n| n >= first + 32.0)?;
    let listeners = "kubeproxy_nftables_localhost_nodeport_listeners";
    ensure(lab.metrics()?.value(&format!("{listeners}{{ip_family=\"IPv4\"}}")) == 2.0, || {
        "two in IPv4".into()
    })?;
    ensure(lab.metrics()?.value(&format!("{listeners}{{ip_family=\"IPv6\"}}")) == 1.0, || {
        "one in IPv6".into()
    })?;
    // The kernel serves the other addresses.
    let before = lab.metrics()?.value(accepted);
    lab.reaches(SocketAddr::new(lab.node_ips()[0], NODE_PORT), &["pod1a", "pod1b"])?;
    let after = lab.metrics()?.value(accepted);
    ensure(after == before, || format!("{} connections to other addresses were counted", after - before))?;
    ensure(!route_localnet(lab)?, || "route_localnet was set".to_owned())?;
    // Without endpoints the port is refused.
    lab.delete("shop-slice.yaml");
    unanswered(lab, localhost(SHOP_PORT))
}

fn udp_flow(lab: &mut AgentLab) -> Outcome {
    let [before, after] = ["pod1a", "pod1b"].map(|pod| objects::slice("dns", "dns", &lab.pod_ips(pod)[..1]));
    let service = objects::service("dns", "10.96.0.53", "type: NodePort");
    let port = format!("name: udp\n    port: 53\n    protocol: UDP\n    nodePort: {SHOP_PORT}");
    lab.apply("dns.yaml", &service.replace("port: 80\n    protocol: TCP", &port));
    lab.apply("dns-slice.yaml", &before);
    lab.start(&[])?;
    let begin = || {
        Conversation::begin(lab.node(), Protocol::Udp, localhost(SHOP_PORT), Duration::from_secs(1))
            .map_err(|e| e.to_string())
    };
    let mut flow = begin()?;
    let mut answered_by = |pod: &str| {
        eventually(wait_timeout(), || match flow.ask("who?") {
            Ok(reply) if reply.server == pod => Ok(()),
            other => Err(format!("{other:?}")),
        })
    };
    answered_by("pod1a")?;
    lab.apply("dns-slice.yaml", &after);
    answered_by("pod1b")?;
    Ok(())
}

/// As kube-proxy's default mode, iptables, does it.
fn without_a_mode(lab: &mut AgentLab) -> Outcome {
    lab.add_address("172.31.99.9/24")?;
    lab.start(&[])?;
    lab.logged(&["no mode is configured: using nftables with the defaults of kube-proxy's mode iptables"])?;
    lab.web_works()?;
    answered(lab, localhost(NODE_PORT))?;
    answered(lab, localhost_v6(NODE_PORT))?;
    answered(lab, SocketAddr::new("172.31.99.9".parse()?, NODE_PORT))?;
    answered(lab, SocketAddr::new(lab.node_ips()[1], NODE_PORT))
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
    let attack =
        |port| Probe::tcp(lab.client(), localhost(port)).count(4).timeout(Duration::from_millis(250)).run();
    // Without a proxy and without the kubelet's rule, such packets are accepted if route_localnet is on. This shows
    // that the attack of this test works.
    lab.iptables(variant, &["-F", "KUBE-FIREWALL"])?;
    lab.node().run(|| std::fs::write(ROUTE_LOCALNET, "1"))?;
    let outcome = attack(PRIVATE_PORT);
    ensure(outcome.all_answered(), || format!("the attack does not work: {outcome}"))?;
    lab.node().run(|| std::fs::write(ROUTE_LOCALNET, "0"))?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    answered(lab, localhost(NODE_PORT))?;
    for port in [PRIVATE_PORT, NODE_PORT] {
        let outcome =
            Probe::tcp(lab.client(), localhost(port)).count(4).timeout(Duration::from_millis(250)).run();
        ensure(outcome.all_timed_out(), || format!("an adjacent host was answered: {outcome}"))?;
    }
    let outcome = Probe::tcp(lab.node(), localhost(PRIVATE_PORT)).count(4).run();
    ensure(outcome.all_answered(), || format!("on the node itself: {outcome}"))
}

fn switched_while_running(lab: &mut AgentLab) -> Outcome {
    lab.write("config.yaml", &format!("{HEADER}iptables: {{localhostNodePorts: false}}\n"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    lab.web_works()?;
    unanswered(lab, localhost(NODE_PORT))?;
    for on in [true, false, true] {
        lab.write("config.yaml", &format!("{HEADER}iptables: {{localhostNodePorts: {on}}}\n"));
        if on {
            answered(lab, localhost(NODE_PORT))?;
        } else {
            unanswered(lab, localhost(NODE_PORT))?;
        }
    }
    let rules = lab.save(Nft, "iptables")?;
    ensure(!rules.contains("KUBE-FIREWALL"), || format!("KUBE-FIREWALL was created without need:\n{rules}"))?;
    lab.web_works()
}

fn cleanup(lab: &AgentLab) -> Outcome {
    let output = lab.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Like the rules of the mode, the listeners stay when the agent stops or is killed; cleanup ends them.
fn survive_the_agent(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--proxy-mode=iptables"])?;
    answered(lab, localhost(NODE_PORT))?;
    lab.stop()?;
    answered(lab, localhost(NODE_PORT))?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    lab.kill()?;
    answered(lab, localhost(NODE_PORT))?;
    cleanup(lab)?;
    unanswered(lab, localhost(NODE_PORT))
}

fn follow_changes(lab: &mut AgentLab) -> Outcome {
    let config = |mode: &str| {
        HEADER.replace("mode: iptables", &format!("mode: {mode}\nnodePortAddresses: [localhost, all]"))
    };
    lab.write("config.yaml", &config("nftables"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    answered(lab, localhost(NODE_PORT))?;
    unanswered(lab, localhost(SHOP_PORT))?;
    apply_shop(lab);
    answered(lab, localhost(SHOP_PORT))?;
    for mode in ["userspace", "iptables", "nftables"] {
        lab.write("config.yaml", &config(mode));
        lab.logged(&["the mode was switched", &format!("to=\"{mode}\"")])?;
        answered(lab, localhost(NODE_PORT))?;
        answered(lab, localhost(SHOP_PORT))?;
        lab.web_works()?;
    }
    lab.delete("shop.yaml");
    unanswered(lab, localhost(SHOP_PORT))?;
    answered(lab, localhost(NODE_PORT))
}

fn taken_port(lab: &mut AgentLab) -> Outcome {
    let listener = lab.node().run(|| std::net::TcpListener::bind(localhost(NODE_PORT)))?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.logged(&["cannot listen at node port 127.0.0.1:", "default/web"])?;
    lab.web_works()?;
    let failures =
        r#"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv4"}"#;
    lab.metric(failures, |n| n >= 1.0)?;
    drop(listener);
    // The next change tries again.
    apply_shop(lab);
    answered(lab, localhost(SHOP_PORT))?;
    answered(lab, localhost(NODE_PORT))
}

fn was_on_before(lab: &mut AgentLab) -> Outcome {
    lab.node().run(|| std::fs::write(ROUTE_LOCALNET, "1"))?;
    lab.start(&["--proxy-mode=iptables"])?;
    answered(lab, localhost(NODE_PORT))?;
    lab.stop()?;
    lab.start(&["--proxy-mode=nftables"])?;
    lab.web_works()?;
    lab.logged(&["removed leftovers of a previous proxy mode", "location=\"iptables"])?;
    ensure(route_localnet(lab)?, || "the mode change turned it off".to_owned())?;
    lab.stop()?;
    cleanup(lab)?;
    ensure(route_localnet(lab)?, || "cleanup turned it off".to_owned())
}
