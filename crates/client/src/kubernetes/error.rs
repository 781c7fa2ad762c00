//! Why a request for one object failed.
//!
//! A caller can tell from an error whether a retry makes sense, whether the object exists, whether it has changed since
//! it was read, and which fields are invalid.

use super::status::Status;
use std::fmt;
use std::time::Duration;

/// Why the API server refused a request, from `meta/v1 Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object does not exist (404).
    NotFound,
    /// An object of that name exists (409).
    AlreadyExists,
    /// The object has changed since it was read, or a precondition does not hold, or a server-side apply conflicts with
    /// another field manager (409).
    Conflict,
    /// The object is not valid (422).
    Invalid,
    /// The request is malformed (400).
    BadRequest,
    /// The server does not accept the credential (401).
    Unauthorized,
    /// The credential lacks the permission (403).
    Forbidden,
    /// The namespace of the object is being deleted (403).
    NamespaceTerminating,
    /// The requested version is too old (410).
    Expired,
    /// Too many requests (429).
    TooManyRequests,
    /// The server is starting, stopping or overloaded (503).
    Unavailable,
    /// The server did not finish in time (504).
    Timeout,
    /// Any other reason, as the server names it.
    Other(String),
}

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldCause {
    /// The field, as in `spec.ports[0].port`.
    pub field: String,
    /// Why it is invalid.
    pub message: String,
}

/// Why a request for one object failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The server refused the request.
    #[error("the API server refuses to {request}: {code} {message}")]
    Refused {
        /// Verb, resource and name.
        request: String,
        /// The server's reason.
        reason: Reason,
        /// HTTP status.
        code: i32,
        /// The server's message.
        message: String,
        /// The invalid fields.
        causes: Vec<FieldCause>,
        /// The wait before a retry that the server requests.
        retry_after: Option<Duration>,
    },
    /// There was no response. If `sent`, the server may have processed the request nevertheless.
    #[error("cannot {request}: {message}")]
    NoResponse {
        /// Verb, resource and name.
        request: String,
        /// The cause.
        message: String,
        /// Whether the request may have reached the server.
        sent: bool,
    },
    /// The response cannot be decoded.
    #[error("cannot decode the response to {request}: {message}")]
    Malformed {
        /// Verb, resource and name.
        request: String,
        /// The cause.
        message: String,
    },
}

impl RequestError {
    pub(super) fn refused(request: &str, status: &Status, retry_after: Option<Duration>) -> RequestError {
        let details = status.details.as_ref();
        let causes =
            details.iter().flat_map(|details| &details.causes).filter(|cause| !cause.field.is_empty());
        let cause = |cause: &super::status::StatusCause| FieldCause {
            field: cause.field.clone(),
            message: cause.message.clone(),
        };
        RequestError::Refused {
            request: request.to_owned(),
            reason: reason(status),
            code: status.code,
            message: status.message.clone(),
            causes: causes.map(cause).collect(),
            retry_after: retry_after.or(status.retry_after()),
        }
    }

    /// The server's reason, if it refused the request.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            RequestError::Refused { reason, .. } => Some(reason),
            RequestError::NoResponse { .. } | RequestError::Malformed { .. } => None,
        }
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.reason() == Some(&Reason::NotFound)
    }

    /// Whether an object of that name exists.
    pub fn is_already_exists(&self) -> bool {
        self.reason() == Some(&Reason::AlreadyExists)
    }

    /// Whether the object has changed since it was read. The caller has to read it again before another attempt.
    pub fn is_conflict(&self) -> bool {
        self.reason() == Some(&Reason::Conflict)
    }
}

/// The cause of a refusal to create an object in a namespace that is being deleted.
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

fn reason(status: &Status) -> Reason {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    if causes.any(|cause| cause.reason == NAMESPACE_TERMINATING) {
        return Reason::NamespaceTerminating;
    }
    match (status.reason.as_str(), status.code) {
        ("NotFound", _) => Reason::NotFound,
        ("AlreadyExists", _) => Reason::AlreadyExists,
        ("Conflict", _) => Reason::Conflict,
        ("Invalid", _) => Reason::Invalid,
        ("BadRequest", _) => Reason::BadRequest,
        ("Unauthorized", _) => Reason::Unauthorized,
        ("Forbidden", _) => Reason::Forbidden,
        ("Expired" | "Gone", _) => Reason::Expired,
        ("TooManyRequests", _) => Reason::TooManyRequests,
        ("ServiceUnavailable", _) => Reason::Unavailable,
        ("Timeout" | "ServerTimeout", _) => Reason::Timeout,
        ("", 400) => Reason::BadRequest,
        ("", 401) => Reason::Unauthorized,
        ("", 403) => Reason::Forbidden,
        ("", 404) => Reason::NotFound,
        ("", 409) => Reason::Conflict,
        ("", 410) => Reason::Expired,
        ("", 422) => Reason::Invalid,
        ("", 429) => Reason::TooManyRequests,
        ("", 503) => Reason::Unavailable,
        ("", 504) => Reason::Timeout,
        (other, _) => Reason::Other(other.to_owned()),
    }
}

impl fmt::Display for FieldCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Format;
    use super::*;

    #[test]
    fn the_error_for_an_invalid_object_has_the_invalid_fields() {
        let body = br#"{"kind":"Status","code":422,"reason":"Invalid","message":"Lease \"l\" is invalid","details":{"causes":[
            {"reason":"FieldValueInvalid","field":"spec.leaseDurationSeconds","message":"must be greater than 0"}]}}"#;
        let error = RequestError::refused("create Lease l", &Status::read(422, Format::Json, body), None);
        let RequestError::Refused { reason, causes, .. } = &error else { panic!("{error}") };
        assert_eq!(*reason, Reason::Invalid);
        assert_eq!(causes[0].to_string(), "spec.leaseDurationSeconds: must be greater than 0");
        assert_eq!(error.to_string(), "the API server refuses to create Lease l: 422 Lease \"l\" is invalid");
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_told_by_the_cause() {
        let body = br#"{"kind":"Status","code":403,"reason":"Forbidden","message":"m","details":{"causes":[
            {"reason":"NamespaceTerminating","message":"m","field":"metadata.namespace"}]}}"#;
        let error = RequestError::refused("create Pod p", &Status::read(403, Format::Json, body), None);
        assert_eq!(error.reason(), Some(&Reason::NamespaceTerminating));
    }

    #[test]
    fn a_409_is_a_conflict_or_already_exists() {
        let status = |reason: &str| Status { code: 409, reason: reason.into(), ..Status::default() };
        assert!(RequestError::refused("x", &status("AlreadyExists"), None).is_already_exists());
        assert!(RequestError::refused("x", &status("Conflict"), None).is_conflict());
        assert!(RequestError::refused("x", &status(""), None).is_conflict());
    }
}
