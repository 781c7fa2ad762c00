//! Things that happen in a cluster, at random.
//!
//! Out come strategies for [`Act`]s, which [`play`] has happen in a [`World`] and to the settings. Every mode's
//! properties are tested with all of them, those included that it does nothing about.

use crate::world::{World, both, endpoint, endpoint_in, settings};
use crate::{LocalTraffic, NodePortAddresses, Settings};
use portway_model::Family;
use proptest::prelude::*;
use serde_json::{Value, json};

/// How many cases a property is tried with, unless `PROPTEST_CASES` asks for more: `make soak` does.
pub fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(usual), ..ProptestConfig::default() }
}

/// Something that happens.
#[derive(Clone, Debug)]
pub enum Act {
    /// A Service comes or changes.
    Service(Shape),
    /// Its endpoints change: place, and 0 ready, 1 draining, 2 gone but listed.
    Slice(u8, Vec<(&'static str, u8)>),
    /// It goes.
    Delete(u8),
    /// The node's settings change.
    Settings(u8),
}

/// A Service. Two of them may want the same address: `number` is not `name`.
#[derive(Clone, Debug)]
pub struct Shape {
    name: u8,
    number: u8,
    udp: bool,
    node_port: bool,
    external_ip: bool,
    load_balancer: bool,
    ranges: bool,
    sticky: Option<u16>,
    internal_local: bool,
    external_local: bool,
    second_port: bool,
    health_check: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let flags = prop::array::uniform9(prop::bool::ANY);
    let sticky = prop::option::of(prop_oneof![Just(60u16), Just(600)]);
    (0..4u8, 1..5u8, flags, sticky).prop_map(|(name, number, f, sticky)| Shape {
        name,
        number,
        udp: f[0],
        node_port: f[1],
        external_ip: f[2],
        load_balancer: f[3],
        ranges: f[4],
        sticky,
        internal_local: f[5],
        external_local: f[6],
        second_port: f[7],
        health_check: f[8],
    })
}

/// Either family.
pub fn families() -> impl Strategy<Value = Family> {
    prop::sample::select(Family::ALL.to_vec())
}

/// One act.
pub fn act() -> impl Strategy<Value = Act> {
    let places = prop::sample::subsequence(vec!["a", "b", "c", "d", "node"], 0..=5);
    let endpoints = places.prop_flat_map(|places| {
        let states =
            prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => Just(1), 1 => Just(2)], places.len());
        states.prop_map(move |states| places.iter().copied().zip(states).collect::<Vec<_>>())
    });
    prop_oneof![
        4 => shape().prop_map(Act::Service),
        5 => (0..4u8, endpoints).prop_map(|(name, endpoints)| Act::Slice(name, endpoints)),
        1 => (0..4u8).prop_map(Act::Delete),
        1 => (0..6u8).prop_map(Act::Settings),
    ]
}

/// Up to `n` acts.
pub fn acts(n: usize) -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 0..n)
}

/// Two Services with endpoints, to begin with.
pub fn start() -> World {
    World::new()
        .service("s0", 1, json!({}), json!({}))
        .slice("s0", &["a", "c"].map(endpoint))
        .service("s1", 2, json!({"sessionAffinity": "ClientIP"}), json!({}))
        .slice("s1", &["b", "c"].map(endpoint))
}

/// Has it happen.
pub fn play(world: &mut World, now: &mut Settings, act: &Act) {
    match act {
        Act::Service(shape) => apply(world, shape),
        Act::Slice(name, endpoints) => {
            let all: Vec<Value> = endpoints
                .iter()
                .map(|(place, state)| match state {
                    0 => endpoint(place),
                    1 => endpoint_in(place, false, true, true),
                    _ => endpoint_in(place, false, false, true),
                })
                .collect();
            world.apply_slice(&format!("s{name}"), json!({"name": "http", "port": 8080}), &all);
        }
        Act::Delete(name) => world.delete(&format!("s{name}")),
        Act::Settings(which) => *now = other_settings(*which),
    }
}

fn other_settings(which: u8) -> Settings {
    let local = |local| Settings { local, ..settings() };
    match which {
        0 => settings(),
        1 => Settings { masquerade_all: true, service_cidrs: Vec::new(), ..settings() },
        2 => Settings { node_ports: NodePortAddresses::All, masquerade_mark: 1 << 3, ..settings() },
        3 => local(LocalTraffic::Unknown),
        4 => Settings { node_ports: NodePortAddresses::All, localhost_node_ports: true, ..settings() },
        _ => Settings {
            service_cidrs: vec!["10.96.0.0/12".parse().unwrap(), "fd96::/64".parse().unwrap()],
            drop_invalid: false,
            ..local(LocalTraffic::InterfacePrefix("veth".into()))
        },
    }
}

fn apply(world: &mut World, shape: &Shape) {
    let Shape { name, number, .. } = shape;
    let protocol = if shape.udp { "UDP" } else { "TCP" };
    let mut ports = vec![json!({"name": "http", "port": 80, "protocol": protocol})];
    if shape.node_port {
        ports[0]["nodePort"] = json!(30000 + u32::from(*number));
    }
    if shape.second_port {
        ports.push(json!({"name": "other", "port": 81}));
    }
    let policy = |local| if local { "Local" } else { "Cluster" };
    let mut spec = json!({
        "type": "LoadBalancer", "ports": ports,
        "internalTrafficPolicy": policy(shape.internal_local),
        "externalTrafficPolicy": policy(shape.external_local),
    });
    if shape.external_ip {
        spec["externalIPs"] = json!(both(&format!("ext{number}")));
    }
    if shape.health_check {
        spec["healthCheckNodePort"] = json!(31000 + u32::from(*number));
    }
    if shape.ranges {
        spec["loadBalancerSourceRanges"] = json!(["192.0.2.0/24", "192.168.50.0/24", "2001:db8:1::/64"]);
    }
    if let Some(seconds) = shape.sticky {
        spec["sessionAffinity"] = json!("ClientIP");
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
    }
    let mut status = json!({});
    if shape.load_balancer {
        let ingress: Vec<Value> = both(&format!("lb{number}")).iter().map(|ip| json!({"ip": ip})).collect();
        status = json!({"loadBalancer": {"ingress": ingress}});
    }
    world.apply_service(&format!("s{name}"), *number, spec, status);
}
