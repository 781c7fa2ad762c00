//! Plans for tests, made the way the agent makes them: from API objects.

use portway_model::api::{EndpointSlice, Event, Kind, Node, Object, Service};
use portway_model::{Cluster, Family, Identity, ServiceName, ServicePlan};
use serde_json::{Value, json};

/// A model of a cluster, fed with JSON.
pub(crate) struct World {
    cluster: Cluster,
}

impl World {
    pub(crate) fn new() -> World {
        let mut cluster = Cluster::new(Identity { node: "node1".into(), proxy_name: None });
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            cluster.apply(Event::Init(kind));
            cluster.apply(Event::InitDone(kind));
        }
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "node1", "labels": {"topology.kubernetes.io/zone": "a"}},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.50.11"},
                                     {"type": "InternalIP", "address": "fd50::11"}]},
        }))
        .unwrap();
        cluster.apply(Event::Apply(Box::new(Object::Node(node))));
        World { cluster }
    }

    /// A Service with both families; `spec` adds to it.
    pub(crate) fn service(&mut self, name: &str, number: u8, spec: Value, status: Value) -> &mut World {
        let mut full = json!({
            "clusterIP": format!("10.96.0.{number}"),
            "clusterIPs": [format!("10.96.0.{number}"), format!("fd96::{number}")],
            "ports": [{"name": "http", "port": 80}],
        });
        for (key, value) in spec.as_object().unwrap() {
            full[key] = value.clone();
        }
        let object =
            json!({"metadata": {"namespace": "default", "name": name}, "spec": full, "status": status});
        let service: Service = serde_json::from_value(object).unwrap();
        self.cluster.apply(Event::Apply(Box::new(Object::Service(service))));
        self
    }

    /// The endpoints of a Service: last byte of the address and node.
    pub(crate) fn endpoints(&mut self, name: &str, port: Value, pods: &[(u8, &str)]) -> &mut World {
        for (family, prefix) in [("IPv4", "10.244.1."), ("IPv6", "fd10:244:1::")] {
            let endpoints: Vec<Value> = pods
                .iter()
                .map(|(n, node)| json!({"addresses": [format!("{prefix}{n}")], "nodeName": node}))
                .collect();
            let object = json!({
                "metadata": {"namespace": "default", "name": format!("{name}-{family}"),
                             "labels": {"kubernetes.io/service-name": name}},
                "addressType": family, "ports": [port], "endpoints": endpoints,
            });
            let slice: EndpointSlice = serde_json::from_value(object).unwrap();
            self.cluster.apply(Event::Apply(Box::new(Object::EndpointSlice(slice))));
        }
        self
    }

    pub(crate) fn delete(&mut self, name: &str) -> &mut World {
        self.cluster.apply(Event::Delete {
            kind: Kind::Service,
            namespace: "default".into(),
            name: name.into(),
        });
        self
    }

    pub(crate) fn changes(&mut self, family: Family) -> Vec<(ServiceName, Option<ServicePlan>)> {
        let changes = self.cluster.take_changes();
        let index = usize::from(family == Family::V6);
        changes.services.into_iter().map(|mut s| (s.name, s.plans[index].take())).collect()
    }
}

/// One of every kind of Service.
pub(crate) fn zoo() -> World {
    let mut world = World::new();
    let http = json!({"name": "http", "port": 8080});
    world.service("plain", 1, json!({}), json!({})).endpoints(
        "plain",
        http.clone(),
        &[(10, "node1"), (11, "node2")],
    );
    world.service(
        "empty",
        2,
        json!({"type": "NodePort", "ports": [{"name": "http", "port": 80, "nodePort": 30002}]}),
        json!({}),
    );
    world
        .service(
            "sticky",
            3,
            json!({"sessionAffinity": "ClientIP", "type": "NodePort",
                   "ports": [{"name": "http", "port": 80, "nodePort": 30003}]}),
            json!({}),
        )
        .endpoints("sticky", http.clone(), &[(20, "node1"), (21, "node2"), (22, "node2")]);
    world
        .service(
            "balanced",
            4,
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "externalIPs": ["203.0.113.9", "2001:db8::9"],
                   "loadBalancerSourceRanges": ["192.0.2.0/24", "192.168.50.0/24", "2001:db8:1::/64"],
                   "ports": [{"name": "http", "port": 80, "nodePort": 30004}]}),
            json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.4"}, {"ip": "2001:db8::4"}]}}),
        )
        .endpoints("balanced", http.clone(), &[(30, "node1"), (31, "node2")]);
    world
        .service(
            "elsewhere",
            5,
            json!({"type": "NodePort", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
                   "ports": [{"name": "http", "port": 80, "nodePort": 30005}]}),
            json!({}),
        )
        .endpoints("elsewhere", http, &[(41, "node2")]);
    world
        .service(
            "udp",
            6,
            json!({"ports": [{"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053}]}),
            json!({}),
        )
        .endpoints("udp", json!({"name": "dns", "protocol": "UDP", "port": 5353}), &[(10, "node1")]);
    world
}
