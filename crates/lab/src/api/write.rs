//! Requests for single objects: get, create, replace, patch and delete, with versions and preconditions as a real server
//! checks them, and the faults that tests ask for.

use super::http::{Connection, Request};
use super::object::{AnyObject, key};
use super::store::Refusal;
use super::{Shared, lock, wire};
use portway_model::api::metadata_only::ConfigMap;
use portway_model::api::{
    Deployment, Endpoints, Lease, Node, Pod, ReplicaSet, Resource, ResourceType, Scope, Service, complete,
};
use serde_json::{Map, Value, json};
use std::io;
use std::sync::Arc;

/// A fault of the writes that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// The write is refused with this status: 409, 429, 500, 503…
    Refused(u16),
    /// Creations are refused, because the namespace is being deleted; other writes are done.
    NamespaceTerminating,
    /// The write is done, and the connection closed instead of an answer.
    AnswerLost,
}

/// The object that a request is for; the name is empty for a creation.
pub(super) struct Single {
    pub(super) resource: ResourceType,
    namespace: String,
    pub(super) name: String,
    is_status: bool,
}

/// The object that a path names.
pub(super) fn single(path: &str) -> Option<Single> {
    let (path, is_status) = match path.strip_suffix("/status") {
        Some(path) => (path, true),
        None => (path, false),
    };
    if let Some((before, rest)) = path.split_once("/namespaces/")
        && let Some((namespace, rest)) = rest.split_once('/')
    {
        let (plural, name) = rest.split_once('/').unwrap_or((rest, ""));
        let resource = wire::resource_of(&format!("{before}/{plural}"))?;
        return Some(Single { resource, namespace: namespace.to_owned(), name: name.to_owned(), is_status });
    }
    let (collection, name) = path.rsplit_once('/')?;
    let resource = wire::resource_of(collection).filter(|resource| resource.scope() == Scope::Cluster)?;
    Some(Single { resource, namespace: String::new(), name: name.to_owned(), is_status })
}

/// The object in the body of a request.
fn decode_body(resource: ResourceType, request: &Request) -> Option<Arc<dyn AnyObject>> {
    match request.content_type.starts_with(wire::PROTOBUF) {
        true => decode(resource, Encoded::Protobuf(wire::from_envelope(&request.body)?)),
        false => decode(resource, Encoded::Json(request.json())),
    }
}

/// An object in one of the formats.
enum Encoded {
    Json(Value),
    Protobuf(Vec<u8>),
}

fn decode(resource: ResourceType, object: Encoded) -> Option<Arc<dyn AnyObject>> {
    fn of<R: Resource + std::fmt::Debug>(object: Encoded) -> Option<Arc<dyn AnyObject>> {
        let decoded = match object {
            Encoded::Json(object) => serde_json::from_value::<R>(object).ok(),
            Encoded::Protobuf(bytes) => R::decode(&*bytes).ok(),
        };
        decoded.map(|object| Arc::new(object) as Arc<dyn AnyObject>)
    }
    match resource {
        r if r == complete::EndpointSlice::TYPE => of::<complete::EndpointSlice>(object),
        r if r == Endpoints::TYPE => of::<Endpoints>(object),
        r if r == Lease::TYPE => of::<Lease>(object),
        r if r == Pod::TYPE => of::<Pod>(object),
        r if r == ReplicaSet::TYPE => of::<ReplicaSet>(object),
        r if r == Deployment::TYPE => of::<Deployment>(object),
        r if r == Node::TYPE => of::<Node>(object),
        r if r == Service::TYPE => of::<Service>(object),
        r if r == ConfigMap::TYPE => of::<ConfigMap>(object),
        _ => None,
    }
}

/// Merges fields into an object (RFC 7386); in a strategic merge patch, conditions are merged by their type.
fn merge(target: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().map(|object| object.remove(name));
            continue;
        }
        let slot = &mut target[name];
        match (value, slot.as_array_mut()) {
            (Value::Array(items), Some(old)) if strategic && name == "conditions" => {
                for item in items {
                    match old.iter_mut().find(|old| old["type"] == item["type"]) {
                        Some(old) => merge(old, item, strategic),
                        None => old.push(item.clone()),
                    }
                }
            }
            _ => merge(slot, value, strategic),
        }
    }
}

impl Shared {
    /// Answers a request for a single object.
    pub(super) fn answer_single(
        &self,
        connection: &mut Connection,
        request: &Request,
        single: Single,
    ) -> io::Result<()> {
        let Single { resource, namespace, name, is_status } = single;
        let is_write = request.method != "GET";
        if is_write {
            lock(&self.writes).push(format!("{} {} {namespace}/{name}", request.method, resource.plural()));
        }
        // The Leases of an election do not count.
        let fault = (is_write && resource != Lease::TYPE).then(|| self.next_fault()).flatten();
        if let Some(WriteFault::Refused(code)) = fault {
            let reason = if code == 409 { "Conflict" } else { "InternalError" };
            return self.refuse(connection, code, reason, "this test refuses the write");
        }
        if fault == Some(WriteFault::NamespaceTerminating) && request.method == "POST" {
            let message = "it is being terminated";
            let mut status = wire::status(403, "Forbidden", message);
            status["details"] = json!({"causes": [{"reason": "NamespaceTerminating", "message": message}]});
            return connection.reply(403, "application/json", status.to_string().as_bytes());
        }
        if is_write && lock(&self.unwritable).as_ref() == Some(&name) {
            return self.refuse(connection, 422, "Invalid", "this test refuses writes of the object");
        }
        let id = (resource, format!("{namespace}/{name}"));
        let result = match request.method.as_str() {
            "GET" => self.store.get(&id).ok_or(Refusal::NotFound),
            "POST" => match decode_body(resource, request) {
                Some(object) => self.store.create(object),
                None => Err(Refusal::Malformed),
            },
            "PUT" => match decode_body(resource, request).filter(|object| key(&**object) == id.1) {
                Some(object) => self.store.replace(object),
                None => Err(Refusal::Malformed),
            },
            "PATCH" => {
                let (patch, strategic) = (request.json(), request.content_type.contains("strategic"));
                let fields = if is_status { json!({ "status": patch["status"] }) } else { patch.clone() };
                let expected = &patch["metadata"]["resourceVersion"];
                self.store.change(&id, expected.as_str(), is_status, |object| {
                    let mut json = object.json();
                    merge(&mut json, &fields, strategic);
                    decode(resource, Encoded::Json(json))
                })
            }
            "DELETE" => {
                let options = request.json();
                let condition = |name: &str| options["preconditions"][name].as_str();
                let finalizer = match options["propagationPolicy"].as_str() {
                    Some("Foreground") => Some("foregroundDeletion"),
                    Some("Orphan") => Some("orphan"),
                    _ => None,
                };
                self.store.delete_if(&id, condition("uid"), condition("resourceVersion"), finalizer)
            }
            _ => Err(Refusal::Malformed),
        };
        if fault == Some(WriteFault::AnswerLost) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match result {
            Ok(object) => {
                let code = if request.method == "POST" { 201 } else { 200 };
                connection.reply(code, "application/json", object.json().to_string().as_bytes())
            }
            Err(refusal) => {
                let (code, reason) = refusal.code();
                self.refuse(connection, code, reason, &format!("{} {}", request.method, id.1))
            }
        }
    }

    fn next_fault(&self) -> Option<WriteFault> {
        let mut faults = lock(&self.faults);
        let (fault, left) = (*faults)?;
        *faults = (left > 1).then_some((fault, left - 1));
        Some(fault)
    }
}
