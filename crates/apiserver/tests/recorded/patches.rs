//! Patches lead to the objects that kube-apiserver answered with.

use crate::answers::{Step, steps};
use portway_apiserver::codec::{Printed, decode, encode};
use portway_apiserver::patch::{PatchError, apply_json, apply_merge, apply_strategic};
use portway_apiserver::schema;
use serde_json::{Value, json};

/// Fields that the server sets by itself.
const OF_THE_SERVER: [&str; 4] = ["resourceVersion", "generation", "creationTimestamp", "uid"];
/// Fields that get a default where a patch adds an object.
const DEFAULTED: [&str; 14] = [
    "protocol",
    "targetPort",
    "imagePullPolicy",
    "resources",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "restartPolicy",
    "type",
    "rollingUpdate",
    "maxSurge",
    "maxUnavailable",
    "defaultMode",
    "nodePort",
    "status",
];

/// Steps after which the server has changed more than the patch says, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("configmap_change_name_namespace step 6", "kind and apiVersion cannot be removed"),
    ("configmap_change_name_namespace step 8", "managedFields are not recorded"),
    ("deployment_smp_env_ports step 5", "fieldRef.apiVersion gets a default"),
    ("deployment_smp_replicas_scale step 2", "replicas get a default"),
    ("deployment_status_patches step 4", "a patch of the status changes nothing else"),
    ("deployment_status_patches step 5", "a patch of the object does not change its status"),
    ("node_conditions_taints step 10", "podCIDRs follow podCIDR"),
    ("node_conditions_taints step 15", "a patch of the object does not change its status"),
    ("node_conditions_taints step 16", "quantities are written in one way"),
    ("pod_smp_image_and_immutable step 6", "admission adds tolerations"),
    ("pod_status_conditions step 3", "podIPs follow podIP"),
    ("pod_status_conditions step 5", "podIPs follow podIP"),
    ("pod_status_conditions step 7", "a patch of the object does not change its status"),
    ("service_smp_atomic_lists step 1", "externalTrafficPolicy gets a default"),
    ("service_smp_null_type step 2", "sessionAffinity gets a default"),
    ("service_smp_spec_replace step 1", "cluster IPs stay"),
];

fn is_exception(step: &str) -> bool {
    EXCEPTIONS.iter().any(|(name, _)| step.ends_with(name))
}

/// The object without fields that its type does not have, as it is stored.
fn stored_form(step: &Step, object: &Value) -> Option<Value> {
    let ty = type_at(step.request["path"].as_str()?)?;
    let mut stored = decode(ty, &encode(ty, object).ok()?, Printed::default()).ok()?;
    for name in ["kind", "apiVersion"] {
        stored[name] = object[name].clone();
    }
    Some(stored)
}

/// The type of the object at a path.
fn type_at(path: &str) -> Option<schema::TypeId> {
    let kinds = [
        ("/services/", "core", "Service"),
        ("/deployments/", "apps", "Deployment"),
        ("/pods/", "core", "Pod"),
        ("/nodes/", "core", "Node"),
        ("/configmaps/", "core", "ConfigMap"),
        ("/leases/", "coordination", "Lease"),
        ("/endpoints/", "core", "Endpoints"),
        ("/endpointslices/", "discovery", "EndpointSlice"),
        ("/serviceaccounts/", "core", "ServiceAccount"),
    ];
    kinds.iter().find(|(part, ..)| path.contains(part)).and_then(|(_, table, kind)| schema::find(table, kind))
}

fn apply(step: &Step, target: &mut Value) -> Option<Result<(), PatchError>> {
    let kind = step.request["headers"]["Content-Type"].as_str()?;
    let patch = match &step.request["body"] {
        Value::String(text) => serde_json::from_str(text).ok()?,
        body => body.clone(),
    };
    let ty = type_at(step.request["path"].as_str()?)?;
    match kind {
        "application/strategic-merge-patch+json" => Some(apply_strategic(ty, target, &patch)),
        "application/json-patch+json" => Some(apply_json(target, &patch)),
        "application/merge-patch+json" if patch.is_object() => {
            apply_merge(target, &patch);
            Some(Ok(()))
        }
        _ => None,
    }
}

