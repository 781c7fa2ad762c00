//! A cluster for tests: places with names, objects in JSON, plans made the way the agent makes them.
//!
//! This node is `node`, with pods `a` and `b`; `c` and `d` run elsewhere. `client` and `stranger` are outside the
//! cluster. Service number N answers at `svcN`, `lbN`, `extN`; everything exists in both families.

#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses a part of it")]

use portway_dataplane::{Dataplane, LocalTraffic, NodePortAddresses, Settings};
use portway_iptables::fake::Fake;
use portway_iptables::{Iptables, Variant};
use portway_model::api::{EndpointSlice, Event, Kind, Node, Object, Service};
use portway_model::{Cluster, Family, Identity, ServiceName, ServicePlan};
use serde_json::{Value, json};
use std::net::IpAddr;

/// The address a place has.
pub(crate) fn address(family: Family, place: &str) -> IpAddr {
    let numbered = |prefix: &str| place.strip_prefix(prefix).and_then(|n| n.parse::<u8>().ok());
    let (v4, v6) = match place {
        "a" => ("10.244.1.10".to_owned(), "fd10:244:1::10".to_owned()),
        "b" => ("10.244.1.11".to_owned(), "fd10:244:1::11".to_owned()),
        "c" => ("10.244.2.20".to_owned(), "fd10:244:2::20".to_owned()),
        "d" => ("10.244.2.21".to_owned(), "fd10:244:2::21".to_owned()),
        "client" => ("192.0.2.77".to_owned(), "2001:db8:1::77".to_owned()),
        "stranger" => ("198.51.100.5".to_owned(), "2001:db8:2::5".to_owned()),
        "node" => ("192.168.50.11".to_owned(), "fd50::11".to_owned()),
        "alternative" => ("172.31.0.11".to_owned(), "fd51::11".to_owned()),
        "node2" => ("192.168.50.12".to_owned(), "fd50::12".to_owned()),
        "lo" => ("127.0.0.1".to_owned(), "::1".to_owned()),
        "unallocated" => ("10.96.200.1".to_owned(), "fd96::c801".to_owned()),
        _ => {
            if let Some(n) = numbered("svc") {
                (format!("10.96.0.{n}"), format!("fd96::{n}"))
            } else if let Some(n) = numbered("lb") {
                (format!("203.0.113.{n}"), format!("2001:db8:113::{n}"))
            } else if let Some(n) = numbered("ext") {
                (format!("198.18.0.{n}"), format!("2001:db8:114::{n}"))
            } else if let Some(n) = numbered("pod") {
                (format!("10.244.3.{n}"), format!("fd10:244:3::{n}"))
            } else {
                panic!("{place} is nowhere")
            }
        }
    };
    if family == Family::V4 { v4.parse().unwrap() } else { v6.parse().unwrap() }
}

/// Places that endpoints may be at, for reading addresses back.
pub(crate) const PODS: [&str; 5] = ["a", "b", "c", "d", "node"];

/// Both families' addresses of a place, as text.
pub(crate) fn both(place: &str) -> [String; 2] {
    Family::ALL.map(|f| address(f, place).to_string())
}

/// Settings as a node has them: pods told by their addresses, node ports at the node's network.
pub(crate) fn settings() -> Settings {
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

/// The iptables mode over a kernel that is a value.
pub(crate) fn mode(family: Family, variant: Variant) -> Iptables<Fake> {
    let mut kernel = Fake::new(family, variant);
    kernel.addresses.extend(["node", "alternative"].map(|place| address(family, place)));
    Iptables::with_kernel(kernel, family)
}

/// An endpoint at a place, on the node where that place is.
pub(crate) fn endpoint(place: &str) -> Value {
    let node = if ["a", "b", "node"].contains(&place) { "node1" } else { "node2" };
    json!({"place": place, "nodeName": node})
}

/// An endpoint with conditions: ready, serving, terminating.
pub(crate) fn endpoint_in(place: &str, ready: bool, serving: bool, terminating: bool) -> Value {
    let mut endpoint = endpoint(place);
    endpoint["conditions"] = json!({"ready": ready, "serving": serving, "terminating": terminating});
    endpoint
}

/// A model of a cluster, fed with JSON.
pub(crate) struct World {
    cluster: Cluster,
}

impl World {
    /// With this node, and nothing else.
    pub(crate) fn new() -> World {
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
    pub(crate) fn service(mut self, name: &str, n: u8, spec: Value, status: Value) -> World {
        self.apply_service(name, n, spec, status);
        self
    }

    /// The same, for a world that is kept.
    pub(crate) fn apply_service(&mut self, name: &str, n: u8, spec: Value, status: Value) {
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
    pub(crate) fn slice(mut self, name: &str, endpoints: &[Value]) -> World {
        self.apply_slice(name, json!({"name": "http", "port": 8080}), endpoints);
        self
    }

    /// Endpoints of Service `name` for any port.
    pub(crate) fn apply_slice(&mut self, name: &str, port: Value, endpoints: &[Value]) {
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
    pub(crate) fn apply_raw_slice(&mut self, name: &str, family: Family, port: Value, endpoints: &[Value]) {
        let object = json!({
            "metadata": {"namespace": "default", "name": format!("{name}-{family}"),
                         "labels": {"kubernetes.io/service-name": name}},
            "addressType": family.to_string(), "ports": [port], "endpoints": endpoints,
        });
        let slice: EndpointSlice = serde_json::from_value(object).unwrap();
        self.cluster.apply(Event::Apply(Box::new(Object::EndpointSlice(slice))));
    }

    /// Takes a Service away; its endpoints stay.
    pub(crate) fn delete(&mut self, name: &str) {
        let (kind, namespace, name) = (Kind::Service, "default".into(), name.into());
        self.cluster.apply(Event::Delete { kind, namespace, name });
    }

    /// What changed, for one family.
    pub(crate) fn changes(&mut self, family: Family) -> Vec<(ServiceName, Option<ServicePlan>)> {
        let index = usize::from(family == Family::V6);
        let services = self.cluster.take_changes().services;
        services.into_iter().map(|mut s| (s.name, s.plans[index].take())).collect()
    }

    /// All plans, for one family.
    pub(crate) fn all(&mut self, family: Family) -> Vec<(ServiceName, Option<ServicePlan>)> {
        self.cluster.touch_all();
        self.changes(family)
    }

    /// The mode, after it has programmed everything.
    pub(crate) fn programmed(&mut self, family: Family, settings: &Settings) -> Iptables<Fake> {
        let mut mode = mode(family, Variant::Legacy);
        mode.sync(settings, self.all(family)).unwrap();
        mode
    }
}
