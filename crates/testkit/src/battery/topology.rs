//! Which endpoints are used: terminating endpoints, hints for zones and nodes.

use super::{CLIENT, Case, Expect, LabNetwork, POD1, POD2, PODS, Script, Source, Step, all, apply, tcp};
use crate::objects::{self, Endpoint};
use std::net::SocketAddr;

pub(super) const CASES: &[Case] = &[
    Case { name: "terminating_endpoints_serve_when_none_is_ready", script: terminating },
    Case { name: "terminating_endpoints_with_policy_local", script: terminating_local },
    Case { name: "zone_hints", script: zones },
    Case { name: "node_hints", script: nodes },
    Case { name: "node_changes_zone", script: zone_changes },
];

fn any(pods: &[&'static str]) -> Expect {
    all(pods, Source::Any)
}

fn terminating(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1)),
        apply(net.slice(
            "web",
            &[Endpoint::terminating("pod1a"), Endpoint::ready("pod2a"), Endpoint::unready("pod2b")],
        )),
        tcp(POD1, net.at_cluster_ip(1), any(&["pod2a"])),
        apply(net.slice(
            "web",
            &[Endpoint::terminating("pod1a"), Endpoint::terminating("pod2a"), Endpoint::unready("pod2b")],
        )),
        tcp(POD1, net.at_cluster_ip(1), any(&["pod1a", "pod2a"])),
        apply(net.slice("web", &[Endpoint::unready("pod1a"), Endpoint::unready("pod2a")])),
        tcp(POD1, net.at_cluster_ip(1), Expect::Refused),
    ])
}

fn terminating_local(net: &LabNetwork) -> Script {
    let to = SocketAddr::new(net.load_balancer_ip(1), 80);
    Script::steps(vec![
        apply(net.service("web", 1).load_balancer_ips(&[net.load_balancer_ip(1)], None).external_local()),
        apply(net.slice(
            "web",
            &[Endpoint::terminating("pod1a"), Endpoint::ready("pod1b"), Endpoint::ready("pod2a")],
        )),
        tcp(CLIENT, to, all(&["pod1b"], Source::Own)),
        apply(net.slice("web", &[Endpoint::terminating("pod1a"), Endpoint::ready("pod2a")])),
        tcp(CLIENT, to, all(&["pod1a"], Source::Own)),
    ])
}

fn zoned(net: &LabNetwork) -> Step {
    let (a, b) = (&["zone-a"], &["zone-b"]);
    apply(net.slice(
        "web",
        &[
            Endpoint::ready("pod1a").zones(a),
            Endpoint::ready("pod1b").zones(a),
            Endpoint::ready("pod2a").zones(b),
        ],
    ))
}

fn zones(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1)),
        zoned(net),
        tcp(POD1, net.at_cluster_ip(1), any(&["pod1a", "pod1b"])),
        tcp(POD2, net.at_cluster_ip(1), any(&["pod2a"])),
        // Hints are ignored if one endpoint has none, or none is for the zone of this node.
        apply(net.slice("web", &[Endpoint::ready("pod1a").zones(&["zone-a"]), Endpoint::ready("pod2a")])),
        tcp(POD2, net.at_cluster_ip(1), any(&["pod1a", "pod2a"])),
        apply(net.slice(
            "web",
            &[Endpoint::ready("pod1a").zones(&["zone-a"]), Endpoint::ready("pod2a").zones(&["zone-c"])],
        )),
        tcp(POD2, net.at_cluster_ip(1), any(&["pod1a", "pod2a"])),
        tcp(POD1, net.at_cluster_ip(1), any(&["pod1a"])),
    ])
}

fn nodes(net: &LabNetwork) -> Script {
    let hinted = |pod, node| Endpoint::ready(pod).nodes(node).zones(&["zone-a", "zone-b"]);
    Script::steps(vec![
        apply(net.service("web", 1)),
        apply(net.slice(
            "web",
            &[hinted("pod1a", &["node1"]), hinted("pod2a", &["node2"]), hinted("pod2b", &["node2"])],
        )),
        tcp(POD1, net.at_cluster_ip(1), any(&["pod1a"])),
        tcp(POD2, net.at_cluster_ip(1), any(&["pod2a", "pod2b"])),
        // No endpoint has a hint for this node: hints for zones are used.
        apply(net.slice("web", &[hinted("pod1a", &["node1"]), hinted("pod2a", &["node1"])])),
        tcp(POD2, net.at_cluster_ip(1), any(&["pod1a", "pod2a"])),
        // No hints at all.
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(POD1, net.at_cluster_ip(1), any(PODS)),
    ])
}

fn zone_changes(net: &LabNetwork) -> Script {
    let node = |zone| apply(objects::node("node1", zone, &net.nodes[..1], &[]));
    Script::steps(vec![
        apply(net.service("web", 1)),
        zoned(net),
        tcp(POD1, net.at_cluster_ip(1), any(&["pod1a", "pod1b"])),
        node("zone-b"),
        tcp(POD1, net.at_cluster_ip(1), any(&["pod2a"])),
        node("zone-a"),
        tcp(POD1, net.at_cluster_ip(1), any(&["pod1a", "pod1b"])),
    ])
}
