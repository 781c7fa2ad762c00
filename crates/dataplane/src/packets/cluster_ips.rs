//! Cluster IPs: which endpoints, and what happens where there are none.

use super::{Case, Scene};
use crate::world::{World, endpoint, endpoint_in};
use serde_json::{Value, json};

pub(super) const CASES: &[Case] = named![
    "cluster_ips":
    a_cluster_ip_leads_to_every_endpoint,
    an_endpoint_that_reaches_itself_is_masqueraded,
    a_port_nobody_serves_is_refused,
    a_service_without_endpoints_refuses,
    two_protocols_share_a_port,
    internal_policy_local_stays_on_this_node,
    ready_before_draining_before_nothing,
    hints_choose_the_node_then_the_zone,
];

fn abc() -> Vec<Value> {
    ["a", "b", "c"].map(endpoint).to_vec()
}

fn a_cluster_ip_leads_to_every_endpoint() -> Vec<Scene> {
    let world = World::new().service("web", 1, json!({}), json!({})).slice("web", &abc());
    vec![Scene::new(
        world,
        &[
            ("d", "svc1:80", "a b c"),
            ("client", "svc1:80", "a b c masqueraded"),
            ("node", "svc1:80", "a b c masqueraded"),
            ("node2", "svc1:80", "a b c masqueraded"),
        ],
    )]
}

fn an_endpoint_that_reaches_itself_is_masqueraded() -> Vec<Scene> {
    let world = World::new().service("web", 1, json!({}), json!({})).slice("web", &abc());
    vec![Scene::new(
        world,
        &[
            ("a", "svc1:80", "a masqueraded or b c"),
            ("b", "svc1:80", "a c or b masqueraded"),
            // Traffic of an endpoint elsewhere begins elsewhere, and is that node's to masquerade.
            ("c", "svc1:80", "a b c"),
        ],
    )]
}

fn a_port_nobody_serves_is_refused() -> Vec<Scene> {
    let world = World::new().service("web", 1, json!({}), json!({})).slice("web", &abc());
    vec![Scene::new(
        world,
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

fn a_service_without_endpoints_refuses() -> Vec<Scene> {
    let udp = json!({"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]});
    let world = World::new().service("web", 1, json!({}), json!({})).service("dns", 2, udp, json!({}));
    let rows = [
        ("a", "svc1:80", "rejected"),
        ("client", "svc1:80", "rejected"),
        ("node", "svc1:80", "rejected"),
        ("a", "svc2:53/UDP", "rejected"),
        ("a", "svc2:53", "rejected"),
    ];
    vec![Scene::new(world, &rows)]
}

fn two_protocols_share_a_port() -> Vec<Scene> {
    let ports = json!({"ports": [{"name": "dns", "port": 53, "protocol": "UDP"},
                                 {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                                 {"name": "assoc", "port": 53, "protocol": "SCTP"}]});
    let mut world = World::new().service("dns", 1, ports, json!({}));
    world.apply_slice("dns", json!({"name": "dns", "protocol": "UDP", "port": 5353}), &[endpoint("a")]);
    let rows =
        [("b", "svc1:53/UDP", "a:5353"), ("b", "svc1:53", "rejected"), ("b", "svc1:53/SCTP", "rejected")];
    vec![Scene::new(world, &rows)]
}

fn internal_policy_local_stays_on_this_node() -> Vec<Scene> {
    let local = || json!({"internalTrafficPolicy": "Local"});
    let world = World::new()
        .service("here", 1, local(), json!({}))
        .slice("here", &abc())
        .service("elsewhere", 2, local(), json!({}))
        .slice("elsewhere", &[endpoint("c")])
        .service("nowhere", 3, local(), json!({}));
    vec![Scene::new(
        world,
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

fn ready_before_draining_before_nothing() -> Vec<Scene> {
    let draining = |place| endpoint_in(place, false, true, true);
    let world = World::new()
        .service("mixed", 1, json!({}), json!({}))
        .slice("mixed", &[endpoint("a"), draining("b"), endpoint_in("c", false, false, false)])
        .service("leaving", 2, json!({}), json!({}))
        .slice("leaving", &[draining("b"), endpoint_in("c", false, false, true)])
        .service("gone", 3, json!({}), json!({}))
        .slice("gone", &[endpoint_in("c", false, false, true), endpoint_in("d", false, true, false)])
        .service("local", 4, json!({"internalTrafficPolicy": "Local"}), json!({}))
        .slice("local", &[draining("a"), endpoint("c")]);
    vec![Scene::new(
        world,
        &[("d", "svc1:80", "a"), ("d", "svc2:80", "b"), ("d", "svc3:80", "rejected"), ("d", "svc4:80", "a")],
    )]
}

fn hints_choose_the_node_then_the_zone() -> Vec<Scene> {
    let hinted = |place: &str, zones: &[&str], nodes: &[&str]| {
        let named = |names: &[&str]| names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>();
        let mut endpoint = endpoint(place);
        endpoint["hints"] = json!({"forZones": named(zones), "forNodes": named(nodes)});
        endpoint
    };
    let world = World::new()
        .service("zone", 1, json!({}), json!({}))
        .slice("zone", &[hinted("a", &["here"], &[]), hinted("c", &["there"], &[])])
        .service("node", 2, json!({}), json!({}))
        .slice("node", &[hinted("b", &["there"], &["node1"]), hinted("c", &["here"], &["node2"])])
        .service("partial", 3, json!({}), json!({}))
        .slice("partial", &[hinted("a", &["here"], &[]), endpoint("c")])
        .service("others", 4, json!({}), json!({}))
        .slice("others", &[hinted("a", &["there"], &[]), hinted("c", &["there"], &[])]);
    vec![Scene::new(
        world,
        &[("d", "svc1:80", "a"), ("d", "svc2:80", "b"), ("d", "svc3:80", "a c"), ("d", "svc4:80", "a c")],
    )]
}
