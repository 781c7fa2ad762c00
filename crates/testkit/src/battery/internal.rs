//! Internal traffic policy.

use super::{CLIENT, Case, Expect, LabNetwork, NODE1, NODE2, POD2, Script, Sender, Source, all, apply, tcp};
use crate::objects::Endpoint;

pub(super) const CASES: &[Case] = &[
    Case { name: "internal_policy_local_uses_endpoints_of_the_node", script: local_endpoints },
    Case { name: "internal_policy_local_without_endpoints_on_the_node_drops", script: dropped },
];

fn local_endpoints(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1).internal_local()),
        apply(net.slice("web", &Endpoint::all(&["pod1a", "pod2a", "pod2b"]))),
        tcp(Sender::Pod("pod1b"), net.at_cluster_ip(1), all(&["pod1a"], Source::Own)),
        tcp(POD2, net.at_cluster_ip(1), all(&["pod2a", "pod2b"], Source::Any)),
        tcp(NODE1, net.at_cluster_ip(1), all(&["pod1a"], Source::Node(1))),
        tcp(CLIENT, net.at_cluster_ip(1), all(&["pod1a"], Source::Node(1))),
    ])
}

fn dropped(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1).internal_local().node_port(30001)),
        apply(net.slice("web", &Endpoint::all(&["pod1a"]))),
        tcp(Sender::Pod("pod1b"), net.at_cluster_ip(1), all(&["pod1a"], Source::Own)),
        tcp(POD2, net.at_cluster_ip(1), Expect::TimedOut),
        tcp(NODE2, net.at_cluster_ip(1), Expect::TimedOut),
        // The internal policy does not apply to node ports.
        tcp(CLIENT, net.node_port(2, 30001), all(&["pod1a"], Source::Node(2))),
        apply(net.slice("web", &[])),
        tcp(POD2, net.at_cluster_ip(1), Expect::Refused),
    ])
}
