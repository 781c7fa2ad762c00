//! Builders of API objects, in the JSON that a manifest has.
//!
//! Hosts have names in tests. An [`AddressBook`] maps a name to its address in one family, so that the same builders
//! serve the lab and the packet tables.

use portway_model::api::Object;
use portway_model::{Family, Protocol};
use serde_json::{Value, json};
use std::fmt;
use std::net::IpAddr;

/// Name, protocol and number of a port.
pub type Port<'a> = (&'a str, Protocol, u16);

/// The addresses that hosts have in one family.
pub trait AddressBook {
    /// The family.
    fn family(&self) -> Family;

    /// The address of a host.
    fn address(&self, host: &str) -> IpAddr;

    /// The name of the node that a host runs on.
    fn node_of(&self, host: &str) -> String;
}

/// An object, as a manifest has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest(Value);

impl Manifest {
    /// The object as JSON.
    pub fn json(&self) -> &Value {
        &self.0
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The object, decoded as the agent does.
    ///
    /// # Panics
    /// If it cannot be decoded, or the agent does not watch its kind.
    pub fn object(&self) -> Object {
        fn decode<T: serde::de::DeserializeOwned>(value: &Value) -> T {
            T::deserialize(value).unwrap_or_else(|e| panic!("{value}: {e}"))
        }
        match self.kind() {
            "Service" => Object::Service(decode(&self.0)),
            "EndpointSlice" => Object::EndpointSlice(decode(&self.0)),
            "Node" => Object::Node(decode(&self.0)),
            "ServiceCIDR" => Object::ServiceCidr(decode(&self.0)),
            other => panic!("the agent does not watch {other}"),
        }
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Sets fields of an object, replacing fields of the same name.
fn merge(into: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { panic!("{fields} is not an object") };
    for (key, value) in fields {
        into[key] = value;
    }
}

/// A Service in the namespace `default`.
#[derive(Clone, Debug)]
pub struct Service(Value);

impl Service {
    /// With these cluster IPs, and port 80 by TCP.
    pub fn new(name: &str, cluster_ips: &[IpAddr]) -> Service {
        let service = Service(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": name},
            "spec": {"type": "ClusterIP", "ports": [{"port": 80, "protocol": "TCP"}]},
        }));
        service.cluster_ips(cluster_ips)
    }

    /// With these fields of `spec`, which replace fields of the same name.
    pub fn spec(mut self, fields: Value) -> Service {
        merge(&mut self.0["spec"], fields);
        self
    }

    /// With these fields in its first port.
    fn first_port(mut self, fields: Value) -> Service {
        merge(&mut self.0["spec"]["ports"][0], fields);
        self
    }

    /// With these cluster IPs instead.
    pub fn cluster_ips(self, ips: &[IpAddr]) -> Service {
        let families: Vec<&str> = ips.iter().map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
        self.spec(json!({"clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families}))
    }

    /// With these ports instead.
    pub fn ports(self, ports: &[Port<'_>]) -> Service {
        let port = |(name, protocol, port): &Port<'_>| json!({"name": name, "protocol": protocol.to_string(), "port": port});
        self.spec(json!({"ports": ports.iter().map(port).collect::<Vec<_>>()}))
    }

    /// With another number for its first port.
    pub fn port(self, port: u16) -> Service {
        self.first_port(json!({"port": port}))
    }

    /// With another protocol for its first port.
    pub fn protocol(self, protocol: Protocol) -> Service {
        self.first_port(json!({"protocol": protocol.to_string()}))
    }

    /// With UDP as the protocol of its first port.
    pub fn udp(self) -> Service {
        self.protocol(Protocol::Udp)
    }

    /// With a node port.
    pub fn node_port(self, port: u16) -> Service {
        let kind = if self.0["spec"]["type"] == "LoadBalancer" { "LoadBalancer" } else { "NodePort" };
        self.spec(json!({"type": kind})).first_port(json!({"nodePort": port}))
    }

    /// With the external traffic policy Local.
    pub fn external_local(self) -> Service {
        self.spec(json!({"externalTrafficPolicy": "Local"}))
    }

    /// With the internal traffic policy Local.
    pub fn internal_local(self) -> Service {
        self.spec(json!({"internalTrafficPolicy": "Local"}))
    }

    /// With these external IPs.
    pub fn external_ips(self, ips: &[IpAddr]) -> Service {
        self.spec(json!({"externalIPs": ips}))
    }

    /// With session affinity by client IP, with this time-out in seconds.
    pub fn affinity(self, seconds: u32) -> Service {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        self.spec(json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}))
    }

    /// With these load-balancer IPs in addition to those that it has; `mode` is their `ipMode`.
    pub fn load_balancer_ips(mut self, ips: &[IpAddr], mode: Option<&str>) -> Service {
        let ingress = &mut self.0["status"]["loadBalancer"]["ingress"];
        let mut all = ingress.as_array().cloned().unwrap_or_default();
        all.extend(ips.iter().map(|ip| match mode {
            Some(mode) => json!({"ip": ip, "ipMode": mode}),
            None => json!({"ip": ip}),
        }));
        *ingress = all.into();
        self.spec(json!({"type": "LoadBalancer"}))
    }

    /// With these source ranges.
    pub fn source_ranges(self, ranges: &[&str]) -> Service {
        self.spec(json!({"loadBalancerSourceRanges": ranges}))
    }

    /// With a node port for health checks.
    pub fn health_check_node_port(self, port: u16) -> Service {
        self.spec(json!({"healthCheckNodePort": port}))
    }

    /// With a label.
    pub fn label(mut self, key: &str, value: &str) -> Service {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }
}

impl From<Service> for Manifest {
    fn from(service: Service) -> Manifest {
        Manifest(service.0)
    }
}

/// An endpoint of a slice: a host and its conditions.
#[derive(Clone, Debug)]
pub struct Endpoint {
    host: String,
    fields: Value,
}

impl Endpoint {
    /// A host with these conditions.
    fn new(host: &str, [ready, serving, terminating]: [bool; 3]) -> Endpoint {
        let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
        Endpoint { host: host.to_owned(), fields: json!({"conditions": conditions}) }
    }

    /// A ready host.
    pub fn ready(host: &str) -> Endpoint {
        Endpoint::new(host, [true, true, false])
    }

    /// Ready hosts.
    pub fn all(hosts: &[&str]) -> Vec<Endpoint> {
        hosts.iter().map(|host| Endpoint::ready(host)).collect()
    }

    /// A host that is not ready.
    pub fn unready(host: &str) -> Endpoint {
        Endpoint::new(host, [false, false, false])
    }

    /// A host that is not ready though it serves, and is not terminating.
    pub fn serving_unready(host: &str) -> Endpoint {
        Endpoint::new(host, [false, true, false])
    }

    /// A host that terminates and still serves.
    pub fn terminating(host: &str) -> Endpoint {
        Endpoint::new(host, [false, true, true])
    }

    /// A host that terminates and does not serve any more.
    pub fn terminated(host: &str) -> Endpoint {
        Endpoint::new(host, [false, false, true])
    }

    /// With hints for zones.
    pub fn zones(self, zones: &[&str]) -> Endpoint {
        self.hints("forZones", zones)
    }

    /// With hints for nodes.
    pub fn nodes(self, nodes: &[&str]) -> Endpoint {
        self.hints("forNodes", nodes)
    }

    fn hints(mut self, kind: &str, names: &[&str]) -> Endpoint {
        self.fields["hints"][kind] = names.iter().map(|name| json!({"name": name})).collect();
        self
    }

    fn json(&self, addresses: &dyn AddressBook) -> Value {
        let mut endpoint = self.fields.clone();
        endpoint["addresses"] = json!([addresses.address(&self.host)]);
        endpoint["nodeName"] = addresses.node_of(&self.host).into();
        endpoint
    }
}

/// A slice of a Service in the namespace `default`. It has the Service's name, unless another is set.
#[derive(Clone, Debug)]
pub struct EndpointSlice {
    name: String,
    labels: Value,
    ports: Vec<Value>,
    endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// Endpoints of a Service, serving these ports.
    pub fn new(service: &str, ports: &[Port<'_>], endpoints: &[Endpoint]) -> EndpointSlice {
        let port = |(name, protocol, port): &Port<'_>| json!({"name": name, "protocol": protocol.to_string(), "port": port});
        EndpointSlice {
            name: service.to_owned(),
            labels: json!({"kubernetes.io/service-name": service}),
            ports: ports.iter().map(port).collect(),
            endpoints: endpoints.to_vec(),
        }
    }

    /// With another name.
    pub fn name(self, name: &str) -> EndpointSlice {
        EndpointSlice { name: name.to_owned(), ..self }
    }

    /// With a label.
    pub fn label(mut self, key: &str, value: &str) -> EndpointSlice {
        self.labels[key] = value.into();
        self
    }

    /// The slice with the addresses of one family.
    pub fn manifest(&self, addresses: &dyn AddressBook) -> Manifest {
        let endpoints: Vec<Value> = self.endpoints.iter().map(|e| e.json(addresses)).collect();
        Manifest(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "default", "name": self.name, "labels": self.labels},
            "addressType": addresses.family().to_string(), "ports": self.ports, "endpoints": endpoints,
        }))
    }
}

/// A Node in a zone.
pub fn node(name: &str, zone: &str, addresses: &[IpAddr], pod_cidrs: &[String]) -> Manifest {
    let address = |ip: &IpAddr| json!({"type": "InternalIP", "address": ip});
    Manifest(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "spec": {"podCIDRs": pod_cidrs},
        "status": {"addresses": addresses.iter().map(address).collect::<Vec<_>>()},
    }))
}

/// A range of cluster IPs.
pub fn service_cidr(range: &str) -> Manifest {
    Manifest(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": [range]},
    }))
}
