//! Requests for single objects: get, create, replace, patch, delete.
//!
//! In: an object, or a patch, in JSON. Out: the object as the server stored it, or a [`RequestError`]. Requests that
//! can safely be repeated are retried (see [`super::retry`]). After a conflict the object has to be read again, which
//! [`Client::update`] does.

use super::access::Client;
use super::error::RequestError;
use super::failure::root;
use super::request::parameter;
use super::retry;
use super::status::Status;
use super::transport::SendError;
use super::wire::Format;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use portway_api::{ObjectMeta, Resource, ResourceType, Scope, Writable};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// Time-out of a request. The server's own is a minute.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a response. By default an object in etcd has 1.5 MB at most.
const MAX_RESPONSE: usize = 4 * 1024 * 1024;
/// Number of attempts of an update before a conflict is final.
const UPDATE_ATTEMPTS: u32 = 5;

/// Namespace and name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectName<'a> {
    /// Namespace; empty for cluster-scoped resources.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

impl<'a> ObjectName<'a> {
    /// From namespace and name.
    pub fn new(namespace: &'a str, name: &'a str) -> Self {
        ObjectName { namespace, name }
    }

    /// The name of an object; empty if it has no metadata.
    pub fn of<R: Resource>(object: &'a R) -> Self {
        object.metadata().map_or(
            ObjectName { namespace: "", name: "" },
            |ObjectMeta { namespace, name, .. }| ObjectName { namespace, name },
        )
    }
}

/// The subresource of an object that a write changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subresource {
    /// The object itself, without its status if that is a subresource.
    #[default]
    None,
    /// The status subresource.
    Status,
}

/// A patch of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch<'a> {
    /// JSON merge patch (RFC 7386).
    Merge(Value),
    /// Strategic merge patch: lists such as conditions are merged by a key of their items.
    Strategic(Value),
    /// JSON patch (RFC 6902): a list of operations.
    Json(Value),
    /// Server-side apply of the fields that a field manager owns.
    Apply {
        /// The object with the fields to own.
        object: Value,
        /// Name of the field manager.
        manager: &'a str,
        /// Whether to take over fields that other managers own.
        force: bool,
    },
}

/// How an object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Precondition: the object has this unique id.
    pub uid: Option<String>,
    /// Precondition: the object has this version.
    pub resource_version: Option<String>,
    /// `Orphan`, `Background` or `Foreground`; the resource's default if there is none.
    pub propagation: Option<Propagation>,
    /// Seconds that a Pod is given to end; 0 deletes it at once. The Pod's own setting if there is none.
    pub grace_seconds: Option<u32>,
}

/// How the dependents of a deleted object are treated (garbage collection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are kept.
    Orphan,
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
}

/// A request as a value.
struct Call {
    method: Method,
    uri: String,
    content_type: &'static str,
    body: Bytes,
    /// Verb, kind and name, for messages.
    description: String,
    /// Whether the request has the same effect if it is sent twice.
    idempotent: bool,
}

impl Call {
    fn new(
        method: Method,
        verb: &str,
        resource: ResourceType,
        name: ObjectName<'_>,
        subresource: Subresource,
    ) -> Call {
        let mut uri = collection(resource, name.namespace);
        if method != Method::POST {
            uri.push('/');
            uri.push_str(name.name);
        }
        if subresource == Subresource::Status {
            uri.push_str("/status");
        }
        let slash = if name.namespace.is_empty() { "" } else { "/" };
        let description = format!("{verb} {} {}{slash}{}", resource.kind(), name.namespace, name.name);
        Call {
            method,
            uri,
            content_type: "application/json",
            body: Bytes::new(),
            description,
            idempotent: true,
        }
    }

    fn with_body(mut self, content_type: &'static str, body: &Value) -> Call {
        self.content_type = content_type;
        self.body = body.to_string().into();
        self
    }

    /// With fields to merge. A repeated patch of a version would conflict with itself.
    fn with_fields(mut self, content_type: &'static str, fields: &Value) -> Call {
        self.idempotent = fields["metadata"]["resourceVersion"].is_null();
        self.with_body(content_type, fields)
    }
}

