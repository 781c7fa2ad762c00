//! Cluster IPs, as everybody uses them.

use super::{
    CLIENT, Case, Ep, Expect, NODE1, NODE2, Net, POD1, POD2, PODS, Place, Script, Source, Step, Svc, all,
    apply, service_cidr, tcp, udp,
};
use portway_model::api::Kind;
use std::net::SocketAddr;

pub(super) const CASES: &[Case] = &[
    Case { name: "cluster_ip_from_pod", script: from_pod },
    Case { name: "cluster_ip_from_node", script: from_node },
    Case { name: "cluster_ip_from_outside", script: from_outside },
    Case { name: "udp", script: by_udp },
    Case { name: "hairpin", script: hairpin },
    Case { name: "no_endpoints_is_refused", script: no_endpoints },
    Case { name: "unknown_port_is_refused_and_unallocated_address_dropped", script: unknown },
    Case { name: "service_deleted_and_made_again", script: deleted_and_made_again },
    Case { name: "endpoints_come_and_go", script: come_and_go },
];

fn web(net: &Net) -> Vec<Step> {
    vec![apply(Svc::new(net, "web", 1)), apply(net.slice("web", &Ep::all(PODS)))]
}

fn from_pod(net: &Net) -> Script {
    let mut steps = web(net);
    steps.extend(
        [POD1, POD2, Place::Pod("pod1b")]
            .map(|pod| tcp(pod, net.service(1), Expect::Spread(PODS.to_vec(), Source::Any))),
    );
    // Its own endpoint apart, which sees the node, everybody sees the pod.
    steps.push(apply(net.slice("web", &Ep::all(&["pod1b", "pod2a", "pod2b"]))));
    steps.push(tcp(POD1, net.service(1), all(&["pod1b", "pod2a", "pod2b"], Source::Own)));
    Script::steps(steps)
}

fn from_node(net: &Net) -> Script {
    let mut steps = web(net);
    steps.push(tcp(NODE1, net.service(1), all(PODS, Source::Node(1))));
    steps.push(tcp(NODE2, net.service(1), all(PODS, Source::Node(2))));
    Script::steps(steps)
}

fn from_outside(net: &Net) -> Script {
    let mut steps = web(net);
    steps.push(tcp(CLIENT, net.service(1), all(PODS, Source::Node(1))));
    Script::steps(steps)
}

fn by_udp(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).udp()),
        apply(net.slice("web", &Ep::all(&["pod1b", "pod2a"]))),
        udp(POD1, net.service(1), all(&["pod1b", "pod2a"], Source::Own)),
        udp(NODE2, net.service(1), all(&["pod1b", "pod2a"], Source::Node(2))),
        udp(CLIENT, net.service(1), all(&["pod1b", "pod2a"], Source::Node(1))),
    ])
}

fn hairpin(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "web", 1)),
        apply(Svc::new(net, "web-udp", 2).udp()),
        apply(net.slice("web", &Ep::all(&["pod1a"]))),
        apply(net.slice("web-udp", &Ep::all(&["pod1a"]))),
        tcp(POD1, net.service(1), all(&["pod1a"], Source::Node(1))),
        udp(POD1, net.service(2), all(&["pod1a"], Source::Node(1))),
        tcp(POD2, net.service(1), all(&["pod1a"], Source::Own)),
    ])
}

fn no_endpoints(net: &Net) -> Script {
    let service = |name: &str, n, port| {
        Svc::new(net, name, n).node_port(port).external_ip(net.external(n)).balancer(net.balancer(n), None)
    };
    let mut steps = vec![
        apply(service("tcp", 1, 30001)),
        apply(service("udp", 2, 30002).udp()),
        apply(net.slice("tcp", &[Ep::unready("pod1a")])),
    ];
    for from in [POD1, NODE1, CLIENT] {
        for ip in [net.vip(1), net.external(1), net.balancer(1)] {
            steps.push(tcp(from, SocketAddr::new(ip, 80), Expect::Refused));
        }
        steps.push(tcp(from, net.node_port(1, 30001), Expect::Refused));
        steps.push(udp(from, net.service(2), Expect::Refused));
        steps.push(udp(from, net.node_port(1, 30002), Expect::Refused));
    }
    steps.push(tcp(CLIENT, net.node_port(2, 30001), Expect::Refused));
    Script::steps(steps)
}

fn unknown(net: &Net) -> Script {
    let mut steps = web(net);
    steps.push(apply(service_cidr(net)));
    steps.push(tcp(POD1, net.service(1), Expect::Spread(PODS.to_vec(), Source::Any)));
    for from in [POD1, NODE1, CLIENT] {
        steps.push(tcp(from, SocketAddr::new(net.vip(1), 81), Expect::Refused));
        steps.push(udp(from, SocketAddr::new(net.vip(1), 80), Expect::Refused));
        steps.push(tcp(from, net.service(77), Expect::TimedOut));
    }
    Script::steps(steps)
}

fn deleted_and_made_again(net: &Net) -> Script {
    let mut steps = web(net);
    steps.push(apply(service_cidr(net)));
    steps.push(tcp(CLIENT, net.service(1), all(PODS, Source::Node(1))));
    steps.push(Step::Delete(Kind::Service, "web".into()));
    steps.push(tcp(CLIENT, net.service(1), Expect::TimedOut));
    steps.push(apply(Svc::new(net, "web", 1)));
    steps.push(tcp(CLIENT, net.service(1), all(PODS, Source::Node(1))));
    // Under another address.
    steps.push(apply(Svc::new(net, "web", 2)));
    steps.push(tcp(CLIENT, net.service(2), all(PODS, Source::Node(1))));
    steps.push(tcp(CLIENT, net.service(1), Expect::TimedOut));
    Script::steps(steps)
}

fn come_and_go(net: &Net) -> Script {
    let sets: [&[&'static str]; 5] =
        [&["pod1b"], &["pod1b", "pod2a", "pod2b"], &["pod2a", "pod2b"], &["pod2b"], &["pod1b", "pod2a"]];
    let mut steps = vec![apply(Svc::new(net, "web", 1))];
    for pods in sets {
        steps.push(apply(net.slice("web", &Ep::all(pods))));
        steps.push(tcp(POD1, net.service(1), all(pods, Source::Own)));
    }
    steps.push(Step::Delete(Kind::EndpointSlice, "web".into()));
    steps.push(tcp(POD1, net.service(1), Expect::Refused));
    Script::steps(steps)
}
