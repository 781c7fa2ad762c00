//! A cluster for tests: hosts with names, objects from builders, and plans made by the agent's own code.
//!
//! The node that is programmed is `node`, with pods `a` and `b`; `c` and `d` run on another node, `node2`. `client` and
//! `stranger` are hosts outside of the cluster. Service number N has the addresses `svcN`, `lbN` and `extN`. Every name
//! has an address in both families.

mod addresses;

pub use addresses::{ENDPOINT_HOSTS, Hosts, address, both, own_addresses};

use crate::mode::FamilyMode;
use crate::objects::{Endpoint, EndpointSlice, Manifest, Port, Service, node};
use portway_dataplane::{LocalTraffic, NodePortAddresses, Settings};
use portway_model::api::{self, Event};
use portway_model::{Cluster, Family, Identity, Protocol, ServiceName, ServicePlan};

/// The port that endpoints serve, unless a test gives another.
pub const HTTP: Port<'static> = ("http", Protocol::Tcp, 8080);

/// The usual settings of a node: pods are detected by their addresses, node ports answer in the node's network.
pub fn settings() -> Settings {
    Settings {
        local: LocalTraffic::Cidrs(vec!["10.244.0.0/16".parse().unwrap(), "fd10:244::/32".parse().unwrap()]),
        node_ports: NodePortAddresses::Within(vec![
            "192.168.50.0/24".parse().unwrap(),
            "fd50::/64".parse().unwrap(),
        ]),
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap(), "fd96::/112".parse().unwrap()],
        ..Settings::default()
    }
}

/// Service `name` with number `n`: port 80, called `http`, at `svcN`.
pub fn service(name: &str, n: u8) -> Service {
    Service::new(name, &both(&format!("svc{n}"))).ports(&[("http", Protocol::Tcp, 80)])
}

/// A Service that has every kind of frontend: port 80 of `svcN`, `lbN` and `extN`, and node port 30000 + N.
pub fn service_with_all_frontends(name: &str, n: u8) -> Service {
    service(name, n)
        .load_balancer_ips(&both(&format!("lb{n}")), None)
        .external_ips(&both(&format!("ext{n}")))
        .node_port(30000 + u16::from(n))
}

/// The model of a cluster.
#[derive(Debug)]
pub struct TestCluster {
    cluster: Cluster,
}

impl TestCluster {
    /// A cluster with only the node that is programmed.
    pub fn new() -> TestCluster {
        let mut cluster = Cluster::new(Identity { node: "node1".into(), proxy_name: None });
        cluster.apply(Event::<api::Service>::InitDone);
        cluster.apply(Event::<api::EndpointSlice>::InitDone);
        cluster.apply(Event::<api::Node>::InitDone);
        let mut cluster = TestCluster { cluster };
        cluster.apply(node("node1", "here", &both("node"), &[]));
        cluster
    }

    /// Adds or replaces an object.
    pub fn apply(&mut self, object: impl Into<Manifest>) {
        self.cluster.apply(object.into().object());
    }

    /// With a Service.
    pub fn service(mut self, service: Service) -> TestCluster {
        self.apply(service);
        self
    }

    /// With endpoints of Service `name` that serve [`HTTP`].
    pub fn slice(mut self, name: &str, endpoints: &[Endpoint]) -> TestCluster {
        self.apply_slice(name, HTTP, endpoints);
        self
    }

    /// Makes these the endpoints of Service `name`, serving one port.
    pub fn apply_slice(&mut self, name: &str, port: Port<'_>, endpoints: &[Endpoint]) {
        for family in Family::ALL {
            let slice = EndpointSlice::new(name, &[port], endpoints).name(&format!("{name}-{family}"));
            self.apply(slice.manifest(&Hosts(family)));
        }
    }

    /// Makes these hosts the ready endpoints of Service `name`, serving [`HTTP`].
    pub fn apply_hosts(&mut self, name: &str, hosts: &[&str]) {
        self.apply_slice(name, HTTP, &Endpoint::all(hosts));
    }

    /// Deletes a Service; its endpoints stay.
    pub fn delete(&mut self, name: &str) {
        let (namespace, name) = ("default".into(), name.into());
        self.cluster.apply(Event::<api::Service>::Delete { namespace, name });
    }

    /// The plans that changed since the last call, for one family.
    pub fn changes(&mut self, family: Family) -> Vec<(ServiceName, Option<ServicePlan>)> {
        let index = usize::from(family == Family::V6);
        let services = self.cluster.take_changes().services;
        services.into_iter().map(|mut s| (s.name, s.plans[index].take())).collect()
    }

    /// All plans, for one family.
    pub fn all(&mut self, family: Family) -> Vec<(ServiceName, Option<ServicePlan>)> {
        self.cluster.touch_all();
        self.changes(family)
    }

    /// The mode, after it has programmed all plans.
    pub fn programmed<M: FamilyMode>(&mut self, mut mode: M, settings: &Settings) -> M {
        let all = self.all(mode.family());
        mode.sync(settings, all).unwrap();
        mode
    }
}

impl Default for TestCluster {
    fn default() -> TestCluster {
        TestCluster::new()
    }
}
