//! Selectors select the recorded objects, and are refused with the recorded words.

use crate::answers::{Step, steps};
use portway_apiserver::selector::{FieldSelector, LabelSelector, Selectable};
use serde_json::Value;

/// A parameter of the request's query, decoded.
fn parameter(step: &Step, name: &str) -> Option<String> {
    let query = step.request["path"].as_str()?.split_once('?')?.1;
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex = std::str::from_utf8(&tail[..2]).expect("two digits");
                bytes.push(u8::from_str_radix(hex, 16).expect("a number"));
                rest = &tail[2..];
            }
            byte => bytes.push(*byte),
        }
    }
    Some(String::from_utf8(bytes).expect("text"))
}

/// The fields by which objects of a path can be selected.
fn selectable(path: &str) -> Selectable {
    let path = path.split('?').next().unwrap_or_default();
    match path.rsplit('/').next().unwrap_or_default() {
        "pods" => Selectable::And(&["spec.nodeName", "status.phase", "status.podIP"]),
        "services" => Selectable::And(&["spec.clusterIP", "spec.type"]),
        "nodes" => Selectable::And(&["spec.unschedulable"]),
        "namespaces" => Selectable::And(&["status.phase"]),
        "secrets" => Selectable::And(&["type"]),
        "events" => Selectable::And(&[]),
        _ => Selectable::OfAll,
    }
}

/// The names of the objects in a list.
fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items.filter_map(|item| item["metadata"]["name"].as_str()).map(str::to_owned).collect()
}

#[test]
fn labels_select_the_recorded_objects() {
    let (mut everything, mut selected, mut refused) = (Vec::new(), 0, 0);
    for step in steps("objects") {
        let Some(text) = parameter(&step, "labelSelector").filter(|_| step.request["method"] == "GET") else {
            continue;
        };
        let parsed = LabelSelector::parse(&text);
        if step.status == 400 {
            let error = parsed.expect_err(&step.name);
            assert_eq!(step.answer["message"], error.to_string(), "{}", step.name);
            refused += 1;
            continue;
        }
        let selector = parsed.unwrap_or_else(|error| panic!("{}: {error}", step.name));
        let path = step.request["path"].as_str().unwrap_or_default();
        if path.contains("limit=") || path.contains("watch=") {
            continue;
        }
        // A selector of nothing, or of a label that all have, shows which objects there are.
        if text.is_empty() || text == "i" {
            everything = step.answer["items"].as_array().cloned().unwrap_or_default();
        }
        if everything.is_empty() {
            continue;
        }
        let matching = everything.iter().filter(|object| {
            let labels = &object["metadata"]["labels"];
            selector.matches(|name| labels[name].as_str())
        });
        let matching: Vec<&str> = matching.filter_map(|object| object["metadata"]["name"].as_str()).collect();
        if names(&step.answer).iter().all(|name| name.starts_with('c')) {
            assert_eq!(matching, names(&step.answer), "{}", step.name);
            selected += 1;
        }
    }
    assert!(selected > 8 && refused > 15, "{selected} lists and {refused} refusals");
}

#[test]
fn fields_are_read_or_refused_as_recorded() {
    let (mut read, mut refused) = (0, 0);
    for step in ["objects", "watches"].into_iter().flat_map(steps) {
        let path = step.request["path"].as_str().unwrap_or_default().to_owned();
        let Some(text) = parameter(&step, "fieldSelector") else { continue };
        let selectable = selectable(&path);
        match FieldSelector::parse(&text, selectable) {
            Err(error) if step.status == 400 => {
                assert_eq!(step.answer["message"], error.to_string(), "{}", step.name);
                refused += 1;
            }
            Err(error) => {
                // Some kinds have more fields than are listed here.
                assert!(error.to_string().starts_with("field label not supported"), "{}: {error}", step.name);
            }
            Ok(selector) => {
                assert_eq!(step.status, 200, "{}", step.name);
                for item in step.answer["items"].as_array().into_iter().flatten() {
                    let value = |field: &str| {
                        let pointer = format!("/{}", field.replace('.', "/"));
                        item.pointer(&pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
                    };
                    assert!(selector.matches(value), "{}: {item}", step.name);
                }
                read += 1;
            }
        }
    }
    assert!(read > 15 && refused > 8, "{read} selectors and {refused} refusals");
}

#[test]
fn commas_and_signs_in_values_of_fields_are_escaped() {
    let selector = FieldSelector::parse("metadata.name=a\\,b\\=c", Selectable::OfAll).expect("a selector");
    assert_eq!(selector.required("metadata.name"), Some("a,b=c"));
    assert!(FieldSelector::parse("", Selectable::OfAll).expect("a selector").is_empty());
}
