//! Which endpoints: termination, hints, zones.

use super::{
    CLIENT, Case, Ep, Expect, Net, POD1, POD2, PODS, Script, Source, Step, Svc, all, apply, node_object, tcp,
};
use std::net::SocketAddr;

pub(super) const CASES: &[Case] = &[
    Case { name: "terminating_endpoints_serve_when_nobody_else_does", script: terminating },
    Case { name: "terminating_endpoints_with_policy_local", script: terminating_local },
    Case { name: "zone_hints", script: zones },
    Case { name: "node_hints", script: nodes },
    Case { name: "node_changes_zone", script: node_moves },
];

fn any(pods: &[&'static str]) -> Expect {
    all(pods, Source::Any)
}

fn terminating(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "web", 1)),
        apply(net.slice("web", &[Ep::terminating("pod1a"), Ep::ready("pod2a"), Ep::unready("pod2b")])),
        tcp(POD1, net.service(1), any(&["pod2a"])),
        apply(net.slice("web", &[Ep::terminating("pod1a"), Ep::terminating("pod2a"), Ep::unready("pod2b")])),
        tcp(POD1, net.service(1), any(&["pod1a", "pod2a"])),
        apply(net.slice("web", &[Ep::unready("pod1a"), Ep::unready("pod2a")])),
        tcp(POD1, net.service(1), Expect::Refused),
    ])
}

fn terminating_local(net: &Net) -> Script {
    let to = SocketAddr::new(net.balancer(1), 80);
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).balancer(net.balancer(1), None).external_local()),
        apply(net.slice("web", &[Ep::terminating("pod1a"), Ep::ready("pod1b"), Ep::ready("pod2a")])),
        tcp(CLIENT, to, all(&["pod1b"], Source::Own)),
        apply(net.slice("web", &[Ep::terminating("pod1a"), Ep::ready("pod2a")])),
        tcp(CLIENT, to, all(&["pod1a"], Source::Own)),
    ])
}

fn zoned(net: &Net) -> Step {
    let (a, b) = (&["zone-a"], &["zone-b"]);
    apply(net.slice(
        "web",
        &[Ep::ready("pod1a").zones(a), Ep::ready("pod1b").zones(a), Ep::ready("pod2a").zones(b)],
    ))
}

fn zones(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "web", 1)),
        zoned(net),
        tcp(POD1, net.service(1), any(&["pod1a", "pod1b"])),
        tcp(POD2, net.service(1), any(&["pod2a"])),
        // One endpoint without a hint, or no hint for this zone, and hints do not count.
        apply(net.slice("web", &[Ep::ready("pod1a").zones(&["zone-a"]), Ep::ready("pod2a")])),
        tcp(POD2, net.service(1), any(&["pod1a", "pod2a"])),
        apply(
            net.slice("web", &[Ep::ready("pod1a").zones(&["zone-a"]), Ep::ready("pod2a").zones(&["zone-c"])]),
        ),
        tcp(POD2, net.service(1), any(&["pod1a", "pod2a"])),
        tcp(POD1, net.service(1), any(&["pod1a"])),
    ])
}

fn nodes(net: &Net) -> Script {
    let hinted = |pod, node| Ep::ready(pod).nodes(node).zones(&["zone-a", "zone-b"]);
    Script::steps(vec![
        apply(Svc::new(net, "web", 1)),
        apply(net.slice(
            "web",
            &[hinted("pod1a", &["node1"]), hinted("pod2a", &["node2"]), hinted("pod2b", &["node2"])],
        )),
        tcp(POD1, net.service(1), any(&["pod1a"])),
        tcp(POD2, net.service(1), any(&["pod2a", "pod2b"])),
        // Nobody for this node: then by zone.
        apply(net.slice("web", &[hinted("pod1a", &["node1"]), hinted("pod2a", &["node1"])])),
        tcp(POD2, net.service(1), any(&["pod1a", "pod2a"])),
        // No hints at all.
        apply(net.slice("web", &Ep::all(PODS))),
        tcp(POD1, net.service(1), any(PODS)),
    ])
}

fn node_moves(net: &Net) -> Script {
    let node = |zone| apply(node_object(1, zone, &net.nodes[..1], &[]));
    Script::steps(vec![
        apply(Svc::new(net, "web", 1)),
        zoned(net),
        tcp(POD1, net.service(1), any(&["pod1a", "pod1b"])),
        node("zone-b"),
        tcp(POD1, net.service(1), any(&["pod2a"])),
        node("zone-a"),
        tcp(POD1, net.service(1), any(&["pod1a", "pod1b"])),
    ])
}
