//! Objects for scripts, with as few words as possible.

use super::{OTHER_PORT, PORT};
use portway_model::api::{self, Object};
use portway_model::{Family, Protocol};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The stage's addresses in one family.
#[derive(Clone, Debug)]
pub struct Net {
    /// The family under test.
    pub family: Family,
    /// Pods by name.
    pub pods: BTreeMap<String, IpAddr>,
    /// Nodes in order.
    pub nodes: Vec<IpAddr>,
}

impl Net {
    fn address(&self, v4: [u8; 3], v6: u16, n: u8) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::new(v4[0], v4[1], v4[2], n).into(),
            Family::V6 => Ipv6Addr::new(v6, 0, 0, 0, 0, 0, 0, n.into()).into(),
        }
    }

    /// The cluster IP with this number.
    pub fn vip(&self, n: u8) -> IpAddr {
        self.address([10, 96, 0], 0xfd96, n)
    }

    /// An external IP.
    pub fn external(&self, n: u8) -> IpAddr {
        self.address([203, 0, 113], 0xfd11, n)
    }

    /// A load balancer's IP.
    pub fn balancer(&self, n: u8) -> IpAddr {
        self.address([198, 51, 100], 0xfd12, n)
    }

    /// Port 80 of a cluster IP.
    pub fn service(&self, n: u8) -> SocketAddr {
        SocketAddr::new(self.vip(n), 80)
    }

    /// A node port of a node, from 1.
    pub fn node_port(&self, node: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.nodes[node - 1], port)
    }

    /// The family's word in objects.
    fn word(&self) -> String {
        self.family.to_string()
    }

    /// The slice of a Service with these endpoints, serving port [`PORT`] by TCP and UDP.
    pub fn slice(&self, service: &str, endpoints: &[Ep]) -> Object {
        let ports = [("", Protocol::Tcp, PORT), ("", Protocol::Udp, PORT)];
        self.slice_of(service, service, &ports, endpoints)
    }

    /// A slice with a name and ports of its own.
    pub fn slice_of(
        &self,
        service: &str,
        name: &str,
        ports: &[(&str, Protocol, u16)],
        endpoints: &[Ep],
    ) -> Object {
        let port = |(name, protocol, port): &(&str, Protocol, u16)| api::EndpointPort {
            name: Some((*name).to_owned()),
            protocol: Some(protocol.to_string()),
            port: Some((*port).into()),
        };
        let labels = HashMap::from([("kubernetes.io/service-name".to_owned(), service.to_owned())]);
        Object::EndpointSlice(api::EndpointSlice {
            metadata: Some(meta(name, labels)),
            address_type: self.word(),
            ports: ports.iter().map(port).collect(),
            endpoints: endpoints.iter().map(|e| e.object(self)).collect(),
        })
    }
}

/// An endpoint of a slice: a pod and its conditions.
#[derive(Clone, Debug)]
pub struct Ep {
    pod: &'static str,
    ready: bool,
    serving: bool,
    terminating: bool,
    zones: Vec<&'static str>,
    nodes: Vec<&'static str>,
}

impl Ep {
    /// A ready pod.
    pub fn ready(pod: &'static str) -> Ep {
        Ep { pod, ready: true, serving: true, terminating: false, zones: Vec::new(), nodes: Vec::new() }
    }

