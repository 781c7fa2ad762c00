//! `discovery.k8s.io/v1 EndpointSlice` with every field, for controllers, which write slices. The proxy decodes the
//! smaller [`crate::EndpointSlice`].

use crate::resource::resource;
use crate::{EndpointConditions, EndpointHints, ObjectMeta, ObjectReference, Writable, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

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
    /// Addresses.
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty")]
    pub addresses: Vec<String>,
    /// Conditions.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<EndpointConditions>,
    /// Host name, for DNS.
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The Pod.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
    /// Topology of an object that was written as v1beta1.
    #[prost(map = "string, string", tag = "5")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "HashMap::is_empty")]
    pub deprecated_topology: HashMap<String, String>,
    /// Name of the node that the endpoint runs on.
    #[prost(string, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The zone of that node.
    #[prost(string, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Zones and nodes that should use the endpoint.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<EndpointHints>,
}

/// `discovery.k8s.io/v1 EndpointPort`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    /// The Service port's name.
    #[prost(string, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `TCP`, `UDP`, `SCTP`.
    #[prost(string, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Port at the endpoint.
    #[prost(int32, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// The application's protocol, as the Service names it.
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

resource!(EndpointSlice, "discovery.k8s.io", "EndpointSlice", "endpointslices", Namespaced);

impl Writable for EndpointSlice {}
