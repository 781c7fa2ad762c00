//! `events.k8s.io/v1 Event`: what `kubectl describe` shows below an object. Named apart from [`crate::Event`], a change
//! of a watched object.

use crate::resource::resource;
use crate::{MicroTime, ObjectMeta, Writable, is_zero};
use prost::Message;
use serde::{Deserialize, Serialize};

/// `events.k8s.io/v1 Event`. The deprecated fields, which only converters write, are left out.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventRecord {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// When it was first observed.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_time: Option<MicroTime>,
    /// Repetitions.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<EventSeries>,
    /// The program that writes it.
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "is_zero")]
    pub reporting_controller: String,
    /// The process that writes it.
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub reporting_instance: String,
    /// What was done or failed, in one word.
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "is_zero")]
    pub action: String,
    /// Why, in one CamelCase word.
    #[prost(string, tag = "7")]
    #[serde(skip_serializing_if = "is_zero")]
    pub reason: String,
    /// The object that it is about.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regarding: Option<ObjectReference>,
    /// A second object.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub related: Option<ObjectReference>,
    /// A sentence for people.
    #[prost(string, tag = "10")]
    #[serde(skip_serializing_if = "is_zero")]
    pub note: String,
    /// `Normal` or `Warning`.
    #[prost(string, tag = "11")]
    #[serde(rename = "type", skip_serializing_if = "is_zero")]
    pub severity: String,
}

/// `events.k8s.io/v1 EventSeries`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventSeries {
    /// How often it was observed.
    #[prost(int32, tag = "1")]
    pub count: i32,
    /// When it was last observed.
    #[prost(message, optional, tag = "2")]
    pub last_observed_time: Option<MicroTime>,
}

/// `v1.ObjectReference`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// Kind.
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "is_zero")]
    pub kind: String,
    /// Namespace.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_zero")]
    pub namespace: String,
    /// Name.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Unique id.
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "is_zero")]
    pub uid: String,
    /// API version.
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub api_version: String,
    /// Version of the object.
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "is_zero")]
    pub resource_version: String,
    /// A part of the object.
    #[prost(string, tag = "7")]
    #[serde(skip_serializing_if = "is_zero")]
    pub field_path: String,
}

resource!(EventRecord, "events.k8s.io", "Event", "events", Namespaced);

impl Writable for EventRecord {}