/// Whether an answer has what a patch led to, and besides only fields that the server adds.
fn difference(path: &str, ours: &Value, answer: &Value) -> Option<String> {
    match (ours, answer) {
        (Value::Object(ours), Value::Object(answer)) => {
            let missing = ours.keys().filter(|name| !answer.contains_key(*name));
            let added = answer.keys().filter(|name| {
                !ours.contains_key(*name)
                    && !DEFAULTED.contains(&name.as_str())
                    && !OF_THE_SERVER.contains(&name.as_str())
            });
            let other =
                missing.map(|name| (name, "only ours")).chain(added.map(|name| (name, "missing"))).next();
            if let Some((name, what)) = other {
                return Some(format!("{path}.{name}: {what}"));
            }
            ours.iter()
                .filter(|(name, _)| !OF_THE_SERVER.contains(&name.as_str()))
                .find_map(|(name, value)| difference(&format!("{path}.{name}"), value, &answer[name]))
        }
        (Value::Array(ours), Value::Array(answer)) if ours.len() == answer.len() => {
            let pairs = ours.iter().zip(answer).enumerate();
            pairs.into_iter().find_map(|(n, (a, b))| difference(&format!("{path}[{n}]"), a, b))
        }
        (ours, answer) => (ours != answer).then(|| format!("{path}: {ours} instead of {answer}")),
    }
}

/// Removes what has no value: the server does not print it.
fn prune(value: &mut Value) {
    let empty = [json!(null), json!({}), json!([]), json!(""), json!(0)];
    let is_empty = |value: &Value| empty.contains(value);
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, value| !is_empty(value));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

#[test]
fn patched_objects_are_those_that_were_recorded() {
    let (mut stored, mut case) = (Value::Null, String::new());
    let mut count = 0;
    let mut differences = Vec::new();
    for step in steps("patches") {
        let name = step.name.rsplit_once(" step").map_or("", |(case, _)| case).to_owned();
        if name != case {
            (stored, case) = (Value::Null, name);
        }
        if step.request["method"] == "PATCH" && step.status == 200 {
            let mut ours = stored.clone();
            if let Some(result) = apply(&step, &mut ours) {
                if let Err(error) = result {
                    differences.push(format!("{}: {error}", step.name));
                }
                let mut answer = step.answer.clone();
                let Some(mut ours) = stored_form(&step, &ours) else {
                    differences.push(format!("{}: not an object of its type", step.name));
                    continue;
                };
                prune(&mut ours);
                prune(&mut answer);
                let found = difference("", &ours, &answer).filter(|_| !is_exception(&step.name));
                differences.extend(found.map(|found| format!("{}: {found}", step.name)));
                count += 1;
            }
        }
        let is_dry = step.request["path"].as_str().is_some_and(|path| path.contains("dryRun"));
        if step.status < 300 && !is_dry {
            stored = step.answer;
        }
    }
    assert!(differences.is_empty(), "{} of {count}:\n{}", differences.len(), differences.join("\n"));
    assert!(count > 100, "{count} patches");
}

#[test]
fn patches_that_do_not_fit_are_refused_as_recorded() {
    let (mut stored, mut count) = (Value::Null, 0);
    for step in steps("patches") {
        let mut ours = stored.clone();
        let is_strategic =
            step.request["headers"]["Content-Type"] == "application/strategic-merge-patch+json";
        let is_refused = step.status == 500
            || step.status == 400 && step.answer["message"] == "invalid patch format of retainKeys";
        if is_strategic && is_refused {
            let error = apply(&step, &mut ours).expect("a patch").expect_err(&step.name);
            assert_eq!(step.answer["message"], error.to_string(), "{}", step.name);
            count += 1;
        }
        let rejected = "the server rejected our request due to an error in our request";
        let is_rejected = step.status == 422 && step.answer["message"] == rejected;
        if is_rejected && step.request["headers"]["Content-Type"] == "application/json-patch+json" {
            let error = apply(&step, &mut ours).expect("a patch").expect_err(&step.name);
            assert!(matches!(error, PatchError::Inapplicable(_)), "{}: {error}", step.name);
            count += 1;
        }
        if step.status < 300 {
            stored = step.answer;
        }
    }
    assert!(count > 20, "{count} patches");
}
