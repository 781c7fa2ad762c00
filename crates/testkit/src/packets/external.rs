//! Node ports, load-balancer IPs and external IPs: traffic policies, source ranges, the addresses of node ports.

use super::{Case, Row, Scenario};
use crate::cluster::{TestCluster, both, service, service_with_all_frontends, settings};
use crate::objects::{Endpoint, Service};
use portway_dataplane::{NodePortAddresses, Settings};

pub(super) const CASES: &[Case] = packet_cases![
    "external":
    policy_cluster_reaches_all_and_masquerades,
    policy_local_keeps_the_source_and_uses_local_endpoints,
    policy_local_without_local_endpoints_drops_traffic_from_outside,
    without_endpoints_all_frontends_reject,
    internal_and_external_policy_are_independent,
    source_ranges_apply_to_the_load_balancer_ip_only,
    source_ranges_that_include_everything_or_the_node,
    load_balancer_ip_of_mode_proxy_is_untouched,
    node_ports_answer_at_the_configured_addresses,
    node_ports_are_rejected_at_the_configured_addresses_only,
    endpoint_on_the_node_itself_is_reached_without_masquerading,
];

/// The Service `web`, number 1, with every kind of frontend.
fn web() -> Service {
    service_with_all_frontends("web", 1)
}

/// A cluster with one Service and its ready endpoints.
fn cluster(service: Service, hosts: &[&str]) -> TestCluster {
    TestCluster::new().service(service).slice("web", &Endpoint::all(hosts))
}

const FRONTENDS: [&str; 3] = ["lb1:80", "ext1:80", "node:30001"];

/// The same rows for each kind of external frontend.
fn at_all_frontends(cluster: TestCluster, rows: &[(&'static str, &'static str)]) -> Scenario {
    let rows: Vec<Row> =
        FRONTENDS.iter().flat_map(|to| rows.iter().map(|(from, end)| (*from, *to, *end))).collect();
    Scenario::new(cluster, &rows)
}

fn policy_cluster_reaches_all_and_masquerades() -> Vec<Scenario> {
    let cluster = cluster(web(), &["a", "c"]);
    vec![at_all_frontends(
        cluster,
        &[
            ("client", "a c masqueraded"),
            ("node2", "a c masqueraded"),
            ("node", "a c masqueraded"),
            ("b", "a c masqueraded"),
        ],
    )]
}

fn policy_local_keeps_the_source_and_uses_local_endpoints() -> Vec<Scenario> {
    let cluster = cluster(web().external_local(), &["a", "b", "c"]);
    vec![at_all_frontends(
        cluster,
        &[
            ("client", "a b"),
            ("node2", "a b"),
            // Traffic that begins on this node may go to any endpoint.
            ("d", "a b c"),
            ("node", "a b c masqueraded"),
            ("alternative", "a b c masqueraded"),
        ],
    )]
}

fn policy_local_without_local_endpoints_drops_traffic_from_outside() -> Vec<Scenario> {
    let cluster = cluster(web().external_local(), &["c", "d"]);
    vec![at_all_frontends(cluster, &[("client", "dropped"), ("a", "c d"), ("node", "c d masqueraded")])]
}

fn without_endpoints_all_frontends_reject() -> Vec<Scenario> {
    let rejected = |service| {
        let cluster = TestCluster::new().service(service);
        at_all_frontends(cluster, &[("client", "rejected"), ("a", "rejected"), ("node", "rejected")])
    };
    vec![rejected(web()), rejected(web().external_local())]
}

fn internal_and_external_policy_are_independent() -> Vec<Scenario> {
    let cluster = cluster(web().internal_local(), &["a", "c"])
        .service(service_with_all_frontends("out", 2).external_local())
        .slice("out", &Endpoint::all(&["a", "c"]));
    vec![Scenario::new(
        cluster,
        &[
            ("client", "svc1:80", "a masqueraded"),
            ("client", "lb1:80", "a c masqueraded"),
            ("client", "svc2:80", "a c masqueraded"),
            ("client", "lb2:80", "a"),
        ],
    )]
}

