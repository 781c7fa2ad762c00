//! `v1.Endpoints`: the endpoints of a Service in one object, the predecessor of EndpointSlices.

use crate::resource::resource;
use crate::{ObjectMeta, ObjectReference, Writable, is_zero, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};

/// `v1.Endpoints`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoints {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Addresses by the set of ports that they serve.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub subsets: Vec<EndpointSubset>,
}

/// `v1.EndpointSubset`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSubset {
    /// Addresses that are ready.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<EndpointAddress>,
    /// Addresses that are not.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<EndpointAddress>,
    /// Ports.
    #[prost(message, repeated, tag = "3")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SubsetPort>,
}

/// `v1.EndpointAddress`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAddress {
    /// Address.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// The Pod.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
    /// Host name, for DNS.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub hostname: String,
    /// Name of the node that the endpoint runs on.
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// `v1.EndpointPort`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubsetPort {
    /// The Service port's name.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Port at the endpoint.
    #[prost(int32, tag = "2")]
    pub port: i32,
    /// `TCP` (also when empty), `UDP`, `SCTP`.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub protocol: String,
    /// The application's protocol, as the Service names it.
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

resource!(Endpoints, "", "Endpoints", "endpoints", Namespaced);

impl Writable for Endpoints {}
