//! Ports, protocols, slices and labels: which endpoints belong to which frontend.

use super::objects::NAMED;
use super::{
    CLIENT, Case, Ep, Expect, NODE1, NODE2, Net, OTHER_PORT, POD1, POD2, PORT, Script, Source, Step, Svc,
    all, apply, tcp, udp,
};
use portway_model::Protocol::{Tcp, Udp};
use portway_model::api::Object;
use std::net::SocketAddr;
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "named_ports_and_several_ports", script: several_ports },
    Case { name: "target_ports_differ_by_pod", script: differing_targets },
    Case { name: "clients_move_between_pods_whose_target_ports_differ", script: moving_clients },
    Case { name: "two_protocols_on_one_port", script: two_protocols },
    Case { name: "several_slices", script: several_slices },
    Case { name: "other_proxys_services_and_headless_slices_are_left_alone", script: labels },
];

fn several_ports(net: &Net) -> Script {
    let at = |port| SocketAddr::new(net.vip(1), port);
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).ports(&[("web", Tcp, 80), ("admin", Tcp, 81)])),
        apply(net.slice_of("web", "web-1", &NAMED[..1], &Ep::all(&["pod1b"]))),
        apply(net.slice_of("web", "web-2", &NAMED[1..], &Ep::all(&["pod2b"]))),
        tcp(POD1, at(80), all(&["pod1b"], Source::Own)),
        tcp(POD1, at(81), all(&["pod2b"], Source::Own)),
        apply(net.slice_of("web", "web-1", &NAMED, &Ep::all(&["pod1b"]))),
        tcp(POD1, at(81), all(&["pod1b", "pod2b"], Source::Own)),
    ])
}

fn differing_targets(net: &Net) -> Script {
    let both = &["pod1b", "pod2b"];
    let mut steps = vec![
        apply(Svc::new(net, "web", 1).ports(&[("web", Tcp, 80)])),
        apply(net.slice_of("web", "web-1", &[("web", Tcp, PORT)], &Ep::all(&["pod1b"]))),
        apply(net.slice_of("web", "web-2", &[("web", Tcp, OTHER_PORT)], &Ep::all(&["pod2b"]))),
        tcp(POD1, net.service(1), all(both, Source::Own)),
        // Some of them come to stick to the one, some to the other.
        apply(Svc::new(net, "web", 1).ports(&[("web", Tcp, 80)]).affinity(600)),
    ];
    for from in [POD1, POD2, CLIENT, NODE1, NODE2] {
        steps.push(tcp(from, net.service(1), Expect::Sticks(both.to_vec())));
    }
    Script::steps(steps)
}

/// By a time-out of a second.
fn moving_clients(net: &Net) -> Script {
    let sooner_or_later = |pod| Step::ProbeAfterPauses {
        pause: Duration::from_millis(1500),
        from: POD1,
        to: net.service(1),
        expect: Expect::Sticks(vec![pod]),
    };
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).ports(&[("web", Tcp, 80)]).affinity(1)),
        apply(net.slice_of("web", "web-1", &[("web", Tcp, PORT)], &Ep::all(&["pod1b"]))),
        apply(net.slice_of("web", "web-2", &[("web", Tcp, OTHER_PORT)], &Ep::all(&["pod2b"]))),
        sooner_or_later("pod1b"),
        sooner_or_later("pod2b"),
    ])
}

fn two_protocols(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "dns", 1).ports(&[("dns", Udp, 80), ("dns-tcp", Tcp, 80)])),
        apply(net.slice_of("dns", "dns-1", &[("dns", Udp, PORT)], &Ep::all(&["pod1b"]))),
        apply(net.slice_of("dns", "dns-2", &[("dns-tcp", Tcp, PORT)], &Ep::all(&["pod2b"]))),
        udp(POD1, net.service(1), all(&["pod1b"], Source::Own)),
        tcp(POD1, net.service(1), all(&["pod2b"], Source::Own)),
    ])
}

fn several_slices(net: &Net) -> Script {
    let ports = [("", Tcp, PORT)];
    Script::steps(vec![
        apply(Svc::new(net, "web", 1)),
        apply(net.slice_of("web", "web-1", &ports, &Ep::all(&["pod1b", "pod2a"]))),
        apply(net.slice_of("web", "web-2", &ports, &Ep::all(&["pod2a", "pod2b"]))),
        tcp(POD1, net.service(1), all(&["pod1b", "pod2a", "pod2b"], Source::Own)),
        // The same endpoint twice, once on its way out: it counts as staying.
        apply(net.slice_of("web", "web-1", &ports, &[Ep::ready("pod1b"), Ep::terminating("pod2a")])),
        tcp(POD1, net.service(1), all(&["pod1b", "pod2a", "pod2b"], Source::Own)),
        apply(net.slice_of("web", "web-2", &ports, &[])),
        tcp(POD1, net.service(1), all(&["pod1b"], Source::Own)),
    ])
}

fn labels(net: &Net) -> Script {
    let mut headless = net.slice("web", &Ep::all(&["pod2b"]));
    if let Object::EndpointSlice(slice) = &mut headless {
        let metadata = slice.metadata.get_or_insert_default();
        metadata.name = "web-headless".into();
        metadata.labels.insert("service.kubernetes.io/headless".into(), String::new());
    }
    let foreign =
        || Svc::new(net, "foreign", 2).label("service.kubernetes.io/service-proxy-name", "somebody");
    Script::steps(vec![
        apply(Svc::new(net, "web", 1)),
        apply(net.slice("web", &Ep::all(&["pod1b"]))),
        apply(headless),
        apply(foreign()),
        apply(net.slice_of("foreign", "foreign", &[("", Tcp, PORT)], &Ep::all(&["pod1b"]))),
        tcp(CLIENT, net.service(1), all(&["pod1b"], Source::Node(1))),
        tcp(CLIENT, net.service(2), Expect::TimedOut),
        apply(Svc::new(net, "foreign", 2)),
        tcp(CLIENT, net.service(2), all(&["pod1b"], Source::Node(1))),
        apply(foreign()),
        tcp(CLIENT, net.service(2), Expect::TimedOut),
    ])
}
