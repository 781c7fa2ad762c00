//! Lists and watch events as a real API server writes them.

use super::store::{Change, Page};
use portway_model::api::metadata_only::{ConfigMap, Namespace, Secret, ServiceAccount};
use portway_model::api::{
    Deployment, EndpointSlice, Endpoints, Lease, Node, ObjectMeta, Pod, ReplicaSet, Resource, ResourceType,
    Scope, Service, ServiceCidr,
};
use prost::Message;
use serde_json::{Value, json};

pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub(super) const PROTOBUF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// The resources that are served.
const SERVED: &[ResourceType] = &[
    Service::TYPE,
    Node::TYPE,
    EndpointSlice::TYPE,
    ServiceCidr::TYPE,
    Pod::TYPE,
    Endpoints::TYPE,
    Lease::TYPE,
    ReplicaSet::TYPE,
    Deployment::TYPE,
    Namespace::TYPE,
    ConfigMap::TYPE,
    Secret::TYPE,
    ServiceAccount::TYPE,
];

/// The resource that a path lists.
pub(super) fn resource_of(path: &str) -> Option<ResourceType> {
    SERVED.iter().copied().find(|resource| resource.path(None) == path)
}

/// The resource that a path lists, in all namespaces or in one. Objects of other namespaces are in the list too.
pub(super) fn listed_at(path: &str) -> Option<ResourceType> {
    let in_one = path.split_once("/namespaces/").and_then(|(before, rest)| {
        let (_, plural) = rest.split_once('/')?;
        Some(format!("{before}/{plural}"))
    });
    resource_of(in_one.as_deref().unwrap_or(path))
}

/// `metav1.Status`.
pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code})
}

pub(super) fn list_json(resource: ResourceType, page: &Page) -> Value {
    let items: Vec<Value> = page.objects.iter().map(|o| o.json()).collect();
    json!({
        "apiVersion": resource.api_version(), "kind": format!("{resource}List"), "items": items,
        "metadata": {"resourceVersion": page.revision.to_string(), "continue": page.next},
    })
}

pub(super) fn list_protobuf(resource: ResourceType, page: &Page) -> Vec<u8> {
    let revision = page.revision.to_string();
    let meta = [field(2, revision.as_bytes()), field(3, page.next.as_bytes())].concat();
    let mut raw = field(1, &meta);
    for object in &page.objects {
        raw.extend(field(2, &object.protobuf()));
    }
    envelope(&resource.api_version(), &format!("{resource}List"), &raw)
}

/// `k8s\0` and `runtime.Unknown`.
fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &meta), field(2, raw)].concat()
}

/// The fields of `runtime.Unknown` that are read.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

/// The message in an envelope.
pub(super) fn from_envelope(body: &[u8]) -> Option<Vec<u8>> {
    Unknown::decode(body.strip_prefix(b"k8s\0")?).ok().map(|unknown| unknown.raw)
}

/// The pages that tell which resources there are.
pub(super) fn discovery(path: &str) -> Option<Value> {
    let group_version = |resource: &ResourceType| match resource.path(None).rsplit_once('/') {
        Some((prefix, _)) => prefix.to_owned(),
        None => String::new(),
    };
    let version = |group_version: &str| group_version.rsplit('/').next().unwrap_or_default().to_owned();
    match path {
        "/version" => return Some(json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})),
        "/api" => return Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        "/apis" => {
            let mut groups: Vec<String> = SERVED.iter().map(group_version).collect();
            groups.retain(|path| path.starts_with("/apis/"));
            groups.sort();
            groups.dedup();
            let group = |path: &String| {
                let name = path.split('/').nth(2).unwrap_or_default();
                let version = json!({"groupVersion": path["/apis/".len()..], "version": version(path)});
                json!({"name": name, "versions": [version], "preferredVersion": version})
            };
            return Some(json!({
                "kind": "APIGroupList", "apiVersion": "v1", "groups": groups.iter().map(group).collect::<Vec<_>>(),
            }));
        }
        _ => {}
    }
    let served: Vec<Value> = SERVED
        .iter()
        .filter(|resource| group_version(resource) == path)
        .map(|resource| {
            json!({
                "name": resource.plural(), "kind": resource.kind(),
                "namespaced": resource.scope() == Scope::Namespaced,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
            })
        })
        .collect();
    let name = path.trim_start_matches("/apis/").trim_start_matches("/api/");
    let list =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": served});
    (list["resources"] != json!([])).then_some(list)
}

/// A length-delimited field.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(value.len() as u64, &mut bytes);
    bytes.extend_from_slice(value);
    bytes
}

fn event_type(change: &Change) -> &'static str {
    match change {
        Change::Applied { new: true, .. } => "ADDED",
        Change::Applied { new: false, .. } => "MODIFIED",
        Change::Deleted(_) => "DELETED",
        Change::Bookmark { .. } => "BOOKMARK",
        Change::Error(_) => "ERROR",
    }
}

/// The metadata of a bookmark: only a revision. `initial_end` is set in the bookmark that ends a streamed list.
fn bookmark(revision: u64, initial_end: bool) -> ObjectMeta {
    let mut meta = ObjectMeta { resource_version: revision.to_string(), ..Default::default() };
    if initial_end {
        meta.annotations.insert("k8s.io/initial-events-end".into(), "true".into());
    }
    meta
}

/// A line of a JSON watch.
pub(super) fn frame_json(resource: ResourceType, change: &Change) -> Vec<u8> {
    let object = match change {
        Change::Applied { object, .. } | Change::Deleted(object) => object.json(),
        Change::Bookmark { revision, initial_end } => json!({
            "apiVersion": resource.api_version(), "kind": resource.kind(),
            "metadata": bookmark(*revision, *initial_end),
        }),
        Change::Error(status) => status.clone(),
    };
    format!("{}\n", json!({"type": event_type(change), "object": object})).into_bytes()
}

/// A frame of a protobuf watch: its length, then `metav1.WatchEvent` without an envelope, whose object has one.
pub(super) fn frame_protobuf(resource: ResourceType, change: &Change) -> Vec<u8> {
    let object = match change {
        Change::Applied { object, .. } | Change::Deleted(object) => {
            envelope(&resource.api_version(), resource.kind(), &object.protobuf())
        }
        // The metadata is the first field of every object.
        Change::Bookmark { revision, initial_end } => envelope(
            &resource.api_version(),
            resource.kind(),
            &field(1, &bookmark(*revision, *initial_end).encode_to_vec()),
        ),
        Change::Error(status) => envelope("v1", "Status", &status_protobuf(status)),
    };
    let event = [field(1, event_type(change).as_bytes()), field(2, &field(1, &object))].concat();
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
