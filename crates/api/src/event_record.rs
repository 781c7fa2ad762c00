//! `events.k8s.io/v1 Event`, which `kubectl describe` shows below an object. The type is named `EventRecord` because
//! [`crate::Event`] is a change to a watched object.

use crate::resource::resource;
use crate::{MicroTime, ObjectMeta, Writable, is_zero};
use prost::Message;
use serde::{Deserialize, Serialize};

/// `events.k8s.io/v1 Event`. The deprecated fields, which exist for conversion from `v1.Event`, are left out; an Event
/// is created and patched, never replaced.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventRecord {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// Time of the first observation.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_time: Option<MicroTime>,
    /// Repetitions.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<EventSeries>,
    /// Name of the controller that reports the Event.
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "is_zero")]
    pub reporting_controller: String,
    /// Name of the controller's instance.
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "is_zero")]
    pub reporting_instance: String,
    /// The action that was taken or that failed, in one word.
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "is_zero")]
    pub action: String,
    /// Reason for the action, in one CamelCase word.
    #[prost(string, tag = "7")]
    #[serde(skip_serializing_if = "is_zero")]
    pub reason: String,
    /// The object that the Event is about.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regarding: Option<ObjectReference>,
    /// A second object, for actions that involve two.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub related: Option<ObjectReference>,
    /// Human-readable description.
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
    /// Number of observations.
    #[prost(int32, tag = "1")]
    pub count: i32,
    /// Time of the last observation.
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
