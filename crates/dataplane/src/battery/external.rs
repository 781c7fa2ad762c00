//! External and load-balancer addresses, both policies, source ranges, health checks.

use super::{
    CLIENT, Case, Ep, Expect, NODE1, NODE2, Net, POD1, POD2, PODS, Script, Source, Step, Svc, all, apply, tcp,
};
use std::net::{IpAddr, SocketAddr};

pub(super) const CASES: &[Case] = &[
    Case { name: "load_balancer_ip_policy_cluster", script: balancer_cluster },
    Case { name: "load_balancer_ip_policy_local", script: balancer_local },
    Case { name: "load_balancer_source_ranges", script: source_ranges },
    Case { name: "load_balancer_ip_mode_proxy_is_left_alone", script: ip_mode },
    Case { name: "external_ip_policy_cluster", script: external_cluster },
    Case { name: "external_ip_policy_local", script: external_local },
    Case { name: "health_check_node_port", script: health },
];

fn at(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 80)
}

fn cluster(service: Svc, net: &Net, to: SocketAddr) -> Script {
    let others = ["pod1b", "pod2a", "pod2b"];
    Script::steps(vec![
        apply(service),
        apply(net.slice("web", &Ep::all(PODS))),
        tcp(CLIENT, to, all(PODS, Source::Node(1))),
        tcp(NODE2, to, all(PODS, Source::Node(2))),
        tcp(POD1, to, all(PODS, Source::Node(1))),
        apply(net.slice("web", &Ep::all(&others))),
        tcp(CLIENT, to, all(&others, Source::Node(1))),
    ])
}

/// The short cut: what begins on a node may go anywhere; what comes from outside stays and keeps its source.
fn local(service: Svc, net: &Net, to: SocketAddr) -> Script {
    Script::steps(vec![
        apply(service),
        apply(net.slice("web", &Ep::all(&["pod1b", "pod2b"]))),
        tcp(CLIENT, to, all(&["pod1b"], Source::Own)),
        tcp(POD1, to, all(&["pod1b", "pod2b"], Source::Own)),
        tcp(NODE1, to, all(&["pod1b", "pod2b"], Source::Node(1))),
        // None here, some elsewhere.
        apply(net.slice("web", &Ep::all(&["pod2b"]))),
        tcp(CLIENT, to, Expect::TimedOut),
        tcp(POD1, to, all(&["pod2b"], Source::Own)),
        tcp(NODE1, to, all(&["pod2b"], Source::Node(1))),
        tcp(POD2, to, all(&["pod2b"], Source::Own)),
        apply(net.slice("web", &[])),
        tcp(CLIENT, to, Expect::Refused),
        tcp(POD1, to, Expect::Refused),
    ])
}

fn balancer_cluster(net: &Net) -> Script {
    cluster(Svc::new(net, "web", 1).balancer(net.balancer(1), None), net, at(net.balancer(1)))
}

fn balancer_local(net: &Net) -> Script {
    let service = Svc::new(net, "web", 1).balancer(net.balancer(1), Some("VIP")).external_local();
    local(service, net, at(net.balancer(1)))
}

fn external_cluster(net: &Net) -> Script {
    cluster(Svc::new(net, "web", 1).external_ip(net.external(1)), net, at(net.external(1)))
}

fn external_local(net: &Net) -> Script {
    let service = Svc::new(net, "web", 1).external_ip(net.external(1)).external_local();
    local(service, net, at(net.external(1)))
}

fn source_ranges(net: &Net) -> Script {
    let service = || {
        Svc::new(net, "web", 1).node_port(30001).external_ip(net.external(1)).balancer(net.balancer(1), None)
    };
    let to = at(net.balancer(1));
    let slice = apply(net.slice("web", &Ep::all(&["pod1b", "pod2b"])));
    let both = &["pod1b", "pod2b"];
    Script::steps(vec![
        apply(service().from_only(&["10.244.2.0/24", "fd10:244:2::/64"])),
        slice,
        tcp(POD2, to, all(both, Source::Node(2))),
        tcp(CLIENT, to, Expect::TimedOut),
        tcp(POD1, to, Expect::TimedOut),
        tcp(NODE1, to, Expect::TimedOut),
        // Only load-balancer addresses are guarded.
        tcp(CLIENT, at(net.external(1)), all(both, Source::Node(1))),
        tcp(CLIENT, net.node_port(1, 30001), all(both, Source::Node(1))),
        tcp(CLIENT, net.service(1), all(both, Source::Node(1))),
        // Overlapping ranges, blanks around them, and the client among them.
        apply(service().from_only(&[" 192.168.0.0/16 ", "192.168.50.0/24", "fd50::/64", "fd50::/16"])),
        tcp(CLIENT, to, all(both, Source::Node(1))),
        tcp(NODE1, to, all(both, Source::Node(1))),
        tcp(POD1, to, Expect::TimedOut),
        // A range of everything is no limit.
        apply(service().from_only(&["192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32", "::/0"])),
        tcp(POD1, to, all(both, Source::Node(1))),
        tcp(CLIENT, to, all(both, Source::Node(1))),
    ])
}

fn ip_mode(net: &Net) -> Script {
    Script::steps(vec![
        apply(
            Svc::new(net, "web", 1).balancer(net.balancer(1), Some("Proxy")).balancer(net.balancer(2), None),
        ),
        apply(net.slice("web", &Ep::all(&["pod1a"]))),
        tcp(CLIENT, at(net.balancer(2)), all(&["pod1a"], Source::Node(1))),
        tcp(CLIENT, at(net.balancer(1)), Expect::TimedOut),
    ])
}

fn health(net: &Net) -> Script {
    const CHECK: u16 = 32001;
    let service = Svc::new(net, "web", 1)
        .balancer(net.balancer(1), None)
        .external_local()
        .spec(|s| s.health_check_node_port = CHECK.into());
    let asks = |node, status, local_endpoints| Step::Health { node, port: CHECK, status, local_endpoints };
    Script::steps(vec![
        apply(service),
        apply(net.slice("web", &Ep::all(&["pod1a", "pod1b"]))),
        asks(1, 200, 2),
        asks(2, 503, 0),
        apply(net.slice("web", &[Ep::terminating("pod1a"), Ep::ready("pod2a")])),
        asks(1, 503, 0),
        asks(2, 200, 1),
    ])
}
