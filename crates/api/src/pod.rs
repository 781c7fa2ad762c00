//! `v1.Pod`: labels, addresses, named ports, readiness and restarts.

use crate::resource::resource;
use crate::{ObjectMeta, Time, is_zero, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};

/// `v1.Pod`.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Node, host name and ports.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<PodSpec>,
    /// Addresses and readiness.
    #[prost(message, optional, tag = "3")]
    pub status: Option<PodStatus>,
}

/// `v1.PodSpec`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "null_is_empty")]
    pub containers: Vec<Container>,
    /// Name of the node that the Pod runs on; empty until it is scheduled.
    #[prost(string, tag = "10")]
    #[serde(skip_serializing_if = "is_zero")]
    pub node_name: String,
    /// Host name, if it is not the Pod's name.
    #[prost(string, tag = "16")]
    #[serde(skip_serializing_if = "is_zero")]
    pub hostname: String,
    /// Name of the headless Service under which DNS has the host name.
    #[prost(string, tag = "17")]
    #[serde(skip_serializing_if = "is_zero")]
    pub subdomain: String,
    /// Containers that run before the others, or beside them if their restart policy is `Always`.
    #[prost(message, repeated, tag = "20")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
}

/// `v1.Container`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Ports.
    #[prost(message, repeated, tag = "6")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// `Always` for an init container that runs as long as the Pod.
    #[prost(string, optional, tag = "24")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
}

/// `v1.ContainerPort`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name, which a Service's `targetPort` may refer to.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Port.
    #[prost(int32, tag = "3")]
    pub container_port: i32,
    /// `TCP` (also when empty), `UDP`, `SCTP`.
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "is_zero")]
    pub protocol: String,
}

/// `v1.PodStatus`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_zero")]
    pub phase: String,
    /// Conditions; `Ready` is the one that endpoints depend on.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// First address.
    #[prost(string, tag = "6")]
    #[serde(rename = "podIP", skip_serializing_if = "is_zero")]
    pub pod_ip: String,
    /// States of the containers.
    #[prost(message, repeated, tag = "8")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Addresses, at most one per family.
    #[prost(message, repeated, tag = "12")]
    #[serde(rename = "podIPs", deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
}

/// `v1.PodCondition` and `v1.NodeCondition`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type, such as `Ready`.
    #[prost(string, tag = "1")]
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[prost(string, tag = "2")]
    pub status: String,
    /// When a Node's condition was last reported.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// When the status changed.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Why, in one word.
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub reason: String,
}

/// `v1.ContainerStatus`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// How often the container was restarted.
    #[prost(int32, tag = "5")]
    pub restart_count: i32,
}

/// `v1.PodIP`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// Address.
    #[prost(string, tag = "1")]
    pub ip: String,
}

resource!(Pod, "", "Pod", "pods", Namespaced);
