//! `discovery.k8s.io/v1 EndpointSlice`: endpoints, their conditions, ports and hints.

use crate::resource::resource;
use crate::{ObjectMeta, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};

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
    /// Addresses. Only the first one is used.
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty")]
    pub addresses: Vec<String>,
    /// Conditions.
    #[prost(message, optional, tag = "2")]
    pub conditions: Option<EndpointConditions>,
    /// Name of the node that the endpoint runs on.
    #[prost(string, optional, tag = "6")]
    pub node_name: Option<String>,
    /// Zones and nodes that should use the endpoint.
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
    /// Port at the endpoint. An entry without it is ignored.
    #[prost(int32, optional, tag = "3")]
    pub port: Option<i32>,
}

resource!(EndpointSlice, "discovery.k8s.io", "EndpointSlice", "endpointslices", Namespaced);
