//! Random changes of a cluster.
//!
//! Strategies for [`Change`]s, and [`Change::make`] to apply one to a [`TestCluster`] and the settings. Every mode is
//! tested with all of them, even with changes that it ignores.

use crate::cluster::{HTTP, TestCluster, both, service, settings};
use crate::objects::Endpoint;
use portway_dataplane::{LocalTraffic, NodePortAddresses, Settings};
use portway_model::{Family, Protocol};
use proptest::prelude::*;

/// The number of cases of a property: `PROPTEST_CASES` if it is set, as in `make soak`, else `default`.
pub fn cases(default: u32) -> ProptestConfig {
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: requested.unwrap_or(default), ..ProptestConfig::default() }
}

/// A change of the cluster or of the settings.
#[derive(Clone, Debug)]
pub enum Change {
    /// A Service is created or changed.
    Service(ServiceShape),
    /// The endpoints of a Service change: host, and 0 for ready, 1 for terminating, 2 for terminated.
    Endpoints(u8, Vec<(&'static str, u8)>),
    /// A Service is deleted.
    Delete(u8),
    /// The node's settings become those with this number.
    Settings(u8),
}

/// A random Service. Two of them may claim the same address: `number` is not `name`.
#[derive(Clone, Debug)]
pub struct ServiceShape {
    name: u8,
    number: u8,
    udp: bool,
    node_port: bool,
    external_ip: bool,
    load_balancer: bool,
    source_ranges: bool,
    affinity: Option<u32>,
    internal_local: bool,
    external_local: bool,
    second_port: bool,
    health_check: bool,
}

fn service_shape() -> impl Strategy<Value = ServiceShape> {
    let flags = prop::array::uniform9(prop::bool::ANY);
    let affinity = prop::option::of(prop_oneof![Just(60u32), Just(600)]);
    (0..4u8, 1..5u8, flags, affinity).prop_map(|(name, number, f, affinity)| ServiceShape {
        name,
        number,
        udp: f[0],
        node_port: f[1],
        external_ip: f[2],
        load_balancer: f[3],
        source_ranges: f[4],
        affinity,
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

/// One change.
pub fn change() -> impl Strategy<Value = Change> {
    let hosts = prop::sample::subsequence(vec!["a", "b", "c", "d", "node"], 0..=5);
    let endpoints = hosts.prop_flat_map(|hosts| {
        let states =
            prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => Just(1), 1 => Just(2)], hosts.len());
        states.prop_map(move |states| hosts.iter().copied().zip(states).collect::<Vec<_>>())
    });
    prop_oneof![
        4 => service_shape().prop_map(Change::Service),
        5 => (0..4u8, endpoints).prop_map(|(name, endpoints)| Change::Endpoints(name, endpoints)),
        1 => (0..4u8).prop_map(Change::Delete),
        1 => (0..6u8).prop_map(Change::Settings),
    ]
}

/// Fewer than `n` changes.
pub fn changes(n: usize) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 0..n)
}

/// Several batches of fewer than `size` changes each.
pub fn batches(size: usize, n: usize) -> impl Strategy<Value = Vec<Vec<Change>>> {
    prop::collection::vec(prop::collection::vec(change(), 1..size), 1..n)
}

/// Several batches of changes, and two numbers that choose how the kernel fails with each.
pub fn batches_with_faults() -> impl Strategy<Value = Vec<(Vec<Change>, u8, usize)>> {
    prop::collection::vec((prop::collection::vec(change(), 1..3), 0..6u8, 0..60usize), 1..8)
}

/// A cluster of two Services with endpoints, to begin with.
pub fn two_services() -> TestCluster {
    TestCluster::new()
        .service(service("s0", 1))
        .slice("s0", &Endpoint::all(&["a", "c"]))
        .service(service("s1", 2).affinity(10_800))
        .slice("s1", &Endpoint::all(&["b", "c"]))
}

impl Change {
    /// Makes the change.
    pub fn make(&self, cluster: &mut TestCluster, now: &mut Settings) {
        match self {
            Change::Service(shape) => shape.apply(cluster),
            Change::Endpoints(name, endpoints) => {
                let endpoint = |(host, state): &(&str, u8)| match state {
                    0 => Endpoint::ready(host),
                    1 => Endpoint::terminating(host),
                    _ => Endpoint::terminated(host),
                };
                let endpoints: Vec<Endpoint> = endpoints.iter().map(endpoint).collect();
                cluster.apply_slice(&format!("s{name}"), HTTP, &endpoints);
            }
            Change::Delete(name) => cluster.delete(&format!("s{name}")),
            Change::Settings(number) => *now = numbered_settings(*number),
        }
    }
}

fn numbered_settings(number: u8) -> Settings {
    let local = |local| Settings { local, ..settings() };
    match number {
        0 => settings(),
        1 => Settings { masquerade_all: true, service_cidrs: Vec::new(), ..settings() },
        2 => Settings { node_ports: NodePortAddresses::All, masquerade_mark: 1 << 3, ..settings() },
        3 => local(LocalTraffic::Unknown),
        4 => Settings { node_ports: NodePortAddresses::All, ..settings() },
        _ => Settings {
            service_cidrs: vec!["10.96.0.0/12".parse().unwrap(), "fd96::/64".parse().unwrap()],
            drop_invalid: false,
            ..local(LocalTraffic::InterfacePrefix("veth".into()))
        },
    }
}

impl ServiceShape {
    fn apply(&self, cluster: &mut TestCluster) {
        let n = self.number;
        let protocol = if self.udp { Protocol::Udp } else { Protocol::Tcp };
        let mut ports = vec![("http", protocol, 80)];
        if self.second_port {
            ports.push(("other", Protocol::Tcp, 81));
        }
        let ips =
            |when: bool, name: &str| if when { both(&format!("{name}{n}")).to_vec() } else { Vec::new() };
        let mut service = service(&format!("s{}", self.name), n)
            .ports(&ports)
            .load_balancer_ips(&ips(self.load_balancer, "lb"), None)
            .external_ips(&ips(self.external_ip, "ext"));
        if self.node_port {
            service = service.node_port(30000 + u16::from(n));
        }
        if self.internal_local {
            service = service.internal_local();
        }
        if self.external_local {
            service = service.external_local();
        }
        if self.health_check {
            service = service.health_check_node_port(31000 + u16::from(n));
        }
        if self.source_ranges {
            service = service.source_ranges(&["192.0.2.0/24", "192.168.50.0/24", "2001:db8:1::/64"]);
        }
        if let Some(seconds) = self.affinity {
            service = service.affinity(seconds);
        }
        cluster.apply(service);
    }
}
