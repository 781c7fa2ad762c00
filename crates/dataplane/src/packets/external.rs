//! Node ports, load-balancer IPs, external IPs: policies, the short cut, source ranges, where node ports answer.

use super::{Case, Row, Scene};
use crate::world::{World, both, endpoint, settings};
use crate::{NodePortAddresses, Settings};
use serde_json::{Value, json};

pub(super) const CASES: &[Case] = named![
    "external":
    policy_cluster_reaches_all_and_masquerades,
    policy_local_keeps_the_source_and_the_node,
    policy_local_without_local_endpoints_drops_but_for_the_short_cut,
    without_endpoints_all_frontends_refuse,
    policies_of_inside_and_outside_are_apart,
    source_ranges_guard_the_load_balancer_ip_alone,
    source_ranges_with_everything_or_with_the_node,
    ingress_by_a_proxy_is_not_ours,
    node_ports_answer_where_they_are_told,
    refusals_of_node_ports_keep_to_their_addresses,
    an_endpoint_in_the_nodes_network_is_reached_without_masquerading_at_home,
];

/// A Service with number `n` that answers at `svcn`, `lbn`, `extn` and node port 3000n; `more` adds to its spec.
pub fn everything(world: World, name: &str, n: u8, more: Value) -> World {
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
fn everywhere(world: World, rows: &[(&'static str, &'static str)]) -> Scene {
    let rows: Vec<Row> =
        FRONTENDS.iter().flat_map(|to| rows.iter().map(|(from, end)| (*from, *to, *end))).collect();
    Scene::new(world, &rows)
}

fn policy_cluster_reaches_all_and_masquerades() -> Vec<Scene> {
    let world = everything(World::new(), "web", 1, json!({})).slice("web", &["a", "c"].map(endpoint));
    vec![everywhere(
        world,
        &[
            ("client", "a c masqueraded"),
            ("node2", "a c masqueraded"),
            ("node", "a c masqueraded"),
            ("b", "a c masqueraded"),
        ],
    )]
}

fn policy_local_keeps_the_source_and_the_node() -> Vec<Scene> {
    let world = everything(World::new(), "web", 1, local()).slice("web", &["a", "b", "c"].map(endpoint));
    vec![everywhere(
        world,
        &[
            ("client", "a b"),
            ("node2", "a b"),
            // What begins on this node may go anywhere: no load balancer chose this node for it.
            ("d", "a b c"),
            ("node", "a b c masqueraded"),
            ("alternative", "a b c masqueraded"),
        ],
    )]
}

fn policy_local_without_local_endpoints_drops_but_for_the_short_cut() -> Vec<Scene> {
    let world = everything(World::new(), "web", 1, local()).slice("web", &["c", "d"].map(endpoint));
    vec![everywhere(world, &[("client", "dropped"), ("a", "c d"), ("node", "c d masqueraded")])]
}

fn without_endpoints_all_frontends_refuse() -> Vec<Scene> {
    let refused = |more| {
        let world = everything(World::new(), "web", 1, more);
        everywhere(world, &[("client", "rejected"), ("a", "rejected"), ("node", "rejected")])
    };
    vec![refused(json!({})), refused(local())]
}

fn policies_of_inside_and_outside_are_apart() -> Vec<Scene> {
    let world = everything(World::new(), "in", 1, json!({"internalTrafficPolicy": "Local"}))
        .slice("in", &["a", "c"].map(endpoint));
    let world = everything(world, "out", 2, local()).slice("out", &["a", "c"].map(endpoint));
    vec![Scene::new(
        world,
        &[
            ("client", "svc1:80", "a masqueraded"),
            ("client", "lb1:80", "a c masqueraded"),
            ("client", "svc2:80", "a c masqueraded"),
            ("client", "lb2:80", "a"),
        ],
    )]
}

fn source_ranges_guard_the_load_balancer_ip_alone() -> Vec<Scene> {
    let ranges = json!({"loadBalancerSourceRanges": [" 192.0.2.0/24 ", "2001:db8:1::/64"]});
    let world = everything(World::new(), "web", 1, ranges).slice("web", &[endpoint("c")]);
    vec![Scene::new(
        world,
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
    )]
}

fn source_ranges_with_everything_or_with_the_node() -> Vec<Scene> {
    let with = |ranges: Value| {
        let spec = json!({"loadBalancerSourceRanges": ranges});
        everything(World::new(), "web", 1, spec).slice("web", &[endpoint("c")])
    };
    let open = with(json!(["192.0.2.0/24", "0.0.0.0/0", "::/0"]));
    let node = with(json!(["192.168.50.0/24", "fd50::/64"]));
    vec![
        Scene::new(open, &[("stranger", "lb1:80", "c masqueraded")]),
        Scene::new(
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

fn ingress_by_a_proxy_is_not_ours() -> Vec<Scene> {
    let ingress: Vec<Value> = both("lb1").iter().map(|ip| json!({"ip": ip, "ipMode": "Proxy"})).collect();
    let status = json!({"loadBalancer": {"ingress": ingress}});
    let world = World::new()
        .service("web", 1, json!({"type": "LoadBalancer"}), status)
        .slice("web", &[endpoint("c")]);
    vec![Scene::new(world, &[("client", "lb1:80", "untouched"), ("a", "lb1:80", "untouched")])]
}

fn node_ports_answer_where_they_are_told() -> Vec<Scene> {
    let world = || everything(World::new(), "web", 1, json!({})).slice("web", &[endpoint("c")]);
    let at = |node_ports| Settings { node_ports, ..settings() };
    let within = Scene::new(
        world(),
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
    let all = Scene::new(
        world(),
        &[
            ("client", "node:30001", "c masqueraded"),
            ("client", "alternative:30001", "c masqueraded"),
            ("a", "node2:30001", "untouched"),
            ("lo", "lo:30001", "untouched"),
        ],
    )
    .with(at(NodePortAddresses::All));
    let none =
        Scene::new(world(), &[("client", "node:30001", "untouched"), ("node", "node:30001", "untouched")])
            .with(at(NodePortAddresses::Within(Vec::new())));
    vec![within, all, none]
}

fn refusals_of_node_ports_keep_to_their_addresses() -> Vec<Scene> {
    let world = everything(World::new(), "web", 1, json!({}));
    vec![Scene::new(
        world,
        &[
            ("client", "node:30001", "rejected"),
            ("client", "alternative:30001", "untouched"),
            ("a", "node2:30001", "untouched"),
        ],
    )]
}

fn an_endpoint_in_the_nodes_network_is_reached_without_masquerading_at_home() -> Vec<Scene> {
    let world = everything(World::new(), "web", 1, json!({})).slice("web", &[endpoint("node")]);
    // Nothing leaves the node, so there is no postrouting to change the source in.
    vec![Scene::new(world, &[("client", "node:30001", "node"), ("a", "svc1:80", "node")])]
}
