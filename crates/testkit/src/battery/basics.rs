//! Cluster IPs.

use super::{
    CLIENT, Case, Expect, LabNetwork, NODE1, NODE2, POD1, POD2, PODS, Script, Sender, Source, Step, all,
    apply, tcp, udp,
};
use crate::objects::Endpoint;
use std::net::SocketAddr;

pub(super) const CASES: &[Case] = &[
    Case { name: "cluster_ip_from_pod", script: from_pod },
    Case { name: "cluster_ip_from_node", script: from_node },
    Case { name: "cluster_ip_from_outside", script: from_outside },
    Case { name: "udp", script: by_udp },
    Case { name: "hairpin", script: hairpin },
    Case { name: "no_endpoints_is_refused", script: no_endpoints },
    Case { name: "unknown_port_is_refused_and_unallocated_address_dropped", script: unknown },
    Case { name: "service_deleted_and_created_again", script: deleted_and_created_again },
    Case { name: "endpoints_are_added_and_removed", script: added_and_removed },
];

fn web(net: &LabNetwork) -> Vec<Step> {
    vec![apply(net.service("web", 1)), apply(net.slice("web", &Endpoint::all(PODS)))]
}

fn from_pod(net: &LabNetwork) -> Script {
    let mut steps = web(net);
    steps.extend(
        [POD1, POD2, Sender::Pod("pod1b")]
            .map(|pod| tcp(pod, net.at_cluster_ip(1), Expect::Spread(PODS.to_vec(), Source::Any))),
    );
    // Endpoints other than the client itself see the address of the pod.
    steps.push(apply(net.slice("web", &Endpoint::all(&["pod1b", "pod2a", "pod2b"]))));
    steps.push(tcp(POD1, net.at_cluster_ip(1), all(&["pod1b", "pod2a", "pod2b"], Source::Own)));
    Script::steps(steps)
}

fn from_node(net: &LabNetwork) -> Script {
    let mut steps = web(net);
    steps.push(tcp(NODE1, net.at_cluster_ip(1), all(PODS, Source::Node(1))));
    steps.push(tcp(NODE2, net.at_cluster_ip(1), all(PODS, Source::Node(2))));
    Script::steps(steps)
}

fn from_outside(net: &LabNetwork) -> Script {
    let mut steps = web(net);
    steps.push(tcp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))));
    Script::steps(steps)
}

fn by_udp(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1).udp()),
        apply(net.slice("web", &Endpoint::all(&["pod1b", "pod2a"]))),
        udp(POD1, net.at_cluster_ip(1), all(&["pod1b", "pod2a"], Source::Own)),
        udp(NODE2, net.at_cluster_ip(1), all(&["pod1b", "pod2a"], Source::Node(2))),
        udp(CLIENT, net.at_cluster_ip(1), all(&["pod1b", "pod2a"], Source::Node(1))),
    ])
}

fn hairpin(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(net.service("web", 1)),
        apply(net.service("web-udp", 2).udp()),
        apply(net.slice("web", &Endpoint::all(&["pod1a"]))),
        apply(net.slice("web-udp", &Endpoint::all(&["pod1a"]))),
        tcp(POD1, net.at_cluster_ip(1), all(&["pod1a"], Source::Node(1))),
        udp(POD1, net.at_cluster_ip(2), all(&["pod1a"], Source::Node(1))),
        tcp(POD2, net.at_cluster_ip(1), all(&["pod1a"], Source::Own)),
    ])
}

fn no_endpoints(net: &LabNetwork) -> Script {
    let service = |name: &str, n, port| {
        net.service(name, n)
            .node_port(port)
            .external_ips(&[net.external_ip(n)])
            .load_balancer_ips(&[net.load_balancer_ip(n)], None)
    };
    let mut steps = vec![
        apply(service("tcp", 1, 30001)),
        apply(service("udp", 2, 30002).udp()),
        apply(net.slice("tcp", &[Endpoint::unready("pod1a")])),
    ];
    for from in [POD1, NODE1, CLIENT] {
        for ip in [net.cluster_ip(1), net.external_ip(1), net.load_balancer_ip(1)] {
            steps.push(tcp(from, SocketAddr::new(ip, 80), Expect::Refused));
        }
        steps.push(tcp(from, net.node_port(1, 30001), Expect::Refused));
        steps.push(udp(from, net.at_cluster_ip(2), Expect::Refused));
        steps.push(udp(from, net.node_port(1, 30002), Expect::Refused));
    }
    steps.push(tcp(CLIENT, net.node_port(2, 30001), Expect::Refused));
    Script::steps(steps)
}

fn unknown(net: &LabNetwork) -> Script {
    let mut steps = web(net);
    steps.push(tcp(POD1, net.at_cluster_ip(1), Expect::Spread(PODS.to_vec(), Source::Any)));
    for from in [POD1, NODE1, CLIENT] {
        steps.push(tcp(from, SocketAddr::new(net.cluster_ip(1), 81), Expect::Refused));
        steps.push(udp(from, SocketAddr::new(net.cluster_ip(1), 80), Expect::Refused));
        steps.push(tcp(from, net.at_cluster_ip(77), Expect::TimedOut));
    }
    Script::steps(steps)
}

fn deleted_and_created_again(net: &LabNetwork) -> Script {
    let mut steps = web(net);
    steps.push(tcp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))));
    steps.push(Step::DeleteService("web"));
    steps.push(tcp(CLIENT, net.at_cluster_ip(1), Expect::TimedOut));
    steps.push(apply(net.service("web", 1)));
    steps.push(tcp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))));
    // With another cluster IP.
    steps.push(apply(net.service("web", 2)));
    steps.push(tcp(CLIENT, net.at_cluster_ip(2), all(PODS, Source::Node(1))));
    steps.push(tcp(CLIENT, net.at_cluster_ip(1), Expect::TimedOut));
    Script::steps(steps)
}

fn added_and_removed(net: &LabNetwork) -> Script {
    let sets: [&[&'static str]; 5] =
        [&["pod1b"], &["pod1b", "pod2a", "pod2b"], &["pod2a", "pod2b"], &["pod2b"], &["pod1b", "pod2a"]];
    let mut steps = vec![apply(net.service("web", 1))];
    for pods in sets {
        steps.push(apply(net.slice("web", &Endpoint::all(pods))));
        steps.push(tcp(POD1, net.at_cluster_ip(1), all(pods, Source::Own)));
    }
    steps.push(Step::DeleteSlice("web"));
    steps.push(tcp(POD1, net.at_cluster_ip(1), Expect::Refused));
    Script::steps(steps)
}
