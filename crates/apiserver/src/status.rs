//! Answers that are no objects: why a request was refused, as clients read it.

use crate::validation::Causes;
use serde_json::{Value, json};
use std::collections::HashSet;

/// The object that a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About<'a> {
    /// Its group; empty for the core group.
    pub group: &'a str,
    /// Its kind, or its resource where a Status has that.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// A refusal with this HTTP status.
pub fn failure(code: u16, reason: &str, message: &str, details: Value) -> Value {
    let mut status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    });
    if !details.is_null() {
        status["details"] = details;
    }
    status
}

impl About<'_> {
    fn details(self) -> Value {
        let mut details = json!({});
        for (name, value) in [("name", self.name), ("group", self.group), ("kind", self.kind)] {
            if !value.is_empty() {
                details[name] = value.into();
            }
        }
        details
    }

    /// The kind or resource with its group: `deployments.apps`.
    fn qualified(self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// The object is not valid (422).
    pub fn invalid(self, causes: &Causes) -> Value {
        let mut details = self.details();
        let list = causes.iter().map(
            |cause| json!({"reason": cause.reason.name(), "message": cause.message, "field": cause.field}),
        );
        details["causes"] = list.collect();
        let mut seen = HashSet::new();
        let all: Vec<String> =
            causes.iter().map(ToString::to_string).filter(|cause| seen.insert(cause.clone())).collect();
        let all = if let [one] = &all[..] { one.clone() } else { format!("[{}]", all.join(", ")) };
        let message = format!("{} {:?} is invalid: {all}", self.qualified(), self.name);
        failure(422, "Invalid", &message, details)
    }

    /// There is no such object (404).
    pub fn not_found(self) -> Value {
        let message = format!("{} {:?} not found", self.qualified(), self.name);
        failure(404, "NotFound", &message, self.details())
    }

    /// There is one of that name (409).
    pub fn already_exists(self) -> Value {
        let message = format!("{} {:?} already exists", self.qualified(), self.name);
        failure(409, "AlreadyExists", &message, self.details())
    }

    /// The object has changed (409).
    pub fn conflict(self, why: &str) -> Value {
        let message = format!("Operation cannot be fulfilled on {} {:?}: {why}", self.qualified(), self.name);
        failure(409, "Conflict", &message, self.details())
    }
}

/// The server cannot do what it should (500).
pub fn internal(why: &str) -> Value {
    let details = json!({"causes": [{"message": why}]});
    failure(500, "InternalError", &format!("Internal error occurred: {why}"), details)
}

/// The request makes no sense (400).
pub fn bad_request(why: &str) -> Value {
    failure(400, "BadRequest", why, Value::Null)
}
