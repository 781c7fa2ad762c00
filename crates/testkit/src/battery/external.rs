//! External IPs and load-balancer IPs: both traffic policies, source ranges, health checks.

use super::{
    CLIENT, Case, Expect, LabNetwork, NODE1, NODE2, POD1, POD2, PODS, Script, Source, Step, all, apply, tcp,
};
use crate::objects::{Endpoint, Service};
use portway_model::Family;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(super) const CASES: &[Case] = &[
    Case { name: "an_address_that_cannot_be_used_is_left_out_alone", script: bad_address },
    Case { name: "a_cluster_ip_wins_over_an_external_ip", script: cluster_ip_wins },
    Case { name: "load_balancer_ip_policy_cluster", script: balancer_cluster },
    Case { name: "load_balancer_ip_policy_local", script: balancer_local },
    Case { name: "load_balancer_source_ranges", script: source_ranges },
    Case { name: "load_balancer_ip_mode_proxy_is_not_translated", script: ip_mode },
    Case { name: "external_ip_policy_cluster", script: external_cluster },
    Case { name: "external_ip_policy_local", script: external_local },
    Case { name: "health_check_node_port", script: health },
];

fn at(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 80)
}

fn cluster(service: Service, net: &LabNetwork, to: SocketAddr) -> Script {
    let others = ["pod1b", "pod2a", "pod2b"];
    Script::steps(vec![
        apply(service),
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(CLIENT, to, all(PODS, Source::Node(1))),
        tcp(NODE2, to, all(PODS, Source::Node(2))),
        tcp(POD1, to, all(PODS, Source::Node(1))),
        apply(net.slice("web", &Endpoint::all(&others))),
        tcp(CLIENT, to, all(&others, Source::Node(1))),
    ])
}

/// Policy Local: traffic that begins on a node may go to any endpoint; traffic from outside goes to local endpoints and
/// keeps its source address.
fn local(service: Service, net: &LabNetwork, to: SocketAddr) -> Script {
    Script::steps(vec![
        apply(service),
        apply(net.slice("web", &Endpoint::all(&["pod1b", "pod2b"]))),
        tcp(CLIENT, to, all(&["pod1b"], Source::Own)),
        tcp(POD1, to, all(&["pod1b", "pod2b"], Source::Own)),
        tcp(NODE1, to, all(&["pod1b", "pod2b"], Source::Node(1))),
        // No endpoint on node1, one on node2.
        apply(net.slice("web", &Endpoint::all(&["pod2b"]))),
        tcp(CLIENT, to, Expect::TimedOut),
        tcp(POD1, to, all(&["pod2b"], Source::Own)),
        tcp(NODE1, to, all(&["pod2b"], Source::Node(1))),
        tcp(POD2, to, all(&["pod2b"], Source::Own)),
        apply(net.slice("web", &[])),
        tcp(CLIENT, to, Expect::Refused),
        tcp(POD1, to, Expect::Refused),
    ])
}

/// A load balancer's address that is a loopback address, as tunnels write it.
fn bad_address(net: &LabNetwork) -> Script {
    let loopback: IpAddr = match net.family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    let ips = [loopback, net.load_balancer_ip(1)];
    Script::steps(vec![
        apply(net.service("web", 1).node_port(30001).load_balancer_ips(&ips, None)),
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(POD1, net.at_cluster_ip(1), all(PODS, Source::Any)),
        tcp(CLIENT, net.node_port(2, 30001), all(PODS, Source::Node(2))),
        tcp(CLIENT, at(net.load_balancer_ip(1)), all(PODS, Source::Node(1))),
    ])
}

