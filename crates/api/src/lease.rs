//! `coordination.k8s.io/v1 Lease`, the object that leader election uses.

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
    /// Identity of the holder. Absent or empty if the Lease is free.
    #[prost(string, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    /// Seconds that other candidates wait after the last renewal.
    #[prost(int32, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    /// Time when the holder acquired the Lease.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
    /// Time of the last renewal, by the holder's clock.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// Number of changes of the holder.
    #[prost(int32, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<i32>,
    /// Strategy of a coordinated leader election.
    #[prost(string, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Candidate in whose favour the holder should release the Lease.
    #[prost(string, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_holder: Option<String>,
}

resource!(Lease, "coordination.k8s.io", "Lease", "leases", Namespaced);

impl Writable for Lease {}
