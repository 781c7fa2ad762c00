//! Services become what kube-apiserver made of them, and are refused for the same reasons: new ones, and those that change.

use crate::answers::{Step, steps};
use portway_apiserver::codec::{Printed, decode, encode};
use portway_apiserver::patch::{apply_merge, apply_strategic};
use portway_apiserver::schema::{self, TypeId};
use portway_apiserver::service::{Families, Pools, Refusal, Shortage, decide};
use portway_apiserver::status::{self, About};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;

/// Causes that do not depend on the Service alone.
const OF_OTHERS: [&str; 5] = [
    // A patch of `kind` is refused as a whole.
    "FieldValueInvalid patch",
    // A generated name.
    "<suffix>",
    "already allocated",
    "failed to allocate IP: IPAddress",
    // The colon after this address was taken for a part of it when the answer was recorded.
    "failed to allocate IP fd96::1 the",
];

fn service_type() -> TypeId {
    schema::find("core", "Service").expect("a type")
}

/// An object as the server reads it; `None` if it is none.
fn read(object: &Value) -> Option<Value> {
    decode(service_type(), &encode(service_type(), object).ok()?, Printed::default()).ok()
}

/// Pools in which everything is free, and from which a Service gets what the answer has.
struct RecordedPools {
    addresses: Vec<String>,
    ports: VecDeque<i64>,
}

impl RecordedPools {
    fn new(answer: &Value, request: &Value, old: Option<&Value>) -> RecordedPools {
        let ports = |object: &Value| -> Vec<i64> {
            let ports = object["spec"]["ports"].as_array().into_iter().flatten();
            let ports = ports.filter_map(|port| port["nodePort"].as_i64());
            ports.chain(object["spec"]["healthCheckNodePort"].as_i64()).filter(|port| *port != 0).collect()
        };
        let known: Vec<i64> = ports(request).into_iter().chain(old.map(ports).unwrap_or_default()).collect();
        let mut free: VecDeque<i64> = VecDeque::new();
        for port in ports(answer) {
            if !known.contains(&port) && !free.contains(&port) {
                free.push_back(port);
            }
        }
        let addresses = answer["spec"]["clusterIPs"].as_array().into_iter().flatten();
        let addresses = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
        RecordedPools { addresses, ports: free }
    }
}

impl Pools for RecordedPools {
    fn address(&mut self, family: &str, wanted: Option<&str>) -> Result<String, Shortage> {
        let is_v6 = |ip: &str| ip.contains(':');
        let Some(wanted) = wanted else {
            let recorded = self.addresses.iter().find(|ip| is_v6(ip) == (family == "IPv6")).cloned();
            let any = if family == "IPv6" { "fd96::99" } else { "10.96.0.99" };
            return Ok(recorded.unwrap_or_else(|| any.to_owned()));
        };
        // Not the first of a range, and in IPv4 not the last.
        let in_range = match wanted.parse::<IpAddr>() {
            Ok(IpAddr::V4(ip)) => {
                let [a, b, c, d] = ip.octets();
                [a, b] == [10, 96] && ![[0, 0], [255, 255]].contains(&[c, d])
            }
            Ok(IpAddr::V6(ip)) => ip.segments()[..7] == [0xfd96, 0, 0, 0, 0, 0, 0] && ip.segments()[7] != 0,
            Err(_) => false,
        };
        let outside =
            || Shortage::Refused("the provided network does not match the current range".to_owned());
        in_range.then(|| wanted.to_owned()).ok_or_else(outside)
    }

    fn node_port(&mut self, wanted: Option<i64>) -> Result<i64, Shortage> {
        const RANGE: &str =
            "provided port is not in the valid range. The range of valid ports is 30000-32767";
        match wanted {
            Some(port) if (30_000..=32_767).contains(&port) => Ok(port),
            Some(_) => Err(Shortage::Refused(RANGE.to_owned())),
            None => Ok(self.ports.pop_front().unwrap_or(31_999)),
        }
    }
}

/// A request that creates or changes a Service, with the object that it leads to, and the one before.
struct Attempt {
    step: Step,
    service: Value,
    old: Option<Value>,
}

