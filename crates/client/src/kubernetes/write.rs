//! One object at a time: get, create, replace, patch, delete.
//!
//! In: an object, or a patch, in JSON. Out: the object as the server has it, or a [`RequestError`]. Requests that the
//! server did not take are repeated (see [`super::retry`]); after a conflict the object has to be read
//! again: [`Client::update`] does that.

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
use portway_api::{ObjectMeta, Resource, Scope, Writable};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// The server's own time-out for a request is a minute.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a response that are read: an object has 1.5 MB at most.
const LONGEST_ANSWER: usize = 4 * 1024 * 1024;
/// How often an object is read and replaced before a conflict is final.
const CONFLICTS: u32 = 5;

/// Which object, or which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectName<'a> {
    /// Namespace; empty for cluster-scoped resources.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

impl<'a> ObjectName<'a> {
    /// From its two parts.
    pub fn new(namespace: &'a str, name: &'a str) -> Self {
        ObjectName { namespace, name }
    }

    /// Of an object; empty where it has no metadata.
    pub fn of<R: Resource>(object: &'a R) -> Self {
        object.metadata().map_or(
            ObjectName { namespace: "", name: "" },
            |ObjectMeta { namespace, name, .. }| ObjectName { namespace, name },
        )
    }
}

/// The part of an object that a write changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status.
    #[default]
    Main,
    /// The status subresource.
    Status,
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch<'a> {
    /// JSON merge patch (RFC 7386).
    Merge(Value),
    /// JSON patch (RFC 6902): a list of operations.
    Json(Value),
    /// Server-side apply: the fields that this manager owns. `force` takes fields from other managers.
    Apply {
        /// The object with the fields to own.
        object: Value,
        /// Name of the field manager.
        manager: &'a str,
        /// Whether to take fields from other managers.
        force: bool,
    },
}

/// How an object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Only the object with this unique id.
    pub uid: Option<String>,
    /// Only the object at this version.
    pub resource_version: Option<String>,
    /// `Orphan`, `Background` or `Foreground`; the resource's default if there is none.
    pub propagation: Option<Propagation>,
}

/// What becomes of the objects that the deleted one owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They stay.
    Orphan,
    /// They are deleted afterwards.
    Background,
    /// They are deleted before.
    Foreground,
}

/// A request as a value.
struct Call {
    method: Method,
    uri: String,
    media: &'static str,
    body: Bytes,
    /// Verb, resource and name, for messages.
    what: String,
    /// Whether doing it twice is the same as doing it once.
    repeatable: bool,
}

impl Call {
    fn new<R: Resource>(method: Method, verb: &str, name: ObjectName<'_>, part: Part) -> Call {
        let mut uri = collection::<R>(name.namespace);
        if method != Method::POST {
            uri.push('/');
            uri.push_str(name.name);
        }
        if part == Part::Status {
            uri.push_str("/status");
        }
        let slash = if name.namespace.is_empty() { "" } else { "/" };
        let what = format!("{verb} {} {}{slash}{}", R::KIND, name.namespace, name.name);
        Call { method, uri, media: "application/json", body: Bytes::new(), what, repeatable: true }
    }

    fn with(mut self, media: &'static str, body: &Value) -> Call {
        self.media = media;
        self.body = body.to_string().into();
        self
    }
}

fn collection<R: Resource>(namespace: &str) -> String {
    R::TYPE.path((R::SCOPE == Scope::Namespaced && !namespace.is_empty()).then_some(namespace))
}

/// The object in JSON, with `apiVersion` and `kind`, which the types do not have.
fn body<R: Writable>(object: &R) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value["apiVersion"] = R::TYPE.api_version().into();
    value["kind"] = R::KIND.into();
    value
}

impl Client {
    /// Reads an object.
    pub async fn get<R: Resource>(&self, name: ObjectName<'_>) -> Result<R, RequestError> {
        self.object(Call::new::<R>(Method::GET, "get", name, Part::Main)).await
    }

    /// Creates an object. An error after which the object may exist all the same is not repeated.
    pub async fn create<R: Writable>(&self, object: &R) -> Result<R, RequestError> {
        let call = Call::new::<R>(Method::POST, "create", ObjectName::of(object), Part::Main);
        self.object(Call { repeatable: false, ..call.with("application/json", &body(object)) }).await
    }

