//! Masquerading: which source address an endpoint sees, for each way to detect local traffic.

use super::{CLIENT, Case, LabNetwork, NODE1, POD1, POD2, Script, Source, Step, all, apply, tcp};
use crate::objects::Endpoint;
use portway_model::Family;

pub(super) const CASES: &[Case] = &[
    Case { name: "masquerade_all", script: masquerade_all },
    Case { name: "local_by_cluster_cidr", script: by_cluster_cidr },
    Case { name: "local_by_node_cidr", script: by_node_cidr },
    Case { name: "local_by_bridge_interface", script: by_bridge },
    Case { name: "local_by_interface_prefix", script: by_prefix },
    Case { name: "local_unknown", script: unknown },
    Case { name: "local_known_in_the_other_family_only", script: other_family },
];

const TO: &[&str] = &["pod1b", "pod2b"];

fn script(net: &LabNetwork, pod1: Source, pod2: Source, outside: Source, flags: &[&str]) -> Script {
    let steps: Vec<Step> = vec![
        apply(net.service("web", 1)),
        apply(net.slice("web", &Endpoint::all(TO))),
        tcp(POD1, net.at_cluster_ip(1), all(TO, pod1)),
        tcp(POD2, net.at_cluster_ip(1), all(TO, pod2)),
        tcp(CLIENT, net.at_cluster_ip(1), all(TO, outside)),
    ];
    Script::steps(steps).flags(flags)
}

fn masquerade_all(net: &LabNetwork) -> Script {
    script(net, Source::Node(1), Source::Node(2), Source::Node(1), &["--masquerade-all"])
}

fn by_cluster_cidr(net: &LabNetwork) -> Script {
    script(net, Source::Own, Source::Own, Source::Node(1), &["--detect-local-mode=ClusterCIDR"])
}

fn by_node_cidr(net: &LabNetwork) -> Script {
    let mut script =
        script(net, Source::Own, Source::Own, Source::Node(1), &["--detect-local-mode=NodeCIDR"]);
    // A node's own traffic is masqueraded.
    script.steps.push(tcp(NODE1, net.at_cluster_ip(1), all(TO, Source::Node(1))));
    script
}

/// In the lab each pod has a link of its own: the "bridge" is the link of one pod, and other pods count as outside.
fn by_bridge(net: &LabNetwork) -> Script {
    let flags = ["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=veth-pod1a"];
    script(net, Source::Own, Source::Node(2), Source::Node(1), &flags)
}

fn by_prefix(net: &LabNetwork) -> Script {
    let flags = ["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth-"];
    script(net, Source::Own, Source::Own, Source::Node(1), &flags)
}

/// Without a cluster CIDR, local traffic cannot be detected, so no traffic is masqueraded as traffic from outside.
fn unknown(net: &LabNetwork) -> Script {
    let mut script = script(net, Source::Own, Source::Own, Source::Own, &["--cluster-cidr="]);
    script.steps.pop();
    script
}

/// A CIDR of the other family does not detect local traffic of this family.
fn other_family(net: &LabNetwork) -> Script {
    let cidr = if net.family == Family::V4 { "fd10:244::/32" } else { "10.244.0.0/16" };
    let mut script = script(net, Source::Own, Source::Own, Source::Own, &[&format!("--cluster-cidr={cidr}")]);
    script.steps.pop();
    script
}
