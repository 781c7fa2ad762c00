//! Cluster IPs: which endpoints are reached, and the verdict where there are none.

use super::{Case, Scenario};
use crate::cluster::{TestCluster, service};
use crate::objects::Endpoint;
use portway_model::Protocol::{Sctp, Tcp, Udp};

pub(super) const CASES: &[Case] = packet_cases![
    "cluster_ips":
    cluster_ip_reaches_every_endpoint,
    connection_of_an_endpoint_to_itself_is_masqueraded,
    unknown_port_is_rejected_and_unallocated_address_dropped,
    service_without_endpoints_rejects,
    two_protocols_share_a_port,
    internal_policy_local_uses_endpoints_of_this_node,
    ready_endpoints_then_terminating_ones_then_rejection,
    hints_select_by_node_then_by_zone,
];

fn abc() -> Vec<Endpoint> {
    Endpoint::all(&["a", "b", "c"])
}

fn cluster_ip_reaches_every_endpoint() -> Vec<Scenario> {
    let cluster = TestCluster::new().service(service("web", 1)).slice("web", &abc());
    vec![Scenario::new(
        cluster,
        &[
            ("d", "svc1:80", "a b c"),
            ("client", "svc1:80", "a b c masqueraded"),
            ("node", "svc1:80", "a b c masqueraded"),
            ("node2", "svc1:80", "a b c masqueraded"),
        ],
    )]
}

fn connection_of_an_endpoint_to_itself_is_masqueraded() -> Vec<Scenario> {
    let cluster = TestCluster::new().service(service("web", 1)).slice("web", &abc());
    vec![Scenario::new(
        cluster,
        &[
            ("a", "svc1:80", "a masqueraded or b c"),
            ("b", "svc1:80", "a c or b masqueraded"),
            // Traffic of an endpoint on another node is masqueraded on that node.
            ("c", "svc1:80", "a b c"),
        ],
    )]
}

fn unknown_port_is_rejected_and_unallocated_address_dropped() -> Vec<Scenario> {
    let cluster = TestCluster::new().service(service("web", 1)).slice("web", &abc());
    vec![Scenario::new(
        cluster,
        &[
            ("a", "svc1:81", "rejected"),
            ("client", "svc1:81", "rejected"),
            ("node", "svc1:81", "rejected"),
            ("a", "svc1:80/UDP", "rejected"),
            ("a", "unallocated:80", "dropped"),
            ("client", "unallocated:80", "dropped"),
            ("node", "unallocated:80", "dropped"),
            ("a", "stranger:80", "untouched"),
            ("node", "stranger:80", "untouched"),
            ("a", "node:80", "untouched"),
        ],
    )]
}

fn service_without_endpoints_rejects() -> Vec<Scenario> {
    let dns = service("dns", 2).ports(&[("dns", Udp, 53)]);
    let cluster = TestCluster::new().service(service("web", 1)).service(dns);
    let rows = [
        ("a", "svc1:80", "rejected"),
        ("client", "svc1:80", "rejected"),
        ("node", "svc1:80", "rejected"),
        ("a", "svc2:53/UDP", "rejected"),
        ("a", "svc2:53", "rejected"),
    ];
    vec![Scenario::new(cluster, &rows)]
}

fn two_protocols_share_a_port() -> Vec<Scenario> {
    let dns = service("dns", 1).ports(&[("dns", Udp, 53), ("dns-tcp", Tcp, 53), ("assoc", Sctp, 53)]);
    let mut cluster = TestCluster::new().service(dns);
    cluster.apply_slice("dns", ("dns", Udp, 5353), &Endpoint::all(&["a"]));
    let rows =
        [("b", "svc1:53/UDP", "a:5353"), ("b", "svc1:53", "rejected"), ("b", "svc1:53/SCTP", "rejected")];
    vec![Scenario::new(cluster, &rows)]
}

fn internal_policy_local_uses_endpoints_of_this_node() -> Vec<Scenario> {
    let local = |name, n| service(name, n).internal_local();
    let cluster = TestCluster::new()
        .service(local("here", 1))
        .slice("here", &abc())
        .service(local("elsewhere", 2))
        .slice("elsewhere", &Endpoint::all(&["c"]))
        .service(local("nowhere", 3));
    vec![Scenario::new(
        cluster,
        &[
            ("d", "svc1:80", "a b"),
            ("node", "svc1:80", "a b masqueraded"),
            ("d", "svc2:80", "dropped"),
            ("node", "svc2:80", "dropped"),
            ("client", "svc2:80", "dropped"),
            ("d", "svc3:80", "rejected"),
        ],
    )]
}

fn ready_endpoints_then_terminating_ones_then_rejection() -> Vec<Scenario> {
    let cluster = TestCluster::new()
        .service(service("mixed", 1))
        .slice("mixed", &[Endpoint::ready("a"), Endpoint::terminating("b"), Endpoint::unready("c")])
        .service(service("leaving", 2))
        .slice("leaving", &[Endpoint::terminating("b"), Endpoint::terminated("c")])
        .service(service("gone", 3))
        .slice("gone", &[Endpoint::terminated("c"), Endpoint::serving_unready("d")])
        .service(service("local", 4).internal_local())
        .slice("local", &[Endpoint::terminating("a"), Endpoint::ready("c")]);
    vec![Scenario::new(
        cluster,
        &[("d", "svc1:80", "a"), ("d", "svc2:80", "b"), ("d", "svc3:80", "rejected"), ("d", "svc4:80", "a")],
    )]
}

fn hints_select_by_node_then_by_zone() -> Vec<Scenario> {
    let hinted = |host: &str, zones: &[&str], nodes: &[&str]| Endpoint::ready(host).zones(zones).nodes(nodes);
    let cluster = TestCluster::new()
        .service(service("zone", 1))
        .slice("zone", &[hinted("a", &["here"], &[]), hinted("c", &["there"], &[])])
        .service(service("node", 2))
        .slice("node", &[hinted("b", &["there"], &["node1"]), hinted("c", &["here"], &["node2"])])
        .service(service("partial", 3))
        .slice("partial", &[hinted("a", &["here"], &[]), Endpoint::ready("c")])
        .service(service("others", 4))
        .slice("others", &[hinted("a", &["there"], &[]), hinted("c", &["there"], &[])]);
    vec![Scenario::new(
        cluster,
        &[("d", "svc1:80", "a"), ("d", "svc2:80", "b"), ("d", "svc3:80", "a c"), ("d", "svc4:80", "a c")],
    )]
}
