//! Objects of the recorded answers survive protobuf, and mistakes in requests are named as kube-apiserver names them.

use crate::answers::{FILES, Step, steps};
use portway_apiserver::codec::{Printed, check, decode, encode};
use portway_apiserver::schema::{self, TypeId};
use serde_json::Value;

/// The type of an object.
fn type_of(object: &Value) -> Option<TypeId> {
    let version = object["apiVersion"].as_str()?;
    let table = match version.strip_suffix("/v1").unwrap_or("core") {
        "core" => "core",
        group => group.split('.').next()?,
    };
    let kind = object["kind"].as_str()?;
    schema::find(table, kind).or_else(|| schema::find("meta", kind))
}

/// The object without `kind` and `apiVersion`.
fn without_type(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}

#[test]
fn every_recorded_object_survives_protobuf() {
    let mut count = 0;
    for Step { name, answer, .. } in FILES.into_iter().flat_map(steps) {
        let Some(ty) = type_of(&answer) else { continue };
        let bytes = encode(ty, &answer).unwrap_or_else(|error| panic!("{name}: {error}"));
        let decoded = decode(ty, &bytes, Printed::default()).expect("a message");
        assert_eq!(decoded, without_type(&answer), "{name}");
        count += 1;
    }
    assert!(count > 1000, "{count} objects");
}

/// The type of the object that a request creates.
fn type_of_request(step: &Step) -> Option<TypeId> {
    let path = step.request["path"].as_str()?.split('?').next()?;
    let kind = match path.rsplit('/').next()? {
        "services" => "Service",
        "configmaps" => "ConfigMap",
        _ => return None,
    };
    schema::find("core", kind).filter(|_| step.request["method"] == "POST")
}

/// What the server says of an object that it cannot decode.
fn refusal(step: &Step) -> Option<&str> {
    let (_, refusal) = step.answer["message"].as_str()?.split_once(" cannot be handled as a ")?;
    Some(refusal.split_once(": ")?.1).filter(|_| step.status == 400)
}

#[test]
fn values_of_another_type_are_named_as_recorded() {
    let mut count = 0;
    for step in FILES.into_iter().flat_map(steps) {
        let expected = refusal(&step).filter(|refusal| refusal.starts_with("json: cannot unmarshal"));
        let (Some(expected), Some(ty)) = (expected, type_of_request(&step)) else { continue };
        let body = match &step.request["body"] {
            Value::String(text) => serde_json::from_str(text),
            body => Ok(body.clone()),
        };
        // Some are YAML.
        let Ok(body) = body else { continue };
        let error = encode(ty, &body).expect_err(&step.name);
        // The tables do not have the names that Go has for kinds of text.
        let expected = expected.replace("of type v1.ServiceType", "of type string");
        assert_eq!(error.to_string(), expected, "{}", step.name);
        count += 1;
    }
    assert!(count > 5, "{count} mistakes");
}

#[test]
fn unknown_and_duplicate_fields_are_named_as_recorded() {
    let mut count = 0;
    for step in FILES.into_iter().flat_map(steps) {
        let expected = refusal(&step).and_then(|refusal| refusal.strip_prefix("strict decoding error: "));
        let (Some(expected), Some(ty)) = (expected, type_of_request(&step)) else { continue };
        let text = match &step.request["body"] {
            Value::String(text) => text.clone(),
            body => body.to_string(),
        };
        let found: Vec<String> = check(ty, text.as_bytes()).iter().map(ToString::to_string).collect();
        assert_eq!(found.join(", "), expected, "{}", step.name);
        count += 1;
    }
    assert!(count > 2, "{count} requests");
}
