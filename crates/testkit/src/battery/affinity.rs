//! Session affinity.

use super::{
    CLIENT, Case, Expect, LabNetwork, POD1, PODS, Script, Sender, Source, Step, all, apply, tcp, udp,
};
use crate::objects::Endpoint;
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "affinity_sticks", script: sticks },
    Case { name: "affinity_is_shared_by_all_frontends", script: shared },
    Case { name: "affinity_expires", script: expires },
    Case { name: "affinity_lasts_while_the_client_is_active", script: active },
    Case { name: "affinity_ends_with_its_endpoint", script: endpoint_removed },
    Case { name: "affinity_with_policy_local", script: local },
];

fn one_of(pods: &[&'static str]) -> Expect {
    Expect::Sticks(pods.to_vec())
}

fn sticks(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1).affinity(10_800)),
        apply(net.service("web-udp", 2).udp().affinity(10_800)),
        apply(net.slice("web", &Endpoint::all(PODS))),
        apply(net.slice("web-udp", &Endpoint::all(PODS))),
        tcp(POD1, net.at_cluster_ip(1), one_of(PODS)),
        tcp(Sender::Pod("pod1b"), net.at_cluster_ip(1), one_of(PODS)),
        tcp(CLIENT, net.at_cluster_ip(1), one_of(PODS)),
        udp(POD1, net.at_cluster_ip(2), one_of(PODS)),
        // The client still reaches the same pod.
        tcp(POD1, net.at_cluster_ip(1), one_of(PODS)),
    ])
}

/// A client that a cluster IP has sent to a pod is sent to the same pod by the node port and the external IP.
fn shared(net: &LabNetwork) -> Script {
    let service = || net.service("web", 1).affinity(600).node_port(30001).external_ips(&[net.external_ip(1)]);
    let external = std::net::SocketAddr::new(net.external_ip(1), 80);
    Script::steps(vec![
        apply(service()),
        apply(net.slice("web", &Endpoint::all(&["pod1b"]))),
        tcp(CLIENT, net.at_cluster_ip(1), all(&["pod1b"], Source::Node(1))),
        // The client has affinity to the pod now, at all frontends.
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(CLIENT, net.at_cluster_ip(1), one_of(&["pod1b"])),
        tcp(CLIENT, net.node_port(1, 30001), one_of(&["pod1b"])),
        tcp(CLIENT, external, one_of(&["pod1b"])),
    ])
}

fn expires(net: &LabNetwork) -> Script {
    let mut steps = vec![
        apply(net.service("web", 1).affinity(1)),
        apply(net.slice("web", &Endpoint::all(&["pod1b"]))),
        tcp(CLIENT, net.at_cluster_ip(1), all(&["pod1b"], Source::Node(1))),
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(CLIENT, net.at_cluster_ip(1), one_of(&["pod1b"])),
    ];
    // After a pause longer than the time-out, any pod may be chosen; eventually it is another one.
    steps.push(Step::ProbeAfterPauses {
        pause: Duration::from_millis(1500),
        from: CLIENT,
        to: net.at_cluster_ip(1),
        expect: one_of(&["pod1a", "pod2a", "pod2b"]),
    });
    Script::steps(steps)
}

/// Every new connection renews the affinity: with a time-out of two seconds it still holds after five.
fn active(net: &LabNetwork) -> Script {
    let mut steps = vec![
        apply(net.service("web", 1).affinity(2)),
        apply(net.slice("web", &Endpoint::all(&["pod1b"]))),
        tcp(CLIENT, net.at_cluster_ip(1), all(&["pod1b"], Source::Node(1))),
        apply(net.slice("web", &Endpoint::all(PODS))),
    ];
    for _ in 0..10 {
        steps.push(tcp(CLIENT, net.at_cluster_ip(1), one_of(&["pod1b"])));
        steps.push(Step::Wait(Duration::from_millis(500)));
    }
    Script::steps(steps)
}

fn endpoint_removed(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1).affinity(10_800).node_port(30001)),
        apply(net.slice("web", &Endpoint::all(&["pod1b"]))),
        tcp(CLIENT, net.at_cluster_ip(1), all(&["pod1b"], Source::Node(1))),
        apply(net.slice("web", &Endpoint::all(&["pod1b", "pod2b"]))),
        tcp(CLIENT, net.at_cluster_ip(1), one_of(&["pod1b"])),
        apply(net.slice("web", &[Endpoint::unready("pod1b"), Endpoint::ready("pod2b")])),
        tcp(CLIENT, net.at_cluster_ip(1), one_of(&["pod2b"])),
        tcp(CLIENT, net.node_port(1, 30001), one_of(&["pod2b"])),
        // The pod is ready again, but the client stays with the other one.
        apply(net.slice("web", &Endpoint::all(&["pod1b", "pod2b"]))),
        tcp(CLIENT, net.at_cluster_ip(1), one_of(&["pod2b"])),
        apply(net.slice("web", &[])),
        tcp(CLIENT, net.at_cluster_ip(1), Expect::Refused),
    ])
}

fn local(net: &LabNetwork) -> Script {
    let to = net.node_port(1, 30001);
    Script::steps(vec![
        apply(net.service("web", 1).affinity(10_800).node_port(30001).external_local()),
        apply(net.slice("web", &Endpoint::all(&["pod1b", "pod2a"]))),
        // Affinity to an endpoint on another node has no effect where only local endpoints are allowed.
        tcp(CLIENT, net.at_cluster_ip(1), one_of(&["pod1b", "pod2a"])),
        tcp(CLIENT, to, all(&["pod1b"], Source::Own)),
        tcp(POD1, to, one_of(&["pod1b", "pod2a"])),
        apply(net.slice("web", &Endpoint::all(&["pod2a"]))),
        tcp(CLIENT, to, Expect::TimedOut),
        tcp(POD1, to, all(&["pod2a"], Source::Own)),
    ])
}
