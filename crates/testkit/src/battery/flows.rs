//! UDP flows and TCP connections that exist when endpoints change.

use super::{
    CLIENT, Case, Expect, LabNetwork, POD1, PODS, Script, Sender, Source, Step, all, apply, tcp, udp,
};
use crate::objects::Endpoint;
use portway_model::Protocol::{Tcp, Udp};
use std::net::SocketAddr;

pub(super) const CASES: &[Case] = &[
    Case { name: "udp_flow_moves_when_its_endpoint_is_replaced", script: replaced },
    Case { name: "udp_flow_that_began_before_the_service_reaches_its_endpoints", script: began_before },
    Case { name: "udp_flow_is_refused_when_the_last_endpoint_is_removed", script: last_removed },
    Case { name: "udp_flow_to_a_node_port_moves", script: node_port },
    Case { name: "udp_flow_stays_while_its_endpoint_answers", script: stays },
    Case { name: "udp_flows_keep_their_endpoint_when_agents_stop_and_start", script: restart },
    Case { name: "tcp_connection_survives_changes_and_restart", script: tcp_survives },
];

fn open(id: &'static str, from: Sender, to: SocketAddr, protocol: portway_model::Protocol) -> Step {
    Step::Open { id, from, to, protocol }
}

fn ask(id: &'static str, pods: &[&'static str]) -> Step {
    Step::Ask { id, expect: all(pods, Source::Any) }
}

fn dns(net: &LabNetwork, pods: &[&'static str]) -> Step {
    apply(net.slice("dns", &Endpoint::all(pods)))
}

fn replaced(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("dns", 1).udp()),
        dns(net, &["pod1b"]),
        udp(POD1, net.at_cluster_ip(1), all(&["pod1b"], Source::Own)),
        open("flow", POD1, net.at_cluster_ip(1), Udp),
        ask("flow", &["pod1b"]),
        dns(net, &["pod2b"]),
        ask("flow", &["pod2b"]),
    ])
}

fn began_before(net: &LabNetwork) -> Script {
    Script::steps(vec![
        // The client sends before the Service exists.
        open("early", POD1, net.at_cluster_ip(1), Udp),
        Step::Ask { id: "early", expect: Expect::TimedOut },
        apply(net.service("dns", 1).udp()),
        Step::Ask { id: "early", expect: Expect::Refused },
        dns(net, &["pod2b"]),
        ask("early", &["pod2b"]),
    ])
}

fn last_removed(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("dns", 1).udp()),
        dns(net, &["pod1b"]),
        open("flow", POD1, net.at_cluster_ip(1), Udp),
        ask("flow", &["pod1b"]),
        dns(net, &[]),
        Step::Ask { id: "flow", expect: Expect::Refused },
    ])
}

fn node_port(net: &LabNetwork) -> Script {
    let external = SocketAddr::new(net.external_ip(1), 80);
    Script::steps(vec![
        apply(net.service("dns", 1).udp().node_port(30053).external_ips(&[net.external_ip(1)])),
        dns(net, &["pod1b"]),
        udp(CLIENT, net.node_port(1, 30053), all(&["pod1b"], Source::Node(1))),
        open("node", CLIENT, net.node_port(1, 30053), Udp),
        open("external", CLIENT, external, Udp),
        ask("node", &["pod1b"]),
        ask("external", &["pod1b"]),
        dns(net, &["pod2b"]),
        ask("node", &["pod2b"]),
        ask("external", &["pod2b"]),
        Step::DeleteSlice("dns"),
        Step::Ask { id: "node", expect: Expect::Refused },
    ])
}

fn stays(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("dns", 1).udp()),
        dns(net, &["pod1b"]),
        open("flow", POD1, net.at_cluster_ip(1), Udp),
        ask("flow", &["pod1b"]),
        // New flows go to the new pod; the old flow stays with its pod, also when agents restart.
        apply(net.slice("dns", &[Endpoint::terminating("pod1b"), Endpoint::ready("pod2b")])),
        udp(POD1, net.at_cluster_ip(1), all(&["pod2b"], Source::Own)),
        ask("flow", &["pod1b"]),
        Step::KillAgents,
        Step::StartAgents,
        udp(POD1, net.at_cluster_ip(1), all(&["pod2b"], Source::Own)),
        ask("flow", &["pod1b"]),
    ])
}

fn restart(net: &LabNetwork) -> Script {
    let flows = ["flow1", "flow2", "flow3"];
    let ask_all = || flows.map(|id| ask(id, &["pod1b"]));
    let mut steps = vec![apply(net.service("dns", 1).udp().node_port(30053)), dns(net, &["pod1b"])];
    steps.extend([
        open("flow1", POD1, net.at_cluster_ip(1), Udp),
        open("flow2", CLIENT, net.at_cluster_ip(1), Udp),
        open("flow3", CLIENT, net.node_port(1, 30053), Udp),
    ]);
    steps.extend(ask_all());
    // New flows have other endpoints too.
    steps.push(dns(net, PODS));
    steps.push(udp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))));
    for step in [Step::StopAgents, Step::StartAgents] {
        steps.push(step);
        steps.push(udp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))));
        steps.extend(ask_all());
    }
    // When pod1b is removed, the flows leave it, whether the relay or the kernel's connection tracking translates them.
    steps.push(dns(net, &["pod2b"]));
    steps.extend(flows.map(|id| ask(id, &["pod2b"])));
    Script::steps(steps)
}

fn tcp_survives(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1).node_port(30001)),
        apply(net.slice("web", &Endpoint::all(&["pod1b"]))),
        tcp(POD1, net.at_cluster_ip(1), all(&["pod1b"], Source::Own)),
        open("pod", POD1, net.at_cluster_ip(1), Tcp),
        open("node-port", CLIENT, net.node_port(1, 30001), Tcp),
        apply(net.slice("web", &Endpoint::all(&["pod2b"]))),
        tcp(POD1, net.at_cluster_ip(1), all(&["pod2b"], Source::Own)),
        ask("pod", &["pod1b"]),
        ask("node-port", &["pod1b"]),
        Step::StopAgents,
        ask("pod", &["pod1b"]),
        Step::StartAgents,
        tcp(POD1, net.at_cluster_ip(1), all(&["pod2b"], Source::Own)),
        ask("pod", &["pod1b"]),
        ask("node-port", &["pod1b"]),
    ])
}
