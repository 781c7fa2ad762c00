//! The Endpoints controller: the Endpoints object of a Service with a selector.
//!
//! In: the Service, its Pods and the Endpoints object that there is. Out: at most one write. Pure.

pub(crate) mod subsets;

use crate::cluster::Cluster;
use crate::cluster::endpoints::{EndpointsState, encode};
use crate::cluster::pod::PodState;
use crate::cluster::service::ServiceState;
use crate::endpointslice::desired::{hostname, number};
use crate::endpointslice::slices::set_trigger;
use crate::fingerprint;
use crate::key::Key;
use crate::names::{ENDPOINTS_CONTROLLER, ENDPOINTS_MANAGED_BY, HEADLESS, OVER_CAPACITY};
use crate::plan::{Note, Object, Plan, Reasoned, Version, Write};
use portway_api::{EndpointAddress, EndpointSubset, Endpoints, ObjectMeta, ObjectReference, SubsetPort};
use std::collections::HashMap;
use subsets::{canonical, truncate};

/// The value of the annotation of an object that does not have all addresses.
const TRUNCATED: &str = "truncated";

/// Decides what to write. `service_deleted` tells a Service that was deleted from one that there never was: the
/// Endpoints objects that people create without a Service are left alone.
pub fn reconcile(cluster: &Cluster, key: &Key, trigger: Option<i64>, service_deleted: bool) -> Plan {
    let mut plan = Plan::default();
    let existing = cluster.endpoints(key);
    let Some(service) = cluster.service(key) else {
        let orphan = existing.filter(|e| (service_deleted || e.is_managed()) && !e.is_lock());
        plan.writes.extend(orphan.map(|e| delete(e, "the Service was deleted")));
        return plan;
    };
    if service.external_name {
        let stale = existing.filter(|e| e.is_managed());
        plan.writes.extend(stale.map(|e| delete(e, "the Service is an ExternalName")));
        return plan;
    }
    if service.selector.is_none() {
        return plan;
    }
    let mut subsets = canonical(exploded(cluster, key, service));
    let addresses: usize = subsets.iter().map(|s| s.addresses.len() + s.not_ready_addresses.len()).sum();
    plan.figures.endpoints = addresses;
    let truncated = truncate(&mut subsets);
    if truncated {
        // A subset may be empty now, or have the addresses of another one.
        subsets = canonical(subsets);
    }
    let labels = labels(service);
    let Some(existing) = existing else {
        if !service.deleting {
            let meta = ObjectMeta {
                name: key.name().to_owned(),
                namespace: key.namespace().to_owned(),
                ..ObjectMeta::default()
            };
            let endpoints = object(meta, labels, subsets, trigger, truncated);
            let write = Write::Create(Object::Endpoints(Box::new(endpoints)));
            plan.writes.push(Reasoned::new(write, format!("addresses: {addresses}")));
        }
        return plan;
    };
    let meta = existing.meta.unpack();
    let annotated = meta.annotations.get(OVER_CAPACITY).map(String::as_str);
    let reasons: Vec<&str> = [
        (fingerprint::of(encode(&subsets)) != existing.content, "addresses changed"),
        (labels != meta.labels, "labels changed"),
        (annotated != truncated.then_some(TRUNCATED), "capacity annotation changed"),
    ]
    .into_iter()
    .filter_map(|(differs, reason)| differs.then_some(reason))
    .collect();
    if !reasons.is_empty() {
        let endpoints = object(meta, labels, subsets, trigger, truncated);
        let write = Write::Replace(Object::Endpoints(Box::new(endpoints)));
        plan.writes.push(Reasoned::new(write, reasons.join(", ")));
    }
    plan
}

fn delete(endpoints: &EndpointsState, reason: &str) -> Reasoned {
    Reasoned::new(Write::delete::<Endpoints>(Version::of(&endpoints.meta.unpack())), reason)
}

fn object(
    mut meta: ObjectMeta,
    labels: HashMap<String, String>,
    subsets: Vec<EndpointSubset>,
    trigger: Option<i64>,
    truncated: bool,
) -> Endpoints {
    meta.labels = labels;
    set_trigger(&mut meta, trigger);
    match truncated {
        true => _ = meta.annotations.insert(OVER_CAPACITY.to_owned(), TRUNCATED.to_owned()),
        false => _ = meta.annotations.remove(OVER_CAPACITY),
    }
    Endpoints { metadata: Some(meta), subsets }
}

fn labels(service: &ServiceState) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> =
        service.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    labels.remove(HEADLESS);
    if service.headless {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(ENDPOINTS_MANAGED_BY.to_owned(), ENDPOINTS_CONTROLLER.to_owned());
    labels
}

/// A subset for each address and port.
fn exploded(cluster: &Cluster, key: &Key, service: &ServiceState) -> Vec<EndpointSubset> {
    let mut subsets = Vec::new();
    for (name, pod) in cluster.pods_of(service) {
        let left_out = pod.terminal || pod.terminating && !service.publish_not_ready;
        let Some(address) = address(key, service, name, pod).filter(|_| !left_out) else { continue };
        let ready = service.publish_not_ready || pod.ready;
        let subset = |ports: Vec<SubsetPort>| match ready {
            true => EndpointSubset { addresses: vec![address.clone()], ports, ..Default::default() },
            false => {
                EndpointSubset { not_ready_addresses: vec![address.clone()], ports, ..Default::default() }
            }
        };
        if service.ports.is_empty() && service.ip_none {
            subsets.push(subset(Vec::new()));
        }
        for port in &service.ports {
            let Some(number) = number(port, pod) else { continue };
            subsets.push(subset(vec![SubsetPort {
                name: port.name.to_string(),
                port: number,
                protocol: port.protocol.to_string(),
                app_protocol: port.app_protocol.as_ref().map(ToString::to_string),
            }]));
        }
    }
    subsets
}

/// The address of a Pod, of the Service's first family.
fn address(key: &Key, service: &ServiceState, name: &Key, pod: &PodState) -> Option<EndpointAddress> {
    let ip = match service.families_are_known {
        true => pod.address(*service.families.first()?)?,
        false => *pod.addresses.first()?,
    };
    Some(EndpointAddress {
        ip: ip.to_string(),
        hostname: hostname(key, name, pod).unwrap_or_default().to_owned(),
        node_name: (!pod.node.is_empty()).then(|| pod.node.to_string()),
        target_ref: Some(ObjectReference {
            kind: "Pod".to_owned(),
            namespace: name.namespace().to_owned(),
            name: name.name().to_owned(),
            uid: pod.uid.to_string(),
            ..ObjectReference::default()
        }),
    })
}

/// The Event for a write that failed.
pub(crate) fn failed(key: &Key, operation: &str, error: &str) -> Note {
    let (reason, what) = match operation {
        "create" => ("FailedToCreateEndpoint", "create endpoint for service"),
        _ => ("FailedToUpdateEndpoint", "update endpoint"),
    };
    Note::warning(reason, format!("Failed to {what} {key}: {error}"))
}

#[cfg(test)]
mod tests;