/// Another Service must not divert the traffic of a cluster IP, even if it was there first.
fn cluster_ip_wins(net: &LabNetwork) -> Script {
    let ask = |pods: &[&'static str]| tcp(POD1, net.at_cluster_ip(1), all(pods, Source::Any));
    Script::steps(vec![
        apply(net.service("thief", 2).external_ips(&[net.cluster_ip(1), net.external_ip(1)])),
        apply(net.slice("thief", &Endpoint::all(&["pod2b"]))),
        tcp(CLIENT, at(net.external_ip(1)), all(&["pod2b"], Source::Node(1))),
        apply(net.service("web", 1)),
        apply(net.slice("web", &Endpoint::all(&["pod1b"]))),
        ask(&["pod1b"]),
        Step::KillAgents,
        Step::StartAgents,
        ask(&["pod1b"]),
        tcp(CLIENT, at(net.external_ip(1)), all(&["pod2b"], Source::Node(1))),
        Step::DeleteService("web"),
        ask(&["pod2b"]),
    ])
}

fn balancer_cluster(net: &LabNetwork) -> Script {
    cluster(
        net.service("web", 1).load_balancer_ips(&[net.load_balancer_ip(1)], None),
        net,
        at(net.load_balancer_ip(1)),
    )
}

fn balancer_local(net: &LabNetwork) -> Script {
    let service =
        net.service("web", 1).load_balancer_ips(&[net.load_balancer_ip(1)], Some("VIP")).external_local();
    local(service, net, at(net.load_balancer_ip(1)))
}

fn external_cluster(net: &LabNetwork) -> Script {
    cluster(net.service("web", 1).external_ips(&[net.external_ip(1)]), net, at(net.external_ip(1)))
}

fn external_local(net: &LabNetwork) -> Script {
    let service = net.service("web", 1).external_ips(&[net.external_ip(1)]).external_local();
    local(service, net, at(net.external_ip(1)))
}

fn source_ranges(net: &LabNetwork) -> Script {
    let service = || {
        net.service("web", 1)
            .node_port(30001)
            .external_ips(&[net.external_ip(1)])
            .load_balancer_ips(&[net.load_balancer_ip(1)], None)
    };
    let to = at(net.load_balancer_ip(1));
    let slice = apply(net.slice("web", &Endpoint::all(&["pod1b", "pod2b"])));
    let both = &["pod1b", "pod2b"];
    Script::steps(vec![
        apply(service().source_ranges(&["10.244.2.0/24", "fd10:244:2::/64"])),
        slice,
        tcp(POD2, to, all(both, Source::Node(2))),
        tcp(CLIENT, to, Expect::TimedOut),
        tcp(POD1, to, Expect::TimedOut),
        tcp(NODE1, to, Expect::TimedOut),
        // Source ranges apply to load-balancer IPs only.
        tcp(CLIENT, at(net.external_ip(1)), all(both, Source::Node(1))),
        tcp(CLIENT, net.node_port(1, 30001), all(both, Source::Node(1))),
        tcp(CLIENT, net.at_cluster_ip(1), all(both, Source::Node(1))),
        // Overlapping ranges, blanks around them, and the client among them.
        apply(service().source_ranges(&[" 192.168.0.0/16 ", "192.168.50.0/24", "fd50::/64", "fd50::/16"])),
        tcp(CLIENT, to, all(both, Source::Node(1))),
        tcp(NODE1, to, all(both, Source::Node(1))),
        tcp(POD1, to, Expect::TimedOut),
        // A range of all addresses allows every client.
        apply(service().source_ranges(&["192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32", "::/0"])),
        tcp(POD1, to, all(both, Source::Node(1))),
        tcp(CLIENT, to, all(both, Source::Node(1))),
    ])
}

fn ip_mode(net: &LabNetwork) -> Script {
    Script::steps(vec![
        apply(
            net.service("web", 1)
                .load_balancer_ips(&[net.load_balancer_ip(1)], Some("Proxy"))
                .load_balancer_ips(&[net.load_balancer_ip(2)], None),
        ),
        apply(net.slice("web", &Endpoint::all(&["pod1a"]))),
        tcp(CLIENT, at(net.load_balancer_ip(2)), all(&["pod1a"], Source::Node(1))),
        tcp(CLIENT, at(net.load_balancer_ip(1)), Expect::TimedOut),
    ])
}

fn health(net: &LabNetwork) -> Script {
    const CHECK: u16 = 32001;
    let service = net
        .service("web", 1)
        .load_balancer_ips(&[net.load_balancer_ip(1)], None)
        .external_local()
        .health_check_node_port(CHECK);
    let health_check =
        |node, status, local_endpoints| Step::Health { node, port: CHECK, status, local_endpoints };
    Script::steps(vec![
        apply(service),
        apply(net.slice("web", &Endpoint::all(&["pod1a", "pod1b"]))),
        health_check(1, 200, 2),
        health_check(2, 503, 0),
        apply(net.slice("web", &[Endpoint::terminating("pod1a"), Endpoint::ready("pod2a")])),
        health_check(1, 503, 0),
        health_check(2, 200, 1),
    ])
}
