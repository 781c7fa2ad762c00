//! Lists and watch events as a real API server writes them.

use super::store::{Change, Page};
use portway_model::api::{EndpointSlice, Kind, Node, Object, ObjectMeta, Service, ServiceCidr};
use prost::Message;
use serde_json::{Value, json};

pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub(super) const PROTOBUF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// The kind that a path lists.
pub(super) fn kind_of(path: &str) -> Option<Kind> {
    match path {
        "/api/v1/services" => Some(Kind::Service),
        "/api/v1/nodes" => Some(Kind::Node),
        "/apis/discovery.k8s.io/v1/endpointslices" => Some(Kind::EndpointSlice),
        "/apis/networking.k8s.io/v1/servicecidrs" => Some(Kind::ServiceCidr),
        _ => None,
    }
}

fn version(kind: Kind) -> &'static str {
    match kind {
        Kind::Service | Kind::Node => "v1",
        Kind::EndpointSlice => "discovery.k8s.io/v1",
        Kind::ServiceCidr => "networking.k8s.io/v1",
    }
}

/// `metav1.Status`.
pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code})
}

pub(super) fn list_json(kind: Kind, page: &Page) -> Value {
    let items: Vec<Value> = page.objects.iter().map(|o| object_json(o)).collect();
    json!({
        "apiVersion": version(kind), "kind": format!("{kind}List"), "items": items,
        "metadata": {"resourceVersion": page.revision.to_string(), "continue": page.next},
    })
}

fn object_json(object: &Object) -> Value {
    let value = match object {
        Object::Service(o) => serde_json::to_value(o),
        Object::EndpointSlice(o) => serde_json::to_value(o),
        Object::Node(o) => serde_json::to_value(o),
        Object::ServiceCidr(o) => serde_json::to_value(o),
    };
    let mut value = value.unwrap_or_default();
    value["apiVersion"] = version(object.kind()).into();
    value["kind"] = object.kind().to_string().into();
    value
}

pub(super) fn list_protobuf(kind: Kind, page: &Page) -> Vec<u8> {
    let revision = page.revision.to_string();
    let meta = [field(2, revision.as_bytes()), field(3, page.next.as_bytes())].concat();
    let mut raw = field(1, &meta);
    for object in &page.objects {
        raw.extend(field(2, &object_protobuf(object)));
    }
    envelope(version(kind), &format!("{kind}List"), &raw)
}

fn object_protobuf(object: &Object) -> Vec<u8> {
    match object {
        Object::Service(o) => o.encode_to_vec(),
        Object::EndpointSlice(o) => o.encode_to_vec(),
        Object::Node(o) => o.encode_to_vec(),
        Object::ServiceCidr(o) => o.encode_to_vec(),
    }
}

/// `k8s\0` and `runtime.Unknown`.
fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &meta), field(2, raw)].concat()
}

/// A length-delimited field.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(value.len() as u64, &mut bytes);
    bytes.extend_from_slice(value);
    bytes
}

fn word(change: &Change) -> &'static str {
    match change {
        Change::Applied { new: true, .. } => "ADDED",
        Change::Applied { new: false, .. } => "MODIFIED",
        Change::Deleted(_) => "DELETED",
        Change::Bookmark(_) => "BOOKMARK",
        Change::Error(_) => "ERROR",
    }
}

/// An object of this kind that has only a revision.
fn bookmark(kind: Kind, revision: u64) -> Object {
    let metadata = Some(ObjectMeta { resource_version: revision.to_string(), ..Default::default() });
    match kind {
        Kind::Service => Object::Service(Service { metadata, ..Default::default() }),
        Kind::EndpointSlice => Object::EndpointSlice(EndpointSlice { metadata, ..Default::default() }),
        Kind::Node => Object::Node(Node { metadata, ..Default::default() }),
        Kind::ServiceCidr => Object::ServiceCidr(ServiceCidr { metadata, ..Default::default() }),
    }
}

/// A line of a JSON watch.
pub(super) fn frame_json(kind: Kind, change: &Change) -> Vec<u8> {
    let object = match change {
        Change::Applied { object, .. } | Change::Deleted(object) => object_json(object),
        Change::Bookmark(revision) => object_json(&bookmark(kind, *revision)),
        Change::Error(status) => status.clone(),
    };
    format!("{}\n", json!({"type": word(change), "object": object})).into_bytes()
}

/// A frame of a protobuf watch: length, then `metav1.WatchEvent`, which is bare, with an object that is not.
pub(super) fn frame_protobuf(kind: Kind, change: &Change) -> Vec<u8> {
    let object = match change {
        Change::Applied { object, .. } | Change::Deleted(object) => {
            envelope(version(kind), &kind.to_string(), &object_protobuf(object))
        }
        Change::Bookmark(revision) => {
            envelope(version(kind), &kind.to_string(), &object_protobuf(&bookmark(kind, *revision)))
        }
        Change::Error(status) => envelope("v1", "Status", &status_protobuf(status)),
    };
    let event = [field(1, word(change).as_bytes()), field(2, &field(1, &object))].concat();
    [(event.len() as u32).to_be_bytes().to_vec(), event].concat()
}

/// `metav1.Status`: status 2, message 3, reason 4, code 6.
fn status_protobuf(status: &Value) -> Vec<u8> {
    let text = |name: &str| status[name].as_str().unwrap_or_default().as_bytes().to_vec();
    let mut bytes =
        [field(2, &text("status")), field(3, &text("message")), field(4, &text("reason"))].concat();
    bytes.push(6 << 3);
    prost::encoding::encode_varint(status["code"].as_u64().unwrap_or(0), &mut bytes);
    bytes
}
