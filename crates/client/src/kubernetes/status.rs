//! Refusals of the API server: `meta/v1 Status`.
//!
//! In: the body of a response to a refused request, or the object of an `ERROR` event. Out: code, reason and message. A
//! proxy or load balancer may answer in another format; then the text itself is the message.

use super::object;
use super::wire::Format;
use prost::Message;
use serde::Deserialize;
use std::time::Duration;

/// `meta/v1 Status`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    #[prost(string, tag = "3")]
    pub(super) message: String,
    #[prost(string, tag = "4")]
    pub(super) reason: String,
    #[prost(message, optional, tag = "5")]
    pub(super) details: Option<Details>,
    #[prost(int32, tag = "6")]
    pub(super) code: i32,
}

/// `meta/v1 StatusDetails`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Details {
    #[prost(message, repeated, tag = "4")]
    pub(super) causes: Vec<StatusCause>,
    #[prost(int32, tag = "5")]
    pub(super) retry_after_seconds: i32,
}

/// `meta/v1 StatusCause`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct StatusCause {
    #[prost(string, tag = "1")]
    pub(super) reason: String,
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(string, tag = "3")]
    pub(super) field: String,
}

impl Status {
    /// From the body of a response. The HTTP status is used if the body has no code.
    pub(super) fn read(http: u16, format: Format, body: &[u8]) -> Self {
        let decoded = match format {
            Format::Protobuf => object::unwrap(body).and_then(|object| Status::decode(object.raw).ok()),
            Format::Json => serde_json::from_slice(body).ok(),
        };
        let mut status = decoded.unwrap_or_else(|| Status { message: excerpt(body), ..Status::default() });
        if status.code == 0 {
            status.code = i32::from(http);
        }
        status
    }

    /// Whether the requested version is too old (or, after a restore of etcd, too new) to resume from.
    pub(super) fn is_expired(&self) -> bool {
        let too_new =
            |details: &Details| details.causes.iter().any(|c| c.reason == "ResourceVersionTooLarge");
        self.code == 410
            || matches!(self.reason.as_str(), "Expired" | "Gone")
            || self.details.as_ref().is_some_and(too_new)
    }

    /// The wait before a retry that the server requests.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        u64::try_from(seconds).ok().filter(|&seconds| seconds > 0).map(Duration::from_secs)
    }

    /// The user name as the server sees it. Only the message of a 403 has it: `… User "x" cannot list resource …`.
    pub(super) fn user(&self) -> Option<&str> {
        let (_, rest) = self.message.split_once("User \"")?;
        rest.split_once('"').map(|(user, _)| user).filter(|user| !user.is_empty())
    }
}

/// The beginning of a body of unknown format, on one line.
fn excerpt(body: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_not_a_status_becomes_the_message() {
        let json = br#"{"kind":"Status","message":"services is forbidden: User \"bob\" cannot list","reason":"Forbidden","code":403}"#;
        let status = Status::read(403, Format::Json, json);
        assert_eq!((status.code, status.user()), (403, Some("bob")));
        let status = Status::read(502, Format::Json, b"<html>\n bad gateway</html>");
        assert_eq!((status.code, status.message.as_str()), (502, "<html> bad gateway</html>"));
        assert_eq!(status.user(), None);
    }

    #[test]
    fn a_version_that_is_too_old_or_too_new_is_expired() {
        let gone = Status { code: 410, ..Status::default() };
        let expired = Status { code: 500, reason: "Expired".into(), ..Status::default() };
        let cause = StatusCause { reason: "ResourceVersionTooLarge".into(), ..StatusCause::default() };
        let details = Details { causes: vec![cause], retry_after_seconds: 1 };
        let too_new = Status { code: 504, details: Some(details), ..Status::default() };
        assert!(gone.is_expired() && expired.is_expired() && too_new.is_expired());
        assert_eq!(too_new.retry_after(), Some(Duration::from_secs(1)));
        let timeout = Status { code: 504, reason: "Timeout".into(), ..Status::default() };
        assert!(!timeout.is_expired());
        assert_eq!(timeout.retry_after(), None);
    }
}
