//! New Services get the defaults and the families that kube-apiserver gave them, and are refused for the same reasons.

use crate::answers::{Step, steps};
use portway_apiserver::codec::{Printed, decode, encode};
use portway_apiserver::schema;
use portway_apiserver::service::{Families, check, prepare};
use portway_apiserver::validation::Causes;
use serde_json::{Value, json};

/// The creations of Services in a file, with the object as the server reads it.
fn creations(file: &str) -> impl Iterator<Item = (Step, Value)> {
    let ty = schema::find("core", "Service").expect("a type");
    steps(file).into_iter().filter_map(move |step| {
        let path = step.request["path"].as_str()?.split('?').next()?.to_owned();
        let is_creation = step.request["method"] == "POST" && path.ends_with("/services");
        let body = step.request["body"].as_object().filter(|_| is_creation)?;
        let object = decode(ty, &encode(ty, &Value::Object(body.clone())).ok()?, Printed::default()).ok()?;
        Some((step, object))
    })
}

/// Gives a Service the addresses and ports of the answer, or any.
fn allocate(service: &mut Value, answer: &Value) {
    let recorded = |field: &str| answer["spec"][field].clone();
    let spec = &mut service["spec"];
    if spec["type"] != "ExternalName" && spec["clusterIP"] != "None" {
        let families = spec["ipFamilies"].as_array().cloned().unwrap_or_default();
        let mut ips = spec["clusterIPs"].as_array().cloned().unwrap_or_default();
        for (index, family) in families.iter().enumerate().skip(ips.len()) {
            let any = if family == "IPv6" { "fd96::9" } else { "10.96.0.9" };
            ips.push(recorded("clusterIPs").get(index).cloned().unwrap_or_else(|| any.into()));
        }
        spec["clusterIP"] = ips.first().cloned().unwrap_or_default();
        spec["clusterIPs"] = ips.into();
    }
    let kind = spec["type"].as_str().unwrap_or_default().to_owned();
    let wants_ports =
        kind == "NodePort" || kind == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] == true;
    for (index, port) in spec["ports"].as_array_mut().into_iter().flatten().enumerate() {
        if wants_ports && (port["nodePort"].is_null() || port["nodePort"] == 0) {
            let recorded = recorded("ports")[index]["nodePort"].clone();
            port["nodePort"] = if recorded.is_null() { (31_000 + index).into() } else { recorded };
        }
    }
    let needs_check = kind == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local";
    if needs_check && (spec["healthCheckNodePort"].is_null() || spec["healthCheckNodePort"] == 0) {
        let recorded = recorded("healthCheckNodePort");
        spec["healthCheckNodePort"] = if recorded.is_null() { 32_000.into() } else { recorded };
    }
}

/// What happens to a new Service before it is stored.
fn create(service: &mut Value, answer: &Value) -> Causes {
    let cluster = Families(vec!["IPv4", "IPv6"]);
    if let Err(causes) = prepare(service, &cluster) {
        return causes;
    }
    allocate(service, answer);
    check(service, None)
}

/// The recorded causes, without those of the metadata.
fn recorded_causes(answer: &Value) -> Vec<String> {
    let causes = answer["details"]["causes"].as_array().cloned().unwrap_or_default();
    causes
        .iter()
        .filter(|cause| !is_of_metadata(&cause["field"]))
        .map(|cause| {
            let text = |name: &str| cause[name].as_str().unwrap_or_default();
            format!("{} {}: {}", text("reason"), text("field"), text("message"))
        })
        .collect()
}

fn is_of_metadata(field: &Value) -> bool {
    field.as_str().is_some_and(|field| field.starts_with("metadata.") && !field.contains('['))
}

fn without_zeros(value: &mut Value) {
    let empty = [json!(null), json!({}), json!([]), json!(""), json!(0)];
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(without_zeros);
            fields.retain(|_, value| !empty.contains(value));
        }
        Value::Array(items) => items.iter_mut().for_each(without_zeros),
        _ => {}
    }
}

#[test]
fn new_services_get_the_recorded_fields() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (step, mut service) in
        ["service_defaults", "service_validation", "service_transitions"].into_iter().flat_map(creations)
    {
        if step.status != 201 {
            continue;
        }
        let causes = create(&mut service, &step.answer);
        wrong.extend(causes.iter().map(|cause| format!("{}: {cause}", step.name)));
        let (mut ours, mut theirs) = (service["spec"].take(), step.answer["spec"].clone());
        without_zeros(&mut ours);
        without_zeros(&mut theirs);
        if ours != theirs {
            wrong.push(format!("{}:\n  ours   {ours}\n  theirs {theirs}", step.name));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 200, "{count} Services");
}

#[test]
fn services_are_refused_for_the_recorded_reasons() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (step, mut service) in ["service_defaults", "service_validation"].into_iter().flat_map(creations) {
        let expected = recorded_causes(&step.answer);
        let is_of_allocation =
            |cause: &String| cause.contains("failed to allocate") || cause.contains("provided port");
        if step.status != 422 || expected.is_empty() || expected.iter().any(is_of_allocation) {
            continue;
        }
        let causes = create(&mut service, &json!({}));
        let found: Vec<String> = causes
            .iter()
            .map(|cause| format!("{} {}: {}", cause.reason.name(), cause.field, cause.message))
            .collect();
        if found != expected {
            wrong.push(format!("{}:\n  ours   {found:#?}\n  theirs {expected:#?}", step.name));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 150, "{count} Services");
}
