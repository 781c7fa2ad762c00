//! `v1.Service`: the fields that determine its frontends and how it balances connections.

use crate::resource::resource;
use crate::{IntOrString, ObjectMeta, is_zero, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

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
    /// Addresses that the load balancer assigned.
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
    /// Labels of the Pods that serve it; without any, others write its endpoints.
    #[prost(map = "string, string", tag = "2")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "HashMap::is_empty")]
    pub selector: HashMap<String, String>,
    /// First cluster IP, `None` for headless, or empty.
    #[prost(string, tag = "3")]
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[prost(string, tag = "4")]
    #[serde(rename = "type")]
    pub kind: String,
    /// Addresses that are routed to the nodes by other means.
    #[prost(string, repeated, tag = "5")]
    #[serde(rename = "externalIPs")]
    #[serde(deserialize_with = "null_is_empty")]
    pub external_ips: Vec<String>,
    /// `None` or `ClientIP`.
    #[prost(string, tag = "7")]
    pub session_affinity: String,
    /// Client networks that may reach the load-balancer addresses.
    #[prost(string, repeated, tag = "9")]
    #[serde(deserialize_with = "null_is_empty")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `Cluster` or `Local`.
    #[prost(string, tag = "11")]
    pub external_traffic_policy: String,
    /// Port of the health check for policy `Local`.
    #[prost(int32, tag = "12")]
    pub health_check_node_port: i32,
    /// Whether Pods that are not ready are endpoints that are ready, for peer discovery.
    #[prost(bool, tag = "13")]
    #[serde(skip_serializing_if = "is_zero")]
    pub publish_not_ready_addresses: bool,
    /// Time-out of session affinity.
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
    /// `PreferSameZone` (or `PreferClose`), `PreferSameNode`.
    #[prost(string, optional, tag = "23")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
}

/// `v1.ServicePort`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name; may be empty if the Service has only one port.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `TCP` (also when empty), `UDP`, `SCTP`.
    #[prost(string, tag = "2")]
    pub protocol: String,
    /// Port at the Service's addresses.
    #[prost(int32, tag = "3")]
    pub port: i32,
    /// Port at the Pods, or its name; the same as `port` if absent.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<IntOrString>,
    /// Port at every node, or 0.
    #[prost(int32, tag = "5")]
    pub node_port: i32,
    /// The application's protocol, such as `kubernetes.io/h2c`.
    #[prost(string, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
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
    /// Seconds for which a client keeps its endpoint after its last new connection.
    #[prost(int32, optional, tag = "1")]
    pub timeout_seconds: Option<i32>,
}

/// `v1.ServiceStatus`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Addresses that the load balancer assigned.
    #[prost(message, optional, tag = "1")]
    pub load_balancer: Option<LoadBalancerStatus>,
}

/// `v1.LoadBalancerStatus`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    /// Addresses of the load balancer.
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

resource!(Service, "", "Service", "services", Namespaced);
