//! `v1.Node`: addresses, pod CIDRs and taints.

use crate::resource::resource;
use crate::{Condition, ObjectMeta, Time, is_zero, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

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
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_zero")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub effect: String,
    /// When it was added, for `NoExecute`.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Time>,
}

/// `v1.NodeStatus`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Resources that Pods may use; `cpu` is the one that the share of a zone is computed from.
    #[prost(map = "string, message", tag = "2")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "HashMap::is_empty")]
    pub allocatable: HashMap<String, Quantity>,
    /// Conditions, such as `Ready`.
    #[prost(message, repeated, tag = "4")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Addresses.
    #[prost(message, repeated, tag = "5")]
    #[serde(deserialize_with = "null_is_empty")]
    pub addresses: Vec<NodeAddress>,
}

/// `resource.Quantity`: a number with a unit, such as `1500m`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity {
    /// As it was written.
    #[prost(string, tag = "1")]
    pub text: String,
}

impl Quantity {
    /// In thousandths; `None` if the text is not a quantity.
    pub fn millis(&self) -> Option<f64> {
        let digits = self.text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &self.text[digits.len()..] {
            "m" => 0.001,
            "" => 1.0,
            "k" => 1e3,
            "M" => 1e6,
            "G" => 1e9,
            "Ki" => 1024.0,
            "Mi" => 1024.0 * 1024.0,
            "Gi" => 1024.0 * 1024.0 * 1024.0,
            _ => return None,
        };
        Some(digits.parse::<f64>().ok()? * unit * 1000.0)
    }
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

#[cfg(test)]
mod tests {
    use super::Quantity;

    #[test]
    fn quantities_are_read_in_thousandths() {
        for (text, millis) in
            [("4", 4000.0), ("1500m", 1500.0), ("0.5", 500.0), ("2k", 2e6), ("1Ki", 1_024_000.0)]
        {
            assert_eq!(Quantity { text: text.to_owned() }.millis(), Some(millis), "{text}");
        }
        for text in ["", "many", "4x", "m"] {
            assert_eq!(Quantity { text: text.to_owned() }.millis(), None, "{text}");
        }
    }
}