fn collection(resource: ResourceType, namespace: &str) -> String {
    resource.path((resource.scope() == Scope::Namespaced && !namespace.is_empty()).then_some(namespace))
}

/// The object in JSON, with `apiVersion` and `kind`, which are not fields of the types.
fn body<R: Writable>(object: &R) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value["apiVersion"] = R::TYPE.api_version().into();
    value["kind"] = R::KIND.into();
    value
}

fn malformed(call: Call, error: &serde_json::Error) -> RequestError {
    RequestError::Malformed { request: call.description, message: error.to_string() }
}

/// The request that creates an object.
fn create(resource: ResourceType, name: ObjectName<'_>, object: &Value) -> Call {
    let call = Call::new(Method::POST, "create", resource, name, Subresource::None);
    Call { idempotent: false, ..call.with_body("application/json", object) }
}

/// The request that patches an object.
fn patch_call(
    resource: ResourceType,
    name: ObjectName<'_>,
    subresource: Subresource,
    patch: &Patch<'_>,
) -> Call {
    let mut call = Call::new(Method::PATCH, "patch", resource, name, subresource);
    match patch {
        Patch::Merge(fields) => call.with_fields("application/merge-patch+json", fields),
        Patch::Strategic(fields) => call.with_fields("application/strategic-merge-patch+json", fields),
        Patch::Json(operations) => {
            // An operation may append to a list.
            call.idempotent = false;
            call.with_body("application/json-patch+json", operations)
        }
        Patch::Apply { object, manager, force } => {
            parameter(&mut call.uri, "fieldManager", Some(manager));
            parameter(&mut call.uri, "force", force.then_some("true"));
            // JSON is valid YAML.
            call.with_body("application/apply-patch+yaml", object)
        }
    }
}

impl Client {
    /// Reads an object.
    pub async fn get<R: Resource>(&self, name: ObjectName<'_>) -> Result<R, RequestError> {
        self.object(Call::new(Method::GET, "get", R::TYPE, name, Subresource::None)).await
    }

    /// Reads an object of any resource, as JSON.
    pub async fn get_json(
        &self,
        resource: ResourceType,
        name: ObjectName<'_>,
    ) -> Result<Value, RequestError> {
        self.json(Call::new(Method::GET, "get", resource, name, Subresource::None)).await
    }

    /// Creates an object. The request is not repeated after an error that leaves open whether the object was created.
    pub async fn create<R: Writable>(&self, object: &R) -> Result<R, RequestError> {
        self.object(create(R::TYPE, ObjectName::of(object), &body(object))).await
    }

    /// Creates an object of any resource from JSON, which has `apiVersion` and `kind`. Like [`Client::create`], it is
    /// not repeated.
    pub async fn create_json(
        &self,
        resource: ResourceType,
        name: ObjectName<'_>,
        object: &Value,
    ) -> Result<Value, RequestError> {
        self.json(create(resource, name, object)).await
    }

    /// Replaces an object. If its metadata has a `resourceVersion`, and the object has changed since, this is a
    /// conflict.
    pub async fn replace<R: Writable>(
        &self,
        object: &R,
        subresource: Subresource,
    ) -> Result<R, RequestError> {
        let mut call = Call::new(Method::PUT, "replace", R::TYPE, ObjectName::of(object), subresource);
        // With a version, a repeated replacement would conflict with the first one.
        call.idempotent = object.metadata().is_none_or(|meta| meta.resource_version.is_empty());
        self.object(call.with_body("application/json", &body(object))).await
    }

