//! `networking.k8s.io/v1 ServiceCIDR`: the ranges of cluster IPs.

use crate::resource::resource;
use crate::{ObjectMeta, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};

/// `networking.k8s.io/v1 ServiceCIDR`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Specification.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<ServiceCidrSpec>,
}

/// `networking.k8s.io/v1 ServiceCIDRSpec`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// The ranges, at most one per family.
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "null_is_empty")]
    pub cidrs: Vec<String>,
}

resource!(ServiceCidr, "networking.k8s.io", "ServiceCIDR", "servicecidrs", Cluster, older: &["v1beta1"]);