/// The requests of the files that create and change Services. Those that are refused before that are left out.
fn attempts(files: &[&str]) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for file in files {
        let (mut stored, mut case): (HashMap<String, Value>, String) = (HashMap::new(), String::new());
        for step in steps(file) {
            let name = step.name.rsplit_once(" step").map_or("", |(case, _)| case).to_owned();
            if name != case {
                (stored, case) = (HashMap::new(), name);
            }
            let path =
                step.request["path"].as_str().unwrap_or_default().split('?').next().unwrap_or_default();
            let is_object = path.contains("/services/") && path.rsplit('/').nth(1) == Some("services");
            let is_collection = path.ends_with("/services");
            let before = path.rsplit('/').next().and_then(|name| stored.get(name)).cloned();
            let body = step.request["body"].clone();
            let kind = step.request["headers"]["Content-Type"].as_str().unwrap_or_default();
            let changed = match (step.request["method"].as_str().unwrap_or_default(), &before) {
                ("POST", _) if is_collection => read(&body).map(|service| (service, None)),
                ("PUT", Some(old)) if is_object => read(&body).map(|service| (service, Some(old.clone()))),
                ("PATCH", Some(old)) if is_object && kind.contains("merge-patch") => {
                    let mut service = old.clone();
                    let applied = match kind.starts_with("application/strategic") {
                        true => apply_strategic(service_type(), &mut service, &body).is_ok(),
                        false => {
                            apply_merge(&mut service, &body);
                            true
                        }
                    };
                    read(&service).filter(|_| applied).map(|service| (service, Some(old.clone())))
                }
                _ => None,
            };
            let is_dry = step.request["path"].as_str().is_some_and(|path| path.contains("dryRun"));
            if step.status < 300 && step.answer["kind"] == "Service" && !is_dry {
                let name = step.answer["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                stored.extend(read(&step.answer).map(|service| (name, service)));
            }
            if let Some((mut service, old)) = changed {
                // The namespace of the path, and what a name would be generated as.
                let meta = &mut service["metadata"];
                if meta["namespace"].is_null() {
                    meta["namespace"] = "ns".into();
                }
                if meta["name"].is_null() {
                    let base = meta["generateName"].as_str().unwrap_or_default();
                    meta["name"] = format!("{}abcde", &base[..base.len().min(58)]).into();
                }
                attempts.push(Attempt { step, service, old });
            }
        }
    }
    attempts
}

impl Attempt {
    fn decide(&mut self) -> Result<(), Refusal> {
        let mut pools = RecordedPools::new(&self.step.answer, &self.service, self.old.as_ref());
        decide(&mut self.service, self.old.as_ref(), &Families(vec!["IPv4", "IPv6"]), &mut pools)
    }
}

fn causes(refusal: &Refusal) -> Vec<String> {
    match refusal {
        Refusal::Invalid(causes) => {
            causes.iter().map(|cause| format!("{} {cause}", cause.reason.name())).collect()
        }
        Refusal::Internal(why) => vec![format!("InternalError : {why}")],
    }
}

/// The recorded causes. kube-apiserver repeats some about metadata.
fn recorded_causes(answer: &Value) -> Vec<String> {
    let mut all = all_causes(answer);
    let mut seen = HashSet::new();
    all.retain(|cause| !cause.contains(" metadata.") || seen.insert(cause.clone()));
    all
}

fn all_causes(answer: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let causes = answer["details"]["causes"].as_array().into_iter().flatten();
    causes
        .map(|cause| {
            let reason =
                if cause["reason"].is_null() { "InternalError".into() } else { text(&cause["reason"]) };
            format!("{reason} {}: {}", text(&cause["field"]), text(&cause["message"]))
        })
        .collect()
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
fn services_become_the_recorded_ones() {
    let (mut count, mut wrong) = (0, Vec::new());
    for mut attempt in attempts(&["service_defaults", "service_validation", "service_transitions"]) {
        if attempt.step.status >= 300 {
            continue;
        }
        if let Err(refusal) = attempt.decide() {
            wrong.push(format!("{}: {:?}", attempt.step.name, causes(&refusal)));
        }
        for part in ["spec", "status"] {
            let (mut ours, mut theirs) = (attempt.service[part].take(), attempt.step.answer[part].clone());
            without_zeros(&mut ours);
            without_zeros(&mut theirs);
            if ours != theirs {
                wrong.push(format!("{}:\n  ours   {ours}\n  theirs {theirs}", attempt.step.name));
            }
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 500, "{count} Services");
}

#[test]
fn services_are_refused_for_the_recorded_reasons() {
    let (mut count, mut wrong) = (0, Vec::new());
    for mut attempt in attempts(&["service_defaults", "service_validation", "service_transitions"]) {
        let expected = recorded_causes(&attempt.step.answer);
        let is_of_others = |cause: &String| OF_OTHERS.iter().any(|text| cause.contains(text));
        let is_refused = matches!(attempt.step.status, 422 | 500);
        if !is_refused || expected.is_empty() || expected.iter().any(is_of_others) {
            continue;
        }
        let refusal = attempt.decide().err();
        let found = refusal.as_ref().map(causes).unwrap_or_default();
        let name = attempt.service["metadata"]["name"].as_str().unwrap_or_default();
        let about = About { group: "", kind: "Service", name };
        let status = match &refusal {
            Some(Refusal::Invalid(causes)) => about.invalid(causes),
            Some(Refusal::Internal(why)) => status::internal(why),
            None => Value::Null,
        };
        // Where kube-apiserver repeats causes, or generated the name, its Status is another one.
        let is_comparable =
            all_causes(&attempt.step.answer).len() == expected.len() && !name.ends_with("abcde");
        if is_comparable && status != attempt.step.answer {
            wrong
                .push(format!("{}:\n  ours   {status}\n  theirs {}", attempt.step.name, attempt.step.answer));
        }
        if found != expected {
            wrong.push(format!("{}:\n  ours   {found:#?}\n  theirs {expected:#?}", attempt.step.name));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 250, "{count} Services");
}
