//! Writes: one object in JSON to the API server, its answer back.

use super::access::Client;
use super::advice::root;
use super::status::Status;
use super::wire::Format;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;

/// The server's own time-out for a request is a minute.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of an answer that are read: an object has 1.5 MB at most.
const LONGEST_ANSWER: usize = 4 * 1024 * 1024;

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The server answered, and refused.
    #[error("the API server refuses it: {code} {message}")]
    Refused {
        /// The HTTP status.
        code: i32,
        /// The server's words.
        message: String,
    },
    /// The server did not answer, or not in a way that makes sense.
    #[error("{0}")]
    Failed(String),
}

impl WriteError {
    /// Whether the object to change does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, WriteError::Refused { code: 404, .. })
    }
}

impl Client {
    /// Creates an object under the path of a collection.
    pub(crate) async fn create(&self, collection: &str, object: &Value) -> Result<Value, WriteError> {
        self.write(Method::POST, collection, "application/json", object).await
    }

    /// Changes an object by a JSON merge patch (RFC 7386).
    pub(crate) async fn merge(&self, path: &str, patch: &Value) -> Result<Value, WriteError> {
        self.write(Method::PATCH, path, "application/merge-patch+json", patch).await
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: &Value,
    ) -> Result<Value, WriteError> {
        let failed = |e: &dyn std::error::Error| WriteError::Failed(root(e));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, media)
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|e| failed(&e))?;
        let response = self.transport.send(request, PATIENCE).await.map_err(|e| failed(&e))?;
        let status = response.status();
        let body = timeout(PATIENCE, Limited::new(response.into_body(), LONGEST_ANSWER).collect()).await;
        let body = body.map_err(|e| failed(&e))?.map_err(|e| failed(&*e))?.to_bytes();
        if !status.is_success() {
            let Status { code, message, .. } = Status::read(status.as_u16(), Format::Json, &body);
            return Err(WriteError::Refused { code, message });
        }
        serde_json::from_slice(&body).map_err(|e| failed(&e))
    }
}
