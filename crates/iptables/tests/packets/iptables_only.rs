//! Packet tests of behaviour that only the iptables mode has.

use crate::Node;
use portway_model::Family;
use portway_testkit::cluster::{TestCluster, service, settings};
use portway_testkit::objects::Service;
use portway_testkit::packets::{Case, Exception, FakeNode, Scenario, outcome, packet, service_with_affinity};

pub(crate) const EXCEPTIONS: &[Exception] = &[Exception {
    case: "cluster_ips::connection_of_an_endpoint_to_itself_is_masqueraded",
    row: ("c", "svc1:80", "a b c"),
    verdict: "a b or c masqueraded",
    reason: "the chain of every endpoint has the masquerade rule, also of endpoints on other nodes",
}];

pub(crate) const CASES: &[Case] = &[Case {
    name: "affinity::policy_local_shares_affinity_with_a_local_endpoint",
    script: policy_local_shares_affinity_with_a_local_endpoint,
}];

/// Affinity is recorded for each endpoint, and not for each frontend.
fn policy_local_shares_affinity_with_a_local_endpoint() -> Vec<Scenario> {
    let scenario = Scenario::new(service_with_affinity(Service::external_local), &[])
        .connect("client", "svc1:80", "b")
        .rows(&[("client", "svc1:80", "b masqueraded"), ("client", "ext1:80", "b")]);
    vec![scenario]
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
