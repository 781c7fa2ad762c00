//! The few fields of Kubernetes objects that the Service system reads.
//!
//! One struct serves both wire formats: prost reads the API server's protobuf (the tags are those of upstream's
//! `generated.proto`), serde reads its JSON and the YAML of manifests. Fields that are not listed here are
//! skipped by both, so a watched object never exists whole. These values live for one event only: what is kept
//! is what [`crate::ingest`] makes of them.

#[cfg(test)]
mod tests;

use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashMap;

/// Go writes an empty list as `null`, and people write `ports:` with nothing behind it.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// `metadata` of any object.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Object name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace; empty for cluster-scoped objects.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Unique id, quoted in Events.
    #[prost(string, tag = "5")]
    pub uid: String,
    /// Version to watch from.
    #[prost(string, tag = "6")]
    pub resource_version: String,
    /// When it was made: of two that claim the same address, the older has it.
    #[prost(message, optional, tag = "8")]
    pub creation_timestamp: Option<Time>,
    /// Present once the object is being deleted.
    #[prost(message, optional, tag = "9")]
    pub deletion_timestamp: Option<Time>,
    /// Labels.
    #[prost(map = "string, string", tag = "11")]
    #[serde(deserialize_with = "null_is_empty")]
    pub labels: HashMap<String, String>,
    /// Annotations.
    #[prost(map = "string, string", tag = "12")]
    #[serde(deserialize_with = "null_is_empty")]
    pub annotations: HashMap<String, String>,
}

/// A timestamp: seconds in protobuf, RFC 3339 text in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Time {
    /// Seconds since the epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&crate::time::format_rfc3339(self.seconds))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let (seconds, _) = crate::time::parse_rfc3339(&text).ok_or_else(|| {
            serde::de::Error::custom(format_args!("{text:?} is not a time such as 2006-01-02T15:04:05Z"))
        })?;
        Ok(Time { seconds })
    }
}

/// `v1.Service`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Desired behaviour.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<ServiceSpec>,
    /// Load balancer's answer.
    #[prost(message, optional, tag = "3")]
    pub status: Option<ServiceStatus>,
}

/// `v1.ServiceSpec`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// Ports.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty")]
    pub ports: Vec<ServicePort>,
    /// First cluster IP, `None` for headless, or empty.
    #[prost(string, tag = "3")]
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[prost(string, tag = "4")]
    #[serde(rename = "type")]
    pub kind: String,
    /// Addresses that somebody routes to the nodes.
    #[prost(string, repeated, tag = "5")]
    #[serde(rename = "externalIPs")]
    #[serde(deserialize_with = "null_is_empty")]
    pub external_ips: Vec<String>,
    /// `None` or `ClientIP`.
    #[prost(string, tag = "7")]
    pub session_affinity: String,
    /// Who may reach the load-balancer addresses.
    #[prost(string, repeated, tag = "9")]
    #[serde(deserialize_with = "null_is_empty")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `Cluster` or `Local`.
    #[prost(string, tag = "11")]
    pub external_traffic_policy: String,
    /// Port of the health check for policy `Local`.
    #[prost(int32, tag = "12")]
    pub health_check_node_port: i32,
    /// Affinity's time-out.
    #[prost(message, optional, tag = "14")]
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// All cluster IPs, one per family.
    #[prost(string, repeated, tag = "18")]
    #[serde(rename = "clusterIPs")]
    #[serde(deserialize_with = "null_is_empty")]
    pub cluster_ips: Vec<String>,
    /// `IPv4`, `IPv6`.
    #[prost(string, repeated, tag = "19")]
    #[serde(deserialize_with = "null_is_empty")]
    pub ip_families: Vec<String>,
    /// `Cluster` or `Local`.
    #[prost(string, optional, tag = "22")]
    pub internal_traffic_policy: Option<String>,
}

/// `v1.ServicePort`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name; empty if it is the only one.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `TCP` (also when empty), `UDP`, `SCTP`.
    #[prost(string, tag = "2")]
    pub protocol: String,
    /// Port at the Service's addresses.
    #[prost(int32, tag = "3")]
    pub port: i32,
    /// Port at every node, or 0.
    #[prost(int32, tag = "5")]
    pub node_port: i32,
}

/// `v1.SessionAffinityConfig`.
#[derive(Clone, Copy, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    /// Settings of `ClientIP`.
    #[prost(message, optional, tag = "1")]
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// `v1.ClientIPConfig`.
#[derive(Clone, Copy, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// Seconds a client sticks to an endpoint after its last new connection.
    #[prost(int32, optional, tag = "1")]
    pub timeout_seconds: Option<i32>,
}

/// `v1.ServiceStatus`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// What the load balancer assigned.
    #[prost(message, optional, tag = "1")]
    pub load_balancer: Option<LoadBalancerStatus>,
}

/// `v1.LoadBalancerStatus`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    /// Its addresses.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// `v1.LoadBalancerIngress`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// Address; empty if it has a host name instead.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// `VIP` (also when absent) or `Proxy`.
    #[prost(string, optional, tag = "3")]
    pub ip_mode: Option<String>,
}

