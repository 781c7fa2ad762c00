//! A cluster for tests: places with names, objects in JSON, plans made the way the agent makes them.
//!
//! This node is `node`, with pods `a` and `b`; `c` and `d` run elsewhere. `client` and `stranger` are outside the
//! cluster. Service number N answers at `svcN`, `lbN`, `extN`; everything exists in both families.
//!
//! What makes no sense panics: it is for tests.

mod places;

pub use places::{PODS, address, both, own_addresses};

use crate::{Dataplane, LocalTraffic, NodePortAddresses, Settings};
use portway_model::api::{EndpointSlice, Event, Kind, Node, Object, Service};
use portway_model::{Cluster, Family, Identity, ServiceName, ServicePlan};
use serde_json::{Value, json};

/// Settings as a node has them: pods told by their addresses, node ports at the node's network.
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

/// An endpoint at a place, on the node where that place is.
pub fn endpoint(place: &str) -> Value {
    let node = if ["a", "b", "node"].contains(&place) { "node1" } else { "node2" };
    json!({"place": place, "nodeName": node})
}

/// An endpoint with conditions: ready, serving, terminating.
pub fn endpoint_in(place: &str, ready: bool, serving: bool, terminating: bool) -> Value {
    let mut endpoint = endpoint(place);
    endpoint["conditions"] = json!({"ready": ready, "serving": serving, "terminating": terminating});
    endpoint
}

/// A model of a cluster, fed with JSON.
#[derive(Debug)]
pub struct World {
    cluster: Cluster,
}

impl World {
    /// With this node, and nothing else.
    pub fn new() -> World {
        let mut cluster = Cluster::new(Identity { node: "node1".into(), proxy_name: None });
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            cluster.apply(Event::Init(kind));
            cluster.apply(Event::InitDone(kind));
        }
        let addresses: Vec<Value> =
            both("node").iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "node1", "labels": {"topology.kubernetes.io/zone": "here"}},
            "status": {"addresses": addresses},
        }))
        .unwrap();
        cluster.apply(Event::Apply(Box::new(Object::Node(node))));
        World { cluster }
    }

    /// Service `name` with number `n`: port 80 at `svcN`; `spec` and `status` add to it.
    pub fn service(mut self, name: &str, n: u8, spec: Value, status: Value) -> World {
        self.apply_service(name, n, spec, status);
        self
    }

    /// The same, for a world that is kept.
    pub fn apply_service(&mut self, name: &str, n: u8, spec: Value, status: Value) {
        let ips = both(&format!("svc{n}"));
        let mut full =
            json!({"clusterIP": ips[0], "clusterIPs": ips, "ports": [{"name": "http", "port": 80}]});
        for (key, value) in spec.as_object().unwrap() {
            full[key] = value.clone();
        }
        let object =
            json!({"metadata": {"namespace": "default", "name": name}, "spec": full, "status": status});
        let service: Service = serde_json::from_value(object).unwrap();
        self.cluster.apply(Event::Apply(Box::new(Object::Service(service))));
    }

    /// Endpoints of Service `name` for port `http`, at 8080.
    pub fn slice(mut self, name: &str, endpoints: &[Value]) -> World {
        self.apply_slice(name, json!({"name": "http", "port": 8080}), endpoints);
        self
    }

    /// Endpoints of Service `name` for any port.
    pub fn apply_slice(&mut self, name: &str, port: Value, endpoints: &[Value]) {
        for family in Family::ALL {
            let endpoints: Vec<Value> = endpoints
                .iter()
                .map(|e| {
                    let mut e = e.clone();
                    let place = e.as_object_mut().unwrap().remove("place").unwrap();
                    e["addresses"] = json!([address(family, place.as_str().unwrap())]);
                    e
                })
                .collect();
            self.apply_raw_slice(name, family, port.clone(), &endpoints);
        }
    }

    /// Endpoints of one family, as they are in the object.
    pub fn apply_raw_slice(&mut self, name: &str, family: Family, port: Value, endpoints: &[Value]) {
        let object = json!({
            "metadata": {"namespace": "default", "name": format!("{name}-{family}"),
                         "labels": {"kubernetes.io/service-name": name}},
            "addressType": family.to_string(), "ports": [port], "endpoints": endpoints,
        });
        let slice: EndpointSlice = serde_json::from_value(object).unwrap();
        self.cluster.apply(Event::Apply(Box::new(Object::EndpointSlice(slice))));
    }

    /// Takes a Service away; its endpoints stay.
    pub fn delete(&mut self, name: &str) {
        let (kind, namespace, name) = (Kind::Service, "default".into(), name.into());
        self.cluster.apply(Event::Delete { kind, namespace, name });
    }

    /// What changed, for one family.
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

    /// A mode, after it has programmed everything.
    pub fn programmed<M: Dataplane>(&mut self, mut mode: M, settings: &Settings) -> M {
        let all = self.all(mode.family());
        mode.sync(settings, all).unwrap();
        mode
    }
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}
