//! `meta/v1 ObjectMeta`, the metadata of every object.

use crate::{Time, is_zero, null_is_empty};
use prost::Message;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// `metadata` of any object. Fields that only the server sets, such as `managedFields`, are left out: the server keeps
/// them when an object is written back without them.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Object name.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Prefix of a name that the server completes.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_zero")]
    pub generate_name: String,
    /// Namespace; empty for cluster-scoped objects.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub namespace: String,
    /// Unique id, which Kubernetes Events refer to.
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub uid: String,
    /// Version to watch from, and which the server compares before a write.
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "is_zero")]
    pub resource_version: String,
    /// Number of the specification, which grows with every change of it; the status says which one it is about.
    #[prost(int64, tag = "7")]
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// Creation time: if two Services claim the same address, the older one gets it.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// Present once the object is being deleted.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// Labels.
    #[prost(map = "string, string", tag = "11")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "HashMap::is_empty")]
    pub labels: HashMap<String, String>,
    /// Annotations.
    #[prost(map = "string, string", tag = "12")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "HashMap::is_empty")]
    pub annotations: HashMap<String, String>,
    /// Objects whose deletion deletes this one.
    #[prost(message, repeated, tag = "13")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    /// Finalizers; the object is deleted after all of them have been removed.
    #[prost(string, repeated, tag = "14")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
}

/// `meta/v1 OwnerReference`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Kind of the owner.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its unique id.
    #[prost(string, tag = "4")]
    pub uid: String,
    /// Its API version.
    #[prost(string, tag = "5")]
    pub api_version: String,
    /// Whether the owner is the controller of the object.
    #[prost(bool, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether a foreground deletion of the owner waits for the object.
    #[prost(bool, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}
