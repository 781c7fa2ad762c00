//! Node ports.

use super::{
    CLIENT, Case, Expect, LabNetwork, NODE1, NODE2, POD1, POD2, PODS, Script, Source, all, apply, tcp, udp,
};
use crate::objects::Endpoint;
use portway_model::Family;
use std::net::SocketAddr;

pub(super) const CASES: &[Case] = &[
    Case { name: "node_port_policy_cluster", script: cluster },
    Case { name: "node_port_policy_local", script: local },
    Case { name: "node_port_udp", script: by_udp },
    Case { name: "node_port_addresses", script: addresses },
    Case { name: "node_port_primary_addresses", script: primary },
    Case { name: "node_port_not_on_loopback", script: loopback },
];

fn cluster(net: &LabNetwork) -> Script {
    let mut steps =
        vec![apply(net.service("web", 1).node_port(30001)), apply(net.slice("web", &Endpoint::all(PODS)))];
    for node in [1, 2] {
        let to = net.node_port(node, 30001);
        steps.push(tcp(CLIENT, to, all(PODS, Source::Node(node))));
        // Packets from a node or its pods are translated on that node, so the source differs by sender.
        steps.push(tcp(NODE1, to, all(PODS, Source::Any)));
        steps.push(tcp(POD1, to, all(PODS, Source::Any)));
        steps.push(tcp(POD2, to, all(PODS, Source::Any)));
    }
    steps.push(tcp(POD1, net.node_port(1, 30001), all(PODS, Source::Node(1))));
    steps.push(tcp(NODE2, net.node_port(2, 30001), all(PODS, Source::Node(2))));
    Script::steps(steps)
}

fn local(net: &LabNetwork) -> Script {
    let to = |node| net.node_port(node, 30001);
    let both = &["pod1b", "pod2b"];
    Script::steps(vec![
        apply(net.service("web", 1).node_port(30001).external_local()),
        apply(net.slice("web", &Endpoint::all(both))),
        tcp(CLIENT, to(1), all(&["pod1b"], Source::Own)),
        tcp(CLIENT, to(2), all(&["pod2b"], Source::Own)),
        // Traffic that begins on the node may go to any endpoint.
        tcp(POD1, to(1), all(both, Source::Own)),
        tcp(NODE1, to(1), all(both, Source::Node(1))),
        // Traffic of another node counts as traffic from outside.
        tcp(NODE2, to(1), all(&["pod1b"], Source::Own)),
        apply(net.slice("web", &Endpoint::all(&["pod2b"]))),
        tcp(CLIENT, to(1), Expect::TimedOut),
        tcp(CLIENT, to(2), all(&["pod2b"], Source::Own)),
        tcp(POD1, to(1), all(&["pod2b"], Source::Own)),
        tcp(NODE1, to(1), all(&["pod2b"], Source::Node(1))),
        apply(net.slice("web", &[])),
        tcp(CLIENT, to(1), Expect::Refused),
        tcp(CLIENT, to(2), Expect::Refused),
    ])
}

fn by_udp(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1).udp().node_port(30001)),
        apply(net.slice("web", &Endpoint::all(&["pod1b", "pod2b"]))),
        udp(CLIENT, net.node_port(1, 30001), all(&["pod1b", "pod2b"], Source::Node(1))),
        udp(CLIENT, net.node_port(2, 30001), all(&["pod1b", "pod2b"], Source::Node(2))),
        udp(POD1, net.node_port(1, 30001), all(&["pod1b", "pod2b"], Source::Node(1))),
    ])
}

/// Only the address of the second node is within the range.
fn addresses(net: &LabNetwork) -> Script {
    let ranges = match net.family {
        Family::V4 => "192.168.50.12/32,192.0.2.0/24",
        Family::V6 => "fd50::12/128,2001:db8::/32",
    };
    Script::steps(vec![
        apply(net.service("web", 1).node_port(30001)),
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(CLIENT, net.node_port(2, 30001), all(PODS, Source::Node(2))),
        tcp(CLIENT, net.node_port(1, 30001), Expect::Refused),
        tcp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))),
    ])
    .flags(&[&format!("--nodeport-addresses={ranges}")])
}

/// The pod network's gateway is an address of the node, but not its primary one.
fn primary(net: &LabNetwork) -> Script {
    let other = match net.family {
        Family::V4 => SocketAddr::new([10, 244, 1, 1].into(), 30001),
        Family::V6 => SocketAddr::new([0xfd10, 0x244, 1, 0, 0, 0, 0, 0xffff].into(), 30001),
    };
    let refused = if net.family == Family::V4 { Expect::Refused } else { Expect::TimedOut };
    Script::steps(vec![
        apply(net.service("web", 1).node_port(30001)),
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(POD1, net.node_port(1, 30001), all(PODS, Source::Node(1))),
        tcp(POD1, other, refused),
    ])
    .flags(&["--nodeport-addresses=primary"])
}

fn loopback(net: &LabNetwork) -> Script {
    let localhost = match net.family {
        Family::V4 => SocketAddr::new([127, 0, 0, 1].into(), 30001),
        Family::V6 => SocketAddr::new([0, 0, 0, 0, 0, 0, 0, 1].into(), 30001),
    };
    let all_addresses = if net.family == Family::V4 { "0.0.0.0/0" } else { "::/0" };
    Script::steps(vec![
        apply(net.service("web", 1).node_port(30001)),
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(CLIENT, net.node_port(1, 30001), all(PODS, Source::Node(1))),
        tcp(NODE1, localhost, Expect::Refused),
    ])
    .flags(&[&format!("--nodeport-addresses={all_addresses}")])
}
