//! What clients send as text: patches, selectors and the fields of objects.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_apiserver::codec::{check, encode};
use portway_apiserver::patch::{apply_json, apply_merge, apply_strategic};
use portway_apiserver::schema;
use portway_apiserver::selector::{FieldSelector, LabelSelector, Selectable};
use serde_json::{Value, json};

fuzz_target!(|text: &str| {
    _ = LabelSelector::parse(text);
    _ = FieldSelector::parse(text, Selectable::OfAll);
    let Some(pod) = schema::find("core", "Pod") else { return };
    check(pod, text.as_bytes());
    let Ok(patch) = serde_json::from_str::<Value>(text) else { return };
    _ = encode(pod, &patch);
    let object = json!({
        "metadata": {"name": "a", "labels": {"app": "web"}, "finalizers": ["x/y"]},
        "spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}, {"name": "b"}]},
    });
    apply_merge(&mut object.clone(), &patch);
    _ = apply_strategic(pod, &mut object.clone(), &patch);
    let mut patched = object.clone();
    if apply_json(&mut patched, &patch).is_err() {
        assert_eq!(patched, object);
    }
});
