//! `v1.Node`: addresses, pod CIDRs and taints.

use crate::resource::resource;
use crate::{ObjectMeta, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};

/// `v1.Node`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Pod CIDRs and taints.
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
    /// First pod CIDR.
    #[prost(string, tag = "1")]
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    /// Taints.
    #[prost(message, repeated, tag = "5")]
    #[serde(deserialize_with = "null_is_empty")]
    pub taints: Vec<Taint>,
    /// Pod CIDRs, one per family.
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

resource!(Node, "", "Node", "nodes", Cluster);
