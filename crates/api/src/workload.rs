//! `apps/v1 ReplicaSet` and `Deployment`: the fields that their controllers read. Pod templates are JSON text, which is
//! copied to Pods as it is.

use crate::resource::resource;
use crate::{IntOrString, LabelSelector, ObjectMeta, Time, is_zero, json_text, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};

/// `apps/v1 ReplicaSet`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Desired Pods.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<ReplicaSetSpec>,
    /// Observed Pods.
    #[prost(message, optional, tag = "3")]
    pub status: Option<ReplicaSetStatus>,
}

/// `apps/v1 ReplicaSetSpec`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpec {
    /// Number of Pods; 1 if absent.
    #[prost(int32, optional, tag = "1")]
    pub replicas: Option<i32>,
    /// Labels of its Pods.
    #[prost(message, optional, tag = "2")]
    pub selector: Option<LabelSelector>,
    /// The Pod template, as canonical JSON.
    #[prost(string, tag = "3")]
    #[serde(with = "json_text")]
    pub template: String,
    /// Seconds that a Pod has to be ready before it is available.
    #[prost(int32, tag = "4")]
    #[serde(skip_serializing_if = "is_zero")]
    pub min_ready_seconds: i32,
}

/// `apps/v1 ReplicaSetStatus`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetStatus {
    /// Pods that run or will run.
    #[prost(int32, tag = "1")]
    pub replicas: i32,
    /// Those with all labels of the template.
    #[prost(int32, tag = "2")]
    #[serde(skip_serializing_if = "is_zero")]
    pub fully_labeled_replicas: i32,
    /// The generation that this status is about.
    #[prost(int64, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// Those that are ready.
    #[prost(int32, tag = "4")]
    #[serde(skip_serializing_if = "is_zero")]
    pub ready_replicas: i32,
    /// Those that have been ready for `minReadySeconds`.
    #[prost(int32, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub available_replicas: i32,
    /// Those that are being deleted; absent if the API server does not store it (before 1.35).
    #[prost(int32, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i32>,
    /// Conditions: `ReplicaFailure`.
    #[prost(message, repeated, tag = "6")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<WorkloadCondition>,
}

/// `apps/v1 DeploymentCondition` and `ReplicaSetCondition`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadCondition {
    /// Type, such as `Progressing`.
    #[prost(string, tag = "1")]
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[prost(string, tag = "2")]
    pub status: String,
    /// Why, in one word.
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "is_zero")]
    pub reason: String,
    /// Why, as a sentence.
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub message: String,
    /// When it was last written.
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// When its status changed.
    #[prost(message, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// `apps/v1 Deployment`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Desired Pods and how they are replaced.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<DeploymentSpec>,
    /// Observed Pods.
    #[prost(message, optional, tag = "3")]
    pub status: Option<DeploymentStatus>,
}

/// `apps/v1 DeploymentSpec`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    /// Number of Pods; 1 if absent.
    #[prost(int32, optional, tag = "1")]
    pub replicas: Option<i32>,
    /// Labels of its Pods.
    #[prost(message, optional, tag = "2")]
    pub selector: Option<LabelSelector>,
    /// The Pod template, as canonical JSON.
    #[prost(string, tag = "3")]
    #[serde(with = "json_text")]
    pub template: String,
    /// How Pods are replaced.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<DeploymentStrategy>,
    /// Seconds that a Pod has to be ready before it is available.
    #[prost(int32, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub min_ready_seconds: i32,
    /// Number of old ReplicaSets to keep; 10 if absent.
    #[prost(int32, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// Whether a new template is not rolled out.
    #[prost(bool, tag = "7")]
    #[serde(skip_serializing_if = "is_zero")]
    pub paused: bool,
    /// Seconds without progress after which a rollout counts as failed; 600 if absent.
    #[prost(int32, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

/// `apps/v1 DeploymentStrategy`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStrategy {
    /// `RollingUpdate` (also when empty) or `Recreate`.
    #[prost(string, tag = "1")]
    #[serde(rename = "type", skip_serializing_if = "is_zero")]
    pub kind: String,
    /// Limits of a rolling update.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// `apps/v1 RollingUpdateDeployment`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Pods that may be unavailable, as a number or a percentage; 25% if absent.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Pods that there may be in addition, as a number or a percentage; 25% if absent.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
}

/// `apps/v1 DeploymentStatus`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// The generation that this status is about.
    #[prost(int64, tag = "1")]
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// Pods in all.
    #[prost(int32, tag = "2")]
    #[serde(skip_serializing_if = "is_zero")]
    pub replicas: i32,
    /// Pods of the newest template.
    #[prost(int32, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub updated_replicas: i32,
    /// Pods that are available.
    #[prost(int32, tag = "4")]
    #[serde(skip_serializing_if = "is_zero")]
    pub available_replicas: i32,
    /// Pods that are missing.
    #[prost(int32, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub unavailable_replicas: i32,
    /// Conditions: `Available`, `Progressing`, `ReplicaFailure`.
    #[prost(message, repeated, tag = "6")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<WorkloadCondition>,
    /// Pods that are ready.
    #[prost(int32, tag = "7")]
    #[serde(skip_serializing_if = "is_zero")]
    pub ready_replicas: i32,
    /// How often the name of a new ReplicaSet was that of another one.
    #[prost(int32, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Pods that are being deleted; absent if the API server does not store it (before 1.35).
    #[prost(int32, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i32>,
}

resource!(ReplicaSet, "apps", "ReplicaSet", "replicasets", Namespaced, json_only: true);
resource!(Deployment, "apps", "Deployment", "deployments", Namespaced, json_only: true);
