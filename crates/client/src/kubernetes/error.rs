//! Why a request for one object failed.
//!
//! An error answers the caller's questions: is it worth another try, does the object exist, has it changed since it was
//! read, which fields are wrong.

use super::status::Status;
use std::fmt;
use std::time::Duration;

/// Why the API server refused, from `meta/v1 Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object does not exist (404).
    NotFound,
    /// An object of that name exists (409).
    AlreadyExists,
    /// The object has changed since it was read, or a precondition does not hold, or an apply meets another manager's
    /// fields (409).
    Conflict,
    /// The object is not valid (422).
    Invalid,
    /// The request is malformed (400).
    BadRequest,
    /// The credential is not accepted (401).
    Unauthorized,
    /// The credential may not do this (403).
    Forbidden,
    /// The version asked for is too old (410).
    Expired,
    /// Too many requests (429).
    TooManyRequests,
    /// The server is starting, stopping or overloaded (503).
    Unavailable,
    /// The server did not finish in time (504).
    Timeout,
    /// Anything else, in the server's word for it.
    Other(String),
}

/// A field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldCause {
    /// The field, as in `spec.ports[0].port`.
    pub field: String,
    /// The mistake.
    pub message: String,
}

/// Why a request for one object failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The server answered, and refused.
    #[error("the API server refuses to {request}: {code} {message}")]
    Refused {
        /// Verb, resource and name.
        request: String,
        /// Why.
        reason: Reason,
        /// HTTP status.
        code: i32,
        /// The server's message.
        message: String,
        /// The fields that are wrong.
        causes: Vec<FieldCause>,
        /// When the server wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// There is no response. `sent`: the server may have done it all the same.
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
    #[error("the response to {request} is not understood: {message}")]
    Garbled {
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

    /// The server's reason, if it refused.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            RequestError::Refused { reason, .. } => Some(reason),
            RequestError::NoResponse { .. } | RequestError::Garbled { .. } => None,
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

    /// Whether the object has changed since it was read: read it again, and decide anew.
    pub fn is_conflict(&self) -> bool {
        self.reason() == Some(&Reason::Conflict)
    }
}

fn reason(status: &Status) -> Reason {
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
    fn an_invalid_object_names_its_fields() {
        let body = br#"{"kind":"Status","code":422,"reason":"Invalid","message":"Lease \"l\" is invalid","details":{"causes":[
            {"reason":"FieldValueInvalid","field":"spec.leaseDurationSeconds","message":"must be greater than 0"}]}}"#;
        let error = RequestError::refused("create Lease l", &Status::read(422, Format::Json, body), None);
        let RequestError::Refused { reason, causes, .. } = &error else { panic!("{error}") };
        assert_eq!(*reason, Reason::Invalid);
        assert_eq!(causes[0].to_string(), "spec.leaseDurationSeconds: must be greater than 0");
        assert_eq!(error.to_string(), "the API server refuses to create Lease l: 422 Lease \"l\" is invalid");
    }

    #[test]
    fn two_kinds_of_409_differ() {
        let status = |reason: &str| Status { code: 409, reason: reason.into(), ..Status::default() };
        assert!(RequestError::refused("x", &status("AlreadyExists"), None).is_already_exists());
        assert!(RequestError::refused("x", &status("Conflict"), None).is_conflict());
        assert!(RequestError::refused("x", &status(""), None).is_conflict());
    }
}
