//! A snapshot of a running process, served as JSON and read by commands.

use crate::health::{HealthState, Timestamp};
use crate::rfc3339;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of Portway.
    pub version: String,
    /// The proxy mode in force.
    pub mode: String,
    /// Whether every part is healthy.
    pub healthy: bool,
    /// Whether the node is eligible for traffic.
    pub node_eligible: bool,
    /// The parts, such as address families.
    pub families: BTreeMap<String, PartStatus>,
    /// Changes that wait for a sync.
    pub pending: Pending,
    /// Objects that are rejected.
    pub rejections: Vec<RejectedObject>,
    /// The source of objects.
    pub source: SourceStatus,
}

/// The state of one part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartStatus {
    /// The time of the last sync, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    /// For how many seconds an update has been waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_seconds: Option<u64>,
    /// Whether that is shorter than the timeout.
    pub healthy: bool,
}

/// Changes that wait for a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Changes of Services.
    pub services: u64,
    /// Changes of endpoints.
    pub endpoints: u64,
}

/// An object that is rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedObject {
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The field with the error.
    pub field: String,
    /// The error.
    pub reason: String,
}

/// The source of objects: an API server or a directory of manifests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Whether all objects can be read from it.
    pub connected: bool,
}

impl Status {
    /// Fills in the fields that come from the health state.
    #[must_use]
    pub fn with_health(self, health: &HealthState, now: Timestamp) -> Status {
        let families = health.parts().iter().map(|(name, part)| {
            let waiting =
                part.waiting_since.map(|since| now.instant.saturating_duration_since(since).as_secs());
            let status = PartStatus {
                last_sync: part.synced.map(rfc3339::format),
                waiting_seconds: waiting,
                healthy: health.is_part_healthy(part, now),
            };
            (name.clone(), status)
        });
        Status {
            healthy: health.is_healthy(now),
            node_eligible: health.node_eligible(),
            families: families.collect(),
            ..self
        }
    }
}