fn source_ranges_apply_to_the_load_balancer_ip_only() -> Vec<Scenario> {
    let cluster = cluster(web().source_ranges(&[" 192.0.2.0/24 ", "2001:db8:1::/64"]), &["c"]);
    vec![Scenario::new(
        cluster,
        &[
            ("client", "lb1:80", "c masqueraded"),
            ("stranger", "lb1:80", "dropped"),
            ("a", "lb1:80", "dropped"),
            ("node", "lb1:80", "dropped"),
            ("stranger", "ext1:80", "c masqueraded"),
            ("stranger", "node:30001", "c masqueraded"),
            ("stranger", "svc1:80", "c masqueraded"),
            // The Service does not have this port.
            ("stranger", "lb1:81", "untouched"),
        ],
    )]
}

fn source_ranges_that_include_everything_or_the_node() -> Vec<Scenario> {
    let with = |ranges: &[&str]| cluster(web().source_ranges(ranges), &["c"]);
    let open = with(&["192.0.2.0/24", "0.0.0.0/0", "::/0"]);
    let node = with(&["192.168.50.0/24", "fd50::/64"]);
    vec![
        Scenario::new(open, &[("stranger", "lb1:80", "c masqueraded")]),
        Scenario::new(
            node,
            &[
                ("node", "lb1:80", "c masqueraded"),
                ("node2", "lb1:80", "c masqueraded"),
                ("lb1%lo", "lb1:80", "c masqueraded"),
                ("client", "lb1:80", "dropped"),
            ],
        ),
    ]
}

fn load_balancer_ip_of_mode_proxy_is_untouched() -> Vec<Scenario> {
    let cluster = cluster(service("web", 1).load_balancer_ips(&both("lb1"), Some("Proxy")), &["c"]);
    vec![Scenario::new(cluster, &[("client", "lb1:80", "untouched"), ("a", "lb1:80", "untouched")])]
}

fn node_ports_answer_at_the_configured_addresses() -> Vec<Scenario> {
    let cluster = || cluster(web(), &["c"]);
    let at = |node_ports| Settings { node_ports, ..settings() };
    let within = Scenario::new(
        cluster(),
        &[
            ("client", "node:30001", "c masqueraded"),
            ("client", "alternative:30001", "untouched"),
            ("node", "alternative:30001", "untouched"),
            // An address of another node is not translated here.
            ("a", "node2:30001", "untouched"),
            ("lo", "lo:30001", "untouched"),
            ("client", "node:30002", "untouched"),
            ("client", "node:30001/UDP", "untouched"),
        ],
    );
    let all = Scenario::new(
        cluster(),
        &[
            ("client", "node:30001", "c masqueraded"),
            ("client", "alternative:30001", "c masqueraded"),
            ("a", "node2:30001", "untouched"),
            ("lo", "lo:30001", "untouched"),
        ],
    )
    .with(at(NodePortAddresses::All));
    let none = Scenario::new(
        cluster(),
        &[("client", "node:30001", "untouched"), ("node", "node:30001", "untouched")],
    )
    .with(at(NodePortAddresses::Within(Vec::new())));
    vec![within, all, none]
}

fn node_ports_are_rejected_at_the_configured_addresses_only() -> Vec<Scenario> {
    let cluster = TestCluster::new().service(web());
    vec![Scenario::new(
        cluster,
        &[
            ("client", "node:30001", "rejected"),
            ("client", "alternative:30001", "untouched"),
            ("a", "node2:30001", "untouched"),
        ],
    )]
}

fn endpoint_on_the_node_itself_is_reached_without_masquerading() -> Vec<Scenario> {
    let cluster = cluster(web(), &["node"]);
    // The packet does not leave the node, so it does not pass postrouting, where sources are changed.
    vec![Scenario::new(cluster, &[("client", "node:30001", "node"), ("a", "svc1:80", "node")])]
}
