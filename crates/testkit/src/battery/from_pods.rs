//! Behaviours that begin with Pods: fields of a Service that the controllers read when they write its slices.

use super::{CLIENT, Case, Expect, LabNetwork, POD1, POD2, Script, Source, all, apply, tcp};
use crate::objects::{self, Endpoint};
use serde_json::json;

pub(super) const CASES: &[Case] = &[
    Case { name: "traffic_distribution_prefers_the_zone", script: same_zone },
    Case { name: "traffic_distribution_prefers_the_node", script: same_node },
    Case { name: "unready_pods_are_published_on_request", script: unready },
];

fn any(pods: &[&'static str]) -> Expect {
    all(pods, Source::Any)
}

/// The hints follow the Service's field, the Pods and the zones of Nodes.
fn same_zone(net: &LabNetwork) -> Script {
    let to = net.at_cluster_ip(1);
    let preferring = |field| apply(net.service("web", 1).spec(json!({ "trafficDistribution": field })));
    let cidrs = ["10.244.1.0/24".to_owned(), "fd10:244:1::/64".to_owned()];
    let node = |zone| apply(objects::node("node1", zone, &net.nodes[..1], &cidrs));
    let three = &["pod1a", "pod1b", "pod2a"];
    Script::steps(vec![
        preferring("PreferSameZone"),
        apply(net.slice("web", &Endpoint::all(three))),
        tcp(POD1, to, any(&["pod1a", "pod1b"])),
        tcp(POD2, to, any(&["pod2a"])),
        node("zone-b"),
        tcp(POD2, to, any(three)),
        node("zone-a"),
        tcp(POD2, to, any(&["pod2a"])),
        // Without a ready endpoint in the zone, those of the others serve it.
        apply(net.slice("web", &Endpoint::all(&["pod1a", "pod1b"]))),
        tcp(POD2, to, any(&["pod1a", "pod1b"])),
        apply(net.slice("web", &Endpoint::all(three))),
        tcp(POD2, to, any(&["pod2a"])),
        preferring("PreferClose"),
        tcp(POD2, to, any(&["pod2a"])),
        apply(net.service("web", 1)),
        tcp(POD2, to, any(three)),
    ])
}

fn same_node(net: &LabNetwork) -> Script {
    let to = net.at_cluster_ip(1);
    Script::steps(vec![
        apply(net.service("web", 1).spec(json!({ "trafficDistribution": "PreferSameNode" }))),
        apply(net.slice("web", &Endpoint::all(&["pod1a", "pod2a", "pod2b"]))),
        tcp(POD1, to, any(&["pod1a"])),
        tcp(POD2, to, any(&["pod2a", "pod2b"])),
        apply(net.slice("web", &[Endpoint::unready("pod1a"), Endpoint::ready("pod2a")])),
        tcp(POD1, to, any(&["pod2a"])),
    ])
}

fn unready(net: &LabNetwork) -> Script {
    let to = net.at_cluster_ip(1);
    let publish =
        |publish: bool| apply(net.service("web", 1).spec(json!({ "publishNotReadyAddresses": publish })));
    Script::steps(vec![
        publish(true),
        apply(net.slice("web", &[Endpoint::unready("pod1a"), Endpoint::ready("pod2a")])),
        tcp(CLIENT, to, any(&["pod1a", "pod2a"])),
        publish(false),
        tcp(CLIENT, to, any(&["pod2a"])),
    ])
}