    /// Replaces an object. With a `resourceVersion` in its metadata this is a conflict if the object has changed since.
    pub async fn replace<R: Writable>(&self, object: &R, part: Part) -> Result<R, RequestError> {
        let mut call = Call::new::<R>(Method::PUT, "replace", ObjectName::of(object), part);
        // A repeated replacement of a version would be a conflict with itself.
        call.repeatable = object.metadata().is_none_or(|meta| meta.resource_version.is_empty());
        self.object(call.with("application/json", &body(object))).await
    }

    /// Reads an object, changes it and replaces it, again and again as long as others change it in between. `change`
    /// says whether there is anything to replace.
    pub async fn update<R: Writable>(
        &self,
        name: ObjectName<'_>,
        part: Part,
        mut change: impl FnMut(&mut R) -> bool,
    ) -> Result<R, RequestError> {
        let mut attempt = 1;
        loop {
            let mut object: R = self.get(name).await?;
            if !change(&mut object) {
                return Ok(object);
            }
            match self.replace(&object, part).await {
                Err(error) if error.is_conflict() && attempt < CONFLICTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// Changes fields of an object.
    pub async fn patch<R: Resource>(
        &self,
        name: ObjectName<'_>,
        part: Part,
        patch: &Patch<'_>,
    ) -> Result<R, RequestError> {
        let mut call = Call::new::<R>(Method::PATCH, "patch", name, part);
        let call = match patch {
            Patch::Merge(patch) => call.with("application/merge-patch+json", patch),
            Patch::Json(patch) => {
                // Its operations may add to a list.
                call.repeatable = false;
                call.with("application/json-patch+json", patch)
            }
            Patch::Apply { object, manager, force } => {
                parameter(&mut call.uri, "fieldManager", Some(manager));
                parameter(&mut call.uri, "force", force.then_some("true"));
                // JSON is YAML.
                call.with("application/apply-patch+yaml", object)
            }
        };
        self.object(call).await
    }

    /// Deletes an object. One that does not exist is [`Reason::NotFound`](super::Reason::NotFound).
    pub async fn delete<R: Resource>(
        &self,
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
        let call = Call::new::<R>(Method::DELETE, "delete", name, Part::Main);
        self.send(&call.with("application/json", &body)).await.map(drop)
    }

    async fn object<R: Resource>(&self, call: Call) -> Result<R, RequestError> {
        let bytes = self.send(&call).await?;
        R::from_json(&bytes)
            .map_err(|error| RequestError::Garbled { request: call.what, message: error.to_string() })
    }

    async fn send(&self, call: &Call) -> Result<Bytes, RequestError> {
        let mut attempt = 1;
        loop {
            let error = match self.send_once(call).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            let Some(wait) = retry::wait(&error, attempt, call.repeatable) else { return Err(error) };
            tracing::debug!(%error, ?wait, attempt, "request is repeated");
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn send_once(&self, call: &Call) -> Result<Bytes, RequestError> {
        let lost = |message: String, sent: bool| RequestError::NoResponse {
            request: call.what.clone(),
            message,
            sent,
        };
        let request = Request::builder()
            .method(call.method.clone())
            .uri(&call.uri)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, call.media)
            .body(Full::new(call.body.clone()))
            .map_err(|e| lost(e.to_string(), false))?;
        let response = self.transport.send(request, PATIENCE).await.map_err(|error| match &error {
            SendError::Credential(_) => lost(root(&error), false),
            SendError::Http(http) => lost(root(&error), !http.is_connect()),
            SendError::TimedOut(_) => lost(root(&error), true),
        })?;
        let (head, body) = response.into_parts();
        let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = timeout(PATIENCE, Limited::new(body, LONGEST_ANSWER).collect()).await;
        let body = body.map_err(|e| lost(root(&e), true))?.map_err(|e| lost(root(&*e), true))?.to_bytes();
        if head.status.is_success() {
            return Ok(body);
        }
        let status = Status::read(head.status.as_u16(), Format::Json, &body);
        Err(RequestError::refused(&call.what, &status, after.map(Duration::from_secs)))
    }
}
