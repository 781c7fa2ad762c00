//! Node ports, load-balancer IPs, external IPs: policies, the short cut, source ranges, where node ports answer.

use crate::cluster::{World, both, endpoint, settings};
use crate::{check, check_in, follow, outcome};
use portway_dataplane::{NodePortAddresses, Settings};
use portway_iptables::eval::Ruleset;
use portway_model::Family;
use serde_json::{Value, json};

/// Number `n` with a node port 3000n, `lbn` and `extn`; `more` adds to its spec.
fn everything(world: World, name: &str, n: u8, more: Value) -> World {
    let mut spec = json!({
        "type": "LoadBalancer", "externalIPs": both(&format!("ext{n}")),
        "ports": [{"name": "http", "port": 80, "nodePort": 30000 + u32::from(n)}],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let ingress: Vec<Value> = both(&format!("lb{n}")).iter().map(|ip| json!({"ip": ip})).collect();
    world.service(name, n, spec, json!({"loadBalancer": {"ingress": ingress}}))
}

fn local() -> Value {
    json!({"externalTrafficPolicy": "Local"})
}

const FRONTENDS: [&str; 3] = ["lb1:80", "ext1:80", "node:30001"];

/// The same expectations at each kind of external frontend.
fn check_all(world: impl Fn() -> World, rows: &[(&str, &str)]) {
    for to in FRONTENDS {
        let rows: Vec<(&str, &str, &str)> = rows.iter().map(|(from, end)| (*from, to, *end)).collect();
        check(world(), &settings(), &rows);
    }
}

#[test]
fn policy_cluster_reaches_all_and_masquerades() {
    let world =
        || everything(World::new(), "web", 1, json!({})).slice("web", &[endpoint("a"), endpoint("c")]);
    check_all(
        world,
        &[
            ("client", "a c masqueraded"),
            ("node2", "a c masqueraded"),
            ("node", "a c masqueraded"),
            ("b", "a c masqueraded"),
        ],
    );
}

#[test]
fn policy_local_keeps_the_source_and_the_node() {
    let world = || everything(World::new(), "web", 1, local()).slice("web", &["a", "b", "c"].map(endpoint));
    check_all(
        world,
        &[
            ("client", "a b"),
            ("node2", "a b"),
            // What begins on this node may go anywhere: no load balancer chose this node for it.
            ("d", "a b c"),
            ("node", "a b c masqueraded"),
            ("alternative", "a b c masqueraded"),
        ],
    );
}

#[test]
fn policy_local_without_local_endpoints_drops_but_for_the_short_cut() {
    let world = || everything(World::new(), "web", 1, local()).slice("web", &["c", "d"].map(endpoint));
    check_all(world, &[("client", "dropped"), ("a", "c d"), ("node", "c d masqueraded")]);
}

#[test]
fn without_endpoints_all_frontends_refuse() {
    check_all(
        || everything(World::new(), "web", 1, json!({})),
        &[("client", "rejected"), ("a", "rejected"), ("node", "rejected")],
    );
    check_all(
        || everything(World::new(), "web", 1, local()),
        &[("client", "rejected"), ("a", "rejected"), ("node", "rejected")],
    );
}

#[test]
fn policies_of_inside_and_outside_are_apart() {
    let world = everything(World::new(), "in", 1, json!({"internalTrafficPolicy": "Local"}))
        .slice("in", &["a", "c"].map(endpoint));
    let world = everything(world, "out", 2, local()).slice("out", &["a", "c"].map(endpoint));
    check(
        world,
        &settings(),
        &[
            ("client", "svc1:80", "a masqueraded"),
            ("client", "lb1:80", "a c masqueraded"),
            ("client", "svc2:80", "a c masqueraded"),
            ("client", "lb2:80", "a"),
        ],
    );
}

#[test]
fn source_ranges_guard_the_load_balancer_ip_alone() {
    let ranges = json!({"loadBalancerSourceRanges": [" 192.0.2.0/24 ", "2001:db8:1::/64"]});
    let world = || everything(World::new(), "web", 1, ranges.clone()).slice("web", &[endpoint("c")]);
    check(
        world(),
        &settings(),
        &[
            ("client", "lb1:80", "c masqueraded"),
            ("stranger", "lb1:80", "dropped"),
            ("a", "lb1:80", "dropped"),
            ("node", "lb1:80", "dropped"),
            ("stranger", "ext1:80", "c masqueraded"),
            ("stranger", "node:30001", "c masqueraded"),
            ("stranger", "svc1:80", "c masqueraded"),
            // Another port of that address is nobody's.
            ("stranger", "lb1:81", "untouched"),
        ],
    );
}

#[test]
fn source_ranges_with_everything_or_with_the_node() {
    let with = |ranges: Value| {
        let spec = json!({"loadBalancerSourceRanges": ranges});
        everything(World::new(), "web", 1, spec).slice("web", &[endpoint("c")])
    };
    let open = with(json!(["192.0.2.0/24", "0.0.0.0/0", "::/0"]));
    check(open, &settings(), &[("stranger", "lb1:80", "c masqueraded")]);
    let node = with(json!(["192.168.50.0/24", "fd50::/64"]));
    check(
        node,
        &settings(),
        &[
            ("node", "lb1:80", "c masqueraded"),
            ("node2", "lb1:80", "c masqueraded"),
            ("lb1%lo", "lb1:80", "c masqueraded"),
            ("client", "lb1:80", "dropped"),
        ],
    );
}

#[test]
fn ingress_by_a_proxy_is_not_ours() {
    let ingress: Vec<Value> = both("lb1").iter().map(|ip| json!({"ip": ip, "ipMode": "Proxy"})).collect();
    let status = json!({"loadBalancer": {"ingress": ingress}});
    let world = World::new()
        .service("web", 1, json!({"type": "LoadBalancer"}), status)
        .slice("web", &[endpoint("c")]);
    check(world, &settings(), &[("client", "lb1:80", "untouched"), ("a", "lb1:80", "untouched")]);
}

#[test]
fn node_ports_answer_where_they_are_told() {
    let world = || everything(World::new(), "web", 1, json!({})).slice("web", &[endpoint("c")]);
    check(
        world(),
        &settings(),
        &[
            ("client", "node:30001", "c masqueraded"),
            ("client", "alternative:30001", "untouched"),
            ("node", "alternative:30001", "untouched"),
            // Another node's address within the range is that node's.
            ("a", "node2:30001", "untouched"),
            ("lo", "lo:30001", "untouched"),
            ("client", "node:30002", "untouched"),
            ("client", "node:30001/UDP", "untouched"),
        ],
    );
    let all = Settings { node_ports: NodePortAddresses::All, ..settings() };
    check(
        world(),
        &all,
        &[
            ("client", "node:30001", "c masqueraded"),
            ("client", "alternative:30001", "c masqueraded"),
            ("a", "node2:30001", "untouched"),
            ("lo", "lo:30001", "untouched"),
        ],
    );
    let none = Settings { node_ports: NodePortAddresses::Within(Vec::new()), ..settings() };
    check(world(), &none, &[("client", "node:30001", "untouched"), ("node", "node:30001", "untouched")]);
}

#[test]
fn refusals_of_node_ports_keep_to_their_addresses() {
    let world = everything(World::new(), "web", 1, json!({}));
    check(
        world,
        &settings(),
        &[
            ("client", "node:30001", "rejected"),
            ("client", "alternative:30001", "untouched"),
            ("a", "node2:30001", "untouched"),
        ],
    );
}

#[test]
fn an_endpoint_in_the_nodes_network_is_reached_without_masquerading_at_home() {
    let world = everything(World::new(), "web", 1, json!({})).slice("web", &[endpoint("node")]);
    // Nothing leaves the node, so there is no postrouting to change the source in.
    check(world, &settings(), &[("client", "node:30001", "node"), ("a", "svc1:80", "node")]);
}

#[test]
fn node_ports_at_127_0_0_1_are_for_this_machine_alone() {
    let all = Settings { node_ports: NodePortAddresses::All, ..settings() };
    let localhost = Settings { localhost_node_ports: true, ..all.clone() };
    let world = || everything(World::new(), "web", 1, json!({})).slice("web", &[endpoint("c")]);
    check_in(
        Family::V4,
        &mut world(),
        &localhost,
        &[
            ("lo", "lo:30001", "c masqueraded"),
            ("client", "node:30001", "c masqueraded"),
            // A neighbour that has packets routed to our loopback address reaches what is for neighbours, and no more.
            ("client", "lo:22", "dropped"),
            ("lo", "lo:22", "untouched"),
        ],
    );
    check_in(Family::V4, &mut world(), &all, &[("lo", "lo:30001", "untouched")]);
    let within = vec!["192.168.50.0/24".parse().unwrap()];
    let elsewhere = Settings { node_ports: NodePortAddresses::Within(within), ..localhost };
    check_in(Family::V4, &mut world(), &elsewhere, &[("lo", "lo:30001", "untouched")]);
}

#[test]
fn a_port_for_health_checks_is_open_whatever_the_policy() {
    let mut world = everything(World::new(), "web", 1, local()).service("plain", 2, json!({}), json!({}));
    let spec = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31001,
        "ports": [{"name": "http", "port": 80}],
    });
    world.apply_service("web", 1, spec, json!({}));
    for family in Family::ALL {
        let mut mode = world.programmed(family, &settings());
        mode.kernel().run("*filter\n:INPUT DROP [0:0]\nCOMMIT\n").unwrap();
        let rules = Ruleset::parse(&mode.kernel().tables().to_string());
        let end = |to| outcome(family, &follow(&rules, family, "client", to));
        assert_eq!([end("node:31001"), end("node:31002")], ["untouched", "dropped"]);
    }
}
