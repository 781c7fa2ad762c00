//! Packet tests of behaviour that only the iptables mode has.

use crate::Node;
use portway_dataplane::{NodePortAddresses, Settings};
use portway_model::Family;
use portway_testkit::cluster::{TestCluster, service, service_with_all_frontends, settings};
use portway_testkit::objects::{Endpoint, Service};
use portway_testkit::packets::{Case, Exception, FakeNode, Scenario, outcome, packet, service_with_affinity};

pub(crate) const EXCEPTIONS: &[Exception] = &[Exception {
    case: "cluster_ips::connection_of_an_endpoint_to_itself_is_masqueraded",
    row: ("c", "svc1:80", "a b c"),
    verdict: "a b or c masqueraded",
    reason: "the chain of every endpoint has the masquerade rule, also of endpoints on other nodes",
}];

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "affinity::policy_local_shares_affinity_with_a_local_endpoint",
        script: policy_local_shares_affinity_with_a_local_endpoint,
    },
    Case {
        name: "external::node_ports_at_localhost_answer_the_node_only",
        script: node_ports_at_localhost_answer_the_node_only,
    },
];

/// Affinity is recorded for each endpoint, and not for each frontend.
fn policy_local_shares_affinity_with_a_local_endpoint() -> Vec<Scenario> {
    let scenario = Scenario::new(service_with_affinity(Service::external_local), &[])
        .connect("client", "svc1:80", "b")
        .rows(&[("client", "svc1:80", "b masqueraded"), ("client", "ext1:80", "b")]);
    vec![scenario]
}

fn node_ports_at_localhost_answer_the_node_only() -> Vec<Scenario> {
    let all = Settings { node_ports: NodePortAddresses::All, ..settings() };
    let localhost = Settings { localhost_node_ports: true, ..all.clone() };
    let within = NodePortAddresses::Within(vec!["192.168.50.0/24".parse().unwrap()]);
    let elsewhere = Settings { node_ports: within, ..localhost.clone() };
    let cluster = || {
        TestCluster::new().service(service_with_all_frontends("web", 1)).slice("web", &Endpoint::all(&["c"]))
    };
    let at_localhost = Scenario::new(
        cluster(),
        &[
            ("lo", "lo:30001", "c masqueraded"),
            ("client", "node:30001", "c masqueraded"),
            // Another host must not reach the loopback addresses of this node.
            ("client", "lo:22", "dropped"),
            ("lo", "lo:22", "untouched"),
        ],
    );
    let untouched = || Scenario::new(cluster(), &[("lo", "lo:30001", "untouched")]);
    [at_localhost.with(localhost), untouched().with(all), untouched().with(elsewhere)]
        .map(|scenario| scenario.only(Family::V4))
        .into()
}

pub(crate) fn health_check_node_port_is_accepted_under_a_drop_policy() {
    let web = service("web", 1).load_balancer_ips(&[], None).external_local().health_check_node_port(31001);
    let mut cluster = TestCluster::new().service(web).service(service("plain", 2));
    for family in Family::ALL {
        let mut node = Node::open(family);
        node.mode().sync(&settings(), cluster.all(family)).unwrap();
        node.mode.program().kernel().run("*filter\n:INPUT DROP [0:0]\nCOMMIT\n").unwrap();
        let mut verdict = |to| outcome(family, &node.listed(&packet(family, "client", to)).verdicts);
        assert_eq!([verdict("node:31001"), verdict("node:31002")], ["untouched", "dropped"]);
    }
}