/// `discovery.k8s.io/v1 EndpointSlice`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Endpoints.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "null_is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// Ports that every endpoint of the slice serves.
    #[prost(message, repeated, tag = "3")]
    #[serde(deserialize_with = "null_is_empty")]
    pub ports: Vec<EndpointPort>,
    /// `IPv4`, `IPv6` or `FQDN`.
    #[prost(string, tag = "4")]
    pub address_type: String,
}

/// `discovery.k8s.io/v1 Endpoint`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Addresses, of which the first counts.
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty")]
    pub addresses: Vec<String>,
    /// Conditions.
    #[prost(message, optional, tag = "2")]
    pub conditions: Option<EndpointConditions>,
    /// Where it runs.
    #[prost(string, optional, tag = "6")]
    pub node_name: Option<String>,
    /// Whom it is meant for.
    #[prost(message, optional, tag = "8")]
    pub hints: Option<EndpointHints>,
}

/// `discovery.k8s.io/v1 EndpointConditions`.
#[derive(Clone, Copy, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointConditions {
    /// Absent means true.
    #[prost(bool, optional, tag = "1")]
    pub ready: Option<bool>,
    /// Absent means true.
    #[prost(bool, optional, tag = "2")]
    pub serving: Option<bool>,
    /// Absent means false.
    #[prost(bool, optional, tag = "3")]
    pub terminating: Option<bool>,
}

/// `discovery.k8s.io/v1 EndpointHints`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// Zones whose nodes should use the endpoint.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty")]
    pub for_zones: Vec<Named>,
    /// Nodes that should use the endpoint.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "null_is_empty")]
    pub for_nodes: Vec<Named>,
}

/// `discovery.k8s.io/v1 ForZone` and `ForNode`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Zone or node.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// `discovery.k8s.io/v1 EndpointPort`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    /// The Service port's name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// `TCP` (also when absent), `UDP`, `SCTP`.
    #[prost(string, optional, tag = "2")]
    pub protocol: Option<String>,
    /// Port at the endpoint; absent means it is ignored.
    #[prost(int32, optional, tag = "3")]
    pub port: Option<i32>,
}

/// `v1.Node`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Pod networks and taints.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<NodeSpec>,
    /// Addresses.
    #[prost(message, optional, tag = "3")]
    pub status: Option<NodeStatus>,
}

/// `v1.NodeSpec`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// First pod network.
    #[prost(string, tag = "1")]
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    /// Taints.
    #[prost(message, repeated, tag = "5")]
    #[serde(deserialize_with = "null_is_empty")]
    pub taints: Vec<Taint>,
    /// Pod networks, one per family.
    #[prost(string, repeated, tag = "7")]
    #[serde(rename = "podCIDRs")]
    #[serde(deserialize_with = "null_is_empty")]
    pub pod_cidrs: Vec<String>,
}

/// `v1.Taint`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key.
    #[prost(string, tag = "1")]
    pub key: String,
}

/// `v1.NodeStatus`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Addresses.
    #[prost(message, repeated, tag = "5")]
    #[serde(deserialize_with = "null_is_empty")]
    pub addresses: Vec<NodeAddress>,
}

/// `v1.NodeAddress`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname`…
    #[prost(string, tag = "1")]
    #[serde(rename = "type")]
    pub kind: String,
    /// The address.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// `networking.k8s.io/v1 ServiceCIDR`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// The ranges.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<ServiceCidrSpec>,
}

/// `networking.k8s.io/v1 ServiceCIDRSpec`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// At most one per family.
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty")]
    pub cidrs: Vec<String>,
}

/// The kinds that are watched, each with its own list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `v1.Service`
    Service,
    /// `discovery.k8s.io/v1 EndpointSlice`
    EndpointSlice,
    /// `v1.Node`
    Node,
    /// `networking.k8s.io/v1 ServiceCIDR`
    ServiceCidr,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Node => "Node",
            Kind::ServiceCidr => "ServiceCIDR",
        })
    }
}

/// An object of one of the watched kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Service.
    Service(Service),
    /// A slice of endpoints.
    EndpointSlice(EndpointSlice),
    /// A node.
    Node(Node),
    /// A range of cluster IPs.
    ServiceCidr(ServiceCidr),
}

impl Object {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Object::Service(_) => Kind::Service,
            Object::EndpointSlice(_) => Kind::EndpointSlice,
            Object::Node(_) => Kind::Node,
            Object::ServiceCidr(_) => Kind::ServiceCidr,
        }
    }

    /// Its metadata, if it has any.
    pub fn metadata(&self) -> Option<&ObjectMeta> {
        match self {
            Object::Service(o) => o.metadata.as_ref(),
            Object::EndpointSlice(o) => o.metadata.as_ref(),
            Object::Node(o) => o.metadata.as_ref(),
            Object::ServiceCidr(o) => o.metadata.as_ref(),
        }
    }
}

/// What happened in the world. A relist is in the type: everything of `kind` that is not applied between
/// [`Event::Init`] and [`Event::InitDone`] is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A complete list of `kind` begins.
    Init(Kind),
    /// An object is there, new or changed.
    Apply(Box<Object>),
    /// The list of `kind` is complete.
    InitDone(Kind),
    /// An object is gone. Namespace is empty for cluster-scoped kinds.
    Delete {
        /// What it was.
        kind: Kind,
        /// Where it was.
        namespace: String,
        /// Its name.
        name: String,
    },
}
