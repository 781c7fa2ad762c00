//! `coordination.k8s.io/v1 Lease`, by which one of several processes leads.

use crate::resource::resource;
use crate::{MicroTime, ObjectMeta, Writable};
use prost::Message;
use serde::{Deserialize, Serialize};

/// `coordination.k8s.io/v1 Lease`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Holder and times.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<LeaseSpec>,
}

/// `coordination.k8s.io/v1 LeaseSpec`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Holder; absent or empty: the lease is free.
    #[prost(string, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    /// How long after the last renewal other candidates wait.
    #[prost(int32, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    /// When the holder took it.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
    /// When the holder renewed it last, by the holder's clock.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// How often the holder changed.
    #[prost(int32, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<i32>,
    /// How a coordinated election picks the holder.
    #[prost(string, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// The candidate that the holder should yield to.
    #[prost(string, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_holder: Option<String>,
}

resource!(Lease, "coordination.k8s.io", "Lease", "leases", Namespaced);

impl Writable for Lease {}
