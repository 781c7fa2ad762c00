//! Ports, protocols, slices and labels: which endpoints a frontend has.

use super::{
    CLIENT, Case, Expect, LabNetwork, NODE1, NODE2, OTHER_PORT, POD1, POD2, PORT, Script, Source, Step, all,
    apply, tcp, udp,
};
use crate::objects::{Endpoint, EndpointSlice, Port};
use portway_model::Protocol::{Tcp, Udp};
use std::net::SocketAddr;
use std::time::Duration;

/// Both ports of a pod, under names.
const NAMED: [Port<'static>; 2] = [("web", Tcp, PORT), ("admin", Tcp, OTHER_PORT)];

pub(super) const CASES: &[Case] = &[
    Case { name: "named_ports_and_several_ports", script: several_ports },
    Case { name: "target_ports_differ_by_pod", script: differing_targets },
    Case { name: "clients_move_between_pods_whose_target_ports_differ", script: moving_clients },
    Case { name: "two_protocols_on_one_port", script: two_protocols },
    Case { name: "several_slices", script: several_slices },
    Case { name: "services_of_other_proxies_and_headless_slices_are_ignored", script: labels },
];

fn several_ports(net: &LabNetwork) -> Script {
    let at = |port| SocketAddr::new(net.cluster_ip(1), port);
    Script::steps(vec![
        apply(net.service("web", 1).ports(&[("web", Tcp, 80), ("admin", Tcp, 81)])),
        apply(net.slice_of("web", "web-1", &NAMED[..1], &Endpoint::all(&["pod1b"]))),
        apply(net.slice_of("web", "web-2", &NAMED[1..], &Endpoint::all(&["pod2b"]))),
        tcp(POD1, at(80), all(&["pod1b"], Source::Own)),
        tcp(POD1, at(81), all(&["pod2b"], Source::Own)),
        apply(net.slice_of("web", "web-1", &NAMED, &Endpoint::all(&["pod1b"]))),
        tcp(POD1, at(81), all(&["pod1b", "pod2b"], Source::Own)),
    ])
}

fn differing_targets(net: &LabNetwork) -> Script {
    let both = &["pod1b", "pod2b"];
    let mut steps = vec![
        apply(net.service("web", 1).ports(&[("web", Tcp, 80)])),
        apply(net.slice_of("web", "web-1", &[("web", Tcp, PORT)], &Endpoint::all(&["pod1b"]))),
        apply(net.slice_of("web", "web-2", &[("web", Tcp, OTHER_PORT)], &Endpoint::all(&["pod2b"]))),
        tcp(POD1, net.at_cluster_ip(1), all(both, Source::Own)),
        // With affinity some clients use one pod, some the other.
        apply(net.service("web", 1).ports(&[("web", Tcp, 80)]).affinity(600)),
    ];
    for from in [POD1, POD2, CLIENT, NODE1, NODE2] {
        steps.push(tcp(from, net.at_cluster_ip(1), Expect::Sticks(both.to_vec())));
    }
    Script::steps(steps)
}

/// Affinity ends after a second, so that a client eventually reaches both pods.
fn moving_clients(net: &LabNetwork) -> Script {
    let eventually = |pod| Step::ProbeAfterPauses {
        pause: Duration::from_millis(1500),
        from: POD1,
        to: net.at_cluster_ip(1),
        expect: Expect::Sticks(vec![pod]),
    };
    Script::steps(vec![
        apply(net.service("web", 1).ports(&[("web", Tcp, 80)]).affinity(1)),
        apply(net.slice_of("web", "web-1", &[("web", Tcp, PORT)], &Endpoint::all(&["pod1b"]))),
        apply(net.slice_of("web", "web-2", &[("web", Tcp, OTHER_PORT)], &Endpoint::all(&["pod2b"]))),
        eventually("pod1b"),
        eventually("pod2b"),
    ])
}

fn two_protocols(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("dns", 1).ports(&[("dns", Udp, 80), ("dns-tcp", Tcp, 80)])),
        apply(net.slice_of("dns", "dns-1", &[("dns", Udp, PORT)], &Endpoint::all(&["pod1b"]))),
        apply(net.slice_of("dns", "dns-2", &[("dns-tcp", Tcp, PORT)], &Endpoint::all(&["pod2b"]))),
        udp(POD1, net.at_cluster_ip(1), all(&["pod1b"], Source::Own)),
        tcp(POD1, net.at_cluster_ip(1), all(&["pod2b"], Source::Own)),
    ])
}

fn several_slices(net: &LabNetwork) -> Script {
    let ports = [("", Tcp, PORT)];
    Script::steps(vec![
        apply(net.service("web", 1)),
        apply(net.slice_of("web", "web-1", &ports, &Endpoint::all(&["pod1b", "pod2a"]))),
        apply(net.slice_of("web", "web-2", &ports, &Endpoint::all(&["pod2a", "pod2b"]))),
        tcp(POD1, net.at_cluster_ip(1), all(&["pod1b", "pod2a", "pod2b"], Source::Own)),
        // An endpoint that is in two slices, in one of them terminating, counts as ready.
        apply(net.slice_of(
            "web",
            "web-1",
            &ports,
            &[Endpoint::ready("pod1b"), Endpoint::terminating("pod2a")],
        )),
        tcp(POD1, net.at_cluster_ip(1), all(&["pod1b", "pod2a", "pod2b"], Source::Own)),
        apply(net.slice_of("web", "web-2", &ports, &[])),
        tcp(POD1, net.at_cluster_ip(1), all(&["pod1b"], Source::Own)),
    ])
}

fn labels(net: &LabNetwork) -> Script {
    let headless = EndpointSlice::new("web", &[("", Tcp, PORT)], &Endpoint::all(&["pod2b"]))
        .name("web-headless")
        .label("service.kubernetes.io/headless", "");
    let foreign =
        || net.service("foreign", 2).label("service.kubernetes.io/service-proxy-name", "another-proxy");
    Script::steps(vec![
        apply(net.service("web", 1)),
        apply(net.slice("web", &Endpoint::all(&["pod1b"]))),
        apply(headless.manifest(net)),
        apply(foreign()),
        apply(net.slice_of("foreign", "foreign", &[("", Tcp, PORT)], &Endpoint::all(&["pod1b"]))),
        tcp(CLIENT, net.at_cluster_ip(1), all(&["pod1b"], Source::Node(1))),
        tcp(CLIENT, net.at_cluster_ip(2), Expect::TimedOut),
        apply(net.service("foreign", 2)),
        tcp(CLIENT, net.at_cluster_ip(2), all(&["pod1b"], Source::Node(1))),
        apply(foreign()),
        tcp(CLIENT, net.at_cluster_ip(2), Expect::TimedOut),
    ])
}