    /// Reads an object, changes it and replaces it. Repeats this, up to five times in all, if another client
    /// changed the object in between. `change` returns whether the object has to be replaced.
    pub async fn update<R: Writable>(
        &self,
        name: ObjectName<'_>,
        subresource: Subresource,
        mut change: impl FnMut(&mut R) -> bool,
    ) -> Result<R, RequestError> {
        let mut attempt = 1;
        loop {
            let mut object: R = self.get(name).await?;
            if !change(&mut object) {
                return Ok(object);
            }
            match self.replace(&object, subresource).await {
                Err(error) if error.is_conflict() && attempt < UPDATE_ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// Changes fields of an object.
    pub async fn patch<R: Resource>(
        &self,
        name: ObjectName<'_>,
        subresource: Subresource,
        patch: &Patch<'_>,
    ) -> Result<R, RequestError> {
        self.object(patch_call(R::TYPE, name, subresource, patch)).await
    }

    /// Changes fields of an object of any resource, and returns it as JSON.
    pub async fn patch_json(
        &self,
        resource: ResourceType,
        name: ObjectName<'_>,
        subresource: Subresource,
        patch: &Patch<'_>,
    ) -> Result<Value, RequestError> {
        self.json(patch_call(resource, name, subresource, patch)).await
    }

    /// Deletes an object. The error for an object that does not exist has
    /// [`Reason::NotFound`](super::Reason::NotFound).
    pub async fn delete<R: Resource>(
        &self,
        name: ObjectName<'_>,
        options: &DeleteOptions,
    ) -> Result<(), RequestError> {
        self.delete_any(R::TYPE, name, options).await
    }

    /// Deletes an object of any resource.
    pub async fn delete_any(
        &self,
        resource: ResourceType,
        name: ObjectName<'_>,
        options: &DeleteOptions,
    ) -> Result<(), RequestError> {
        let mut body = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        for (field, value) in [("uid", &options.uid), ("resourceVersion", &options.resource_version)] {
            if let Some(value) = value {
                body["preconditions"][field] = value.as_str().into();
            }
        }
        if let Some(propagation) = options.propagation {
            body["propagationPolicy"] = format!("{propagation:?}").into();
        }
        if let Some(seconds) = options.grace_seconds {
            body["gracePeriodSeconds"] = seconds.into();
        }
        // Without a unique id, a repeated deletion could delete a new object of the same name.
        let idempotent = options.uid.is_some();
        let call =
            Call { idempotent, ..Call::new(Method::DELETE, "delete", resource, name, Subresource::None) };
        self.send(&call.with_body("application/json", &body)).await.map(drop)
    }

    async fn object<R: Resource>(&self, call: Call) -> Result<R, RequestError> {
        let bytes = self.send(&call).await?;
        R::from_json(&bytes).map_err(|error| malformed(call, &error))
    }

    async fn json(&self, call: Call) -> Result<Value, RequestError> {
        let bytes = self.send(&call).await?;
        serde_json::from_slice(&bytes).map_err(|error| malformed(call, &error))
    }

    async fn send(&self, call: &Call) -> Result<Bytes, RequestError> {
        let mut attempt = 1;
        loop {
            let error = match self.send_once(call).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            let Some(wait) = retry::wait(&error, attempt, call.idempotent) else { return Err(error) };
            tracing::debug!(%error, ?wait, attempt, "request failed; retrying");
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn send_once(&self, call: &Call) -> Result<Bytes, RequestError> {
        let no_response = |message: String, sent: bool| RequestError::NoResponse {
            request: call.description.clone(),
            message,
            sent,
        };
        let request = Request::builder()
            .method(call.method.clone())
            .uri(&call.uri)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, call.content_type)
            .body(Full::new(call.body.clone()))
            .map_err(|e| no_response(e.to_string(), false))?;
        let response = self.transport.send(request, TIMEOUT).await.map_err(|error| match &error {
            SendError::Credential(_) => no_response(root(&error), false),
            SendError::Http(http) => no_response(root(&error), !http.is_connect()),
            SendError::TimedOut(_) => no_response(root(&error), true),
        })?;
        let (head, body) = response.into_parts();
        let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = timeout(TIMEOUT, Limited::new(body, MAX_RESPONSE).collect()).await;
        let body = body
            .map_err(|e| no_response(root(&e), true))?
            .map_err(|e| no_response(root(&*e), true))?
            .to_bytes();
        if head.status.is_success() {
            return Ok(body);
        }
        let status = Status::read(head.status.as_u16(), Format::Json, &body);
        Err(RequestError::refused(&call.description, &status, after.map(Duration::from_secs)))
    }
}