    /// Ready pods.
    pub fn all(pods: &[&'static str]) -> Vec<Ep> {
        pods.iter().map(|p| Ep::ready(p)).collect()
    }

    /// A pod that is not ready.
    pub fn unready(pod: &'static str) -> Ep {
        Ep { ready: false, serving: false, ..Ep::ready(pod) }
    }

    /// A pod on its way out that still answers.
    pub fn terminating(pod: &'static str) -> Ep {
        Ep { ready: false, terminating: true, ..Ep::ready(pod) }
    }

    /// Meant for zones.
    pub fn zones(self, zones: &[&'static str]) -> Ep {
        Ep { zones: zones.to_vec(), ..self }
    }

    /// Meant for nodes.
    pub fn nodes(self, nodes: &[&'static str]) -> Ep {
        Ep { nodes: nodes.to_vec(), ..self }
    }

    fn object(&self, net: &Net) -> api::Endpoint {
        let named = |names: &[&str]| names.iter().map(|n| api::Named { name: (*n).to_owned() }).collect();
        api::Endpoint {
            addresses: vec![net.pods[self.pod].to_string()],
            conditions: Some(api::EndpointConditions {
                ready: Some(self.ready),
                serving: Some(self.serving),
                terminating: Some(self.terminating),
            }),
            node_name: Some(format!("node{}", &self.pod[3..4])),
            hints: Some(api::EndpointHints { for_zones: named(&self.zones), for_nodes: named(&self.nodes) }),
        }
    }
}

fn meta(name: &str, labels: HashMap<String, String>) -> api::ObjectMeta {
    api::ObjectMeta { name: name.to_owned(), namespace: "default".to_owned(), labels, ..Default::default() }
}

/// A Service.
#[derive(Clone, Debug)]
pub struct Svc(api::Service);

impl Svc {
    /// A Service with a cluster IP and port 80 by TCP.
    pub fn new(net: &Net, name: &str, number: u8) -> Svc {
        let ip = net.vip(number).to_string();
        let port = api::ServicePort { protocol: "TCP".into(), port: 80, ..Default::default() };
        Svc(api::Service {
            metadata: Some(meta(name, HashMap::new())),
            spec: Some(api::ServiceSpec {
                cluster_ip: ip.clone(),
                cluster_ips: vec![ip],
                ip_families: vec![net.word()],
                kind: "ClusterIP".into(),
                ports: vec![port],
                ..Default::default()
            }),
            status: None,
        })
    }

    /// Changes the specification.
    pub fn spec(mut self, change: impl FnOnce(&mut api::ServiceSpec)) -> Svc {
        change(self.0.spec.get_or_insert_default());
        self
    }

    /// By UDP.
    pub fn udp(self) -> Svc {
        self.spec(|s| s.ports[0].protocol = "UDP".into())
    }

    /// With these ports instead: name, protocol, port.
    pub fn ports(self, ports: &[(&str, Protocol, u16)]) -> Svc {
        let port = |(name, protocol, port): &(&str, Protocol, u16)| api::ServicePort {
            name: (*name).to_owned(),
            protocol: protocol.to_string(),
            port: (*port).into(),
            node_port: 0,
        };
        self.spec(|s| s.ports = ports.iter().map(port).collect())
    }

    /// With a node port.
    pub fn node_port(self, port: u16) -> Svc {
        self.spec(|s| {
            s.kind = "NodePort".into();
            s.ports[0].node_port = port.into();
        })
    }

    /// External policy Local.
    pub fn external_local(self) -> Svc {
        self.spec(|s| s.external_traffic_policy = "Local".into())
    }

    /// Internal policy Local.
    pub fn internal_local(self) -> Svc {
        self.spec(|s| s.internal_traffic_policy = Some("Local".into()))
    }

    /// With an external IP.
    pub fn external_ip(self, ip: IpAddr) -> Svc {
        self.spec(|s| s.external_ips.push(ip.to_string()))
    }

    /// With affinity of so many seconds.
    pub fn affinity(self, seconds: i32) -> Svc {
        self.spec(|s| {
            s.session_affinity = "ClientIP".into();
            let client_ip = Some(api::ClientIpConfig { timeout_seconds: Some(seconds) });
            s.session_affinity_config = Some(api::SessionAffinityConfig { client_ip });
        })
    }

    /// With a load balancer's IP.
    pub fn balancer(mut self, ip: IpAddr, mode: Option<&str>) -> Svc {
        let ingress = api::LoadBalancerIngress { ip: ip.to_string(), ip_mode: mode.map(str::to_owned) };
        let status = self.0.status.get_or_insert_default();
        status.load_balancer.get_or_insert_default().ingress.push(ingress);
        self.spec(|s| s.kind = "LoadBalancer".into())
    }

    /// With source ranges.
    pub fn from_only(self, ranges: &[&str]) -> Svc {
        self.spec(|s| s.load_balancer_source_ranges = ranges.iter().map(|r| (*r).to_owned()).collect())
    }

    /// With a label.
    pub fn label(mut self, key: &str, value: &str) -> Svc {
        self.0.metadata.get_or_insert_default().labels.insert(key.to_owned(), value.to_owned());
        self
    }
}

impl From<Svc> for Object {
    fn from(service: Svc) -> Object {
        Object::Service(service.0)
    }
}

/// A node of the stage, with addresses of both families.
pub fn node_object(n: usize, zone: &str, addresses: &[IpAddr], pod_cidrs: &[String]) -> Object {
    let labels = HashMap::from([("topology.kubernetes.io/zone".to_owned(), zone.to_owned())]);
    let mut metadata = meta(&format!("node{n}"), labels);
    metadata.namespace.clear();
    let address = |ip: &IpAddr| api::NodeAddress { kind: "InternalIP".into(), address: ip.to_string() };
    Object::Node(api::Node {
        metadata: Some(metadata),
        spec: Some(api::NodeSpec { pod_cidrs: pod_cidrs.to_vec(), ..Default::default() }),
        status: Some(api::NodeStatus { addresses: addresses.iter().map(address).collect() }),
    })
}

/// The range of cluster IPs of the stage.
pub fn service_cidr(net: &Net) -> Object {
    let range = match net.family {
        Family::V4 => "10.96.0.0/24",
        Family::V6 => "fd96::/112",
    };
    let mut metadata = meta("kubernetes", HashMap::new());
    metadata.namespace.clear();
    let spec = Some(api::ServiceCidrSpec { cidrs: vec![range.to_owned()] });
    Object::ServiceCidr(api::ServiceCidr { metadata: Some(metadata), spec })
}

/// Both ports of a pod, under names.
pub(super) const NAMED: [(&str, Protocol, u16); 2] =
    [("web", Protocol::Tcp, PORT), ("admin", Protocol::Tcp, OTHER_PORT)];
