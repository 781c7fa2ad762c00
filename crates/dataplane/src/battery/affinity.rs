//! Session affinity.

use super::{
    CLIENT, Case, Ep, Expect, Net, POD1, PODS, Place, Script, Source, Step, Svc, all, apply, tcp, udp,
};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "affinity_sticks", script: sticks },
    Case { name: "affinity_is_shared_by_all_frontends", script: shared },
    Case { name: "affinity_expires", script: expires },
    Case { name: "affinity_lasts_while_the_client_is_active", script: active },
    Case { name: "affinity_forgets_a_dead_endpoint", script: dead },
    Case { name: "affinity_with_policy_local", script: local },
];

fn one_of(pods: &[&'static str]) -> Expect {
    Expect::Sticks(pods.to_vec())
}

fn sticks(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).affinity(10_800)),
        apply(Svc::new(net, "web-udp", 2).udp().affinity(10_800)),
        apply(net.slice("web", &Ep::all(PODS))),
        apply(net.slice("web-udp", &Ep::all(PODS))),
        tcp(POD1, net.service(1), one_of(PODS)),
        tcp(Place::Pod("pod1b"), net.service(1), one_of(PODS)),
        tcp(CLIENT, net.service(1), one_of(PODS)),
        udp(POD1, net.service(2), one_of(PODS)),
        // Other endpoints that come do not move anybody.
        tcp(POD1, net.service(1), one_of(PODS)),
    ])
}

/// One conversation's answer must be the other frontends' too: the probe that follows sees the same pod, because
/// the only way to tell is that all frontends together answer with one.
fn shared(net: &Net) -> Script {
    let service = || Svc::new(net, "web", 1).affinity(600).node_port(30001).external_ip(net.external(1));
    let external = std::net::SocketAddr::new(net.external(1), 80);
    Script::steps(vec![
        apply(service()),
        apply(net.slice("web", &Ep::all(&["pod1b"]))),
        tcp(CLIENT, net.service(1), all(&["pod1b"], Source::Node(1))),
        // The client is known now: whatever it uses, it goes on to the same pod.
        apply(net.slice("web", &Ep::all(PODS))),
        tcp(CLIENT, net.service(1), one_of(&["pod1b"])),
        tcp(CLIENT, net.node_port(1, 30001), one_of(&["pod1b"])),
        tcp(CLIENT, external, one_of(&["pod1b"])),
    ])
}

fn expires(net: &Net) -> Script {
    let mut steps = vec![
        apply(Svc::new(net, "web", 1).affinity(1)),
        apply(net.slice("web", &Ep::all(&["pod1b"]))),
        tcp(CLIENT, net.service(1), all(&["pod1b"], Source::Node(1))),
        apply(net.slice("web", &Ep::all(PODS))),
        tcp(CLIENT, net.service(1), one_of(&["pod1b"])),
    ];
    // Gone from memory after a while without it: another pod takes over sooner or later.
    steps.push(Step::ProbeAfterPauses {
        pause: Duration::from_millis(1500),
        from: CLIENT,
        to: net.service(1),
        expect: one_of(&["pod1a", "pod2a", "pod2b"]),
    });
    Script::steps(steps)
}

/// Every new connection makes a client remembered anew: with a time-out of two seconds it is still known after five.
fn active(net: &Net) -> Script {
    let mut steps = vec![
        apply(Svc::new(net, "web", 1).affinity(2)),
        apply(net.slice("web", &Ep::all(&["pod1b"]))),
        tcp(CLIENT, net.service(1), all(&["pod1b"], Source::Node(1))),
        apply(net.slice("web", &Ep::all(PODS))),
    ];
    for _ in 0..10 {
        steps.push(tcp(CLIENT, net.service(1), one_of(&["pod1b"])));
        steps.push(Step::Wait(Duration::from_millis(500)));
    }
    Script::steps(steps)
}

fn dead(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).affinity(10_800).node_port(30001)),
        apply(net.slice("web", &Ep::all(&["pod1b"]))),
        tcp(CLIENT, net.service(1), all(&["pod1b"], Source::Node(1))),
        apply(net.slice("web", &Ep::all(&["pod1b", "pod2b"]))),
        tcp(CLIENT, net.service(1), one_of(&["pod1b"])),
        apply(net.slice("web", &[Ep::unready("pod1b"), Ep::ready("pod2b")])),
        tcp(CLIENT, net.service(1), one_of(&["pod2b"])),
        tcp(CLIENT, net.node_port(1, 30001), one_of(&["pod2b"])),
        // Back again, but forgotten.
        apply(net.slice("web", &Ep::all(&["pod1b", "pod2b"]))),
        tcp(CLIENT, net.service(1), one_of(&["pod2b"])),
        apply(net.slice("web", &[])),
        tcp(CLIENT, net.service(1), Expect::Refused),
    ])
}

fn local(net: &Net) -> Script {
    let to = net.node_port(1, 30001);
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).affinity(10_800).node_port(30001).external_local()),
        apply(net.slice("web", &Ep::all(&["pod1b", "pod2a"]))),
        // Whom the client is remembered with among all does not count among those here.
        tcp(CLIENT, net.service(1), one_of(&["pod1b", "pod2a"])),
        tcp(CLIENT, to, all(&["pod1b"], Source::Own)),
        tcp(POD1, to, one_of(&["pod1b", "pod2a"])),
        apply(net.slice("web", &Ep::all(&["pod2a"]))),
        tcp(CLIENT, to, Expect::TimedOut),
        tcp(POD1, to, all(&["pod2a"], Source::Own)),
    ])
}
