//! What is so in the iptables mode alone.

use crate::Node;
use portway_dataplane::packets::{Case, Differs, Machine, Scene, everything, outcome, packet, sticky};
use portway_dataplane::world::{World, endpoint, settings};
use portway_dataplane::{NodePortAddresses, Settings};
use portway_model::Family;
use serde_json::json;

pub(crate) const DIFFERS: &[Differs] = &[Differs {
    case: "cluster_ips::an_endpoint_that_reaches_itself_is_masqueraded",
    row: ("c", "svc1:80", "a b c"),
    here: "a b or c masqueraded",
    why: "every endpoint's chain has the rule, should traffic of one that is elsewhere come by",
}];

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "affinity::with_policy_local_what_is_here_is_remembered_outside_too",
        script: what_is_here_is_remembered_outside_too,
    },
    Case {
        name: "external::node_ports_at_127_0_0_1_are_for_this_machine_alone",
        script: node_ports_at_127_0_0_1_are_for_this_machine_alone,
    },
];

/// Clients are remembered by endpoint, whichever way they took to it.
fn what_is_here_is_remembered_outside_too() -> Vec<Scene> {
    let scene = Scene::new(sticky(json!({"externalTrafficPolicy": "Local"})), &[])
        .meets("client", "svc1:80", "b")
        .rows(&[("client", "svc1:80", "b masqueraded"), ("client", "ext1:80", "b")]);
    vec![scene]
}

fn node_ports_at_127_0_0_1_are_for_this_machine_alone() -> Vec<Scene> {
    let all = Settings { node_ports: NodePortAddresses::All, ..settings() };
    let localhost = Settings { localhost_node_ports: true, ..all.clone() };
    let within = NodePortAddresses::Within(vec!["192.168.50.0/24".parse().unwrap()]);
    let elsewhere = Settings { node_ports: within, ..localhost.clone() };
    let world = || everything(World::new(), "web", 1, json!({})).slice("web", &[endpoint("c")]);
    let at_localhost = Scene::new(
        world(),
        &[
            ("lo", "lo:30001", "c masqueraded"),
            ("client", "node:30001", "c masqueraded"),
            // A neighbour that has packets routed to our loopback address reaches what is for neighbours, and no more.
            ("client", "lo:22", "dropped"),
            ("lo", "lo:22", "untouched"),
        ],
    );
    let untouched = || Scene::new(world(), &[("lo", "lo:30001", "untouched")]);
    [at_localhost.with(localhost), untouched().with(all), untouched().with(elsewhere)]
        .map(|scene| scene.only(Family::V4))
        .into()
}

pub(crate) fn a_port_for_health_checks_is_open_whatever_the_policy() {
    let spec = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31001,
        "ports": [{"name": "http", "port": 80}],
    });
    let mut world = World::new().service("web", 1, spec, json!({})).service("plain", 2, json!({}), json!({}));
    for family in Family::ALL {
        let mut node = Node::new(family);
        node.mode().sync(&settings(), world.all(family)).unwrap();
        node.mode.kernel().run("*filter\n:INPUT DROP [0:0]\nCOMMIT\n").unwrap();
        let mut end = |to| outcome(family, &node.listed(&packet(family, "client", to)).verdicts);
        assert_eq!([end("node:31001"), end("node:31002")], ["untouched", "dropped"]);
    }
}
