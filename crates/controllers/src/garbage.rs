//! The garbage collection: deletes objects whose owners are gone, and completes foreground and orphaning deletions.
//!
//! In: an object and what is known of its owners and dependents. Out: its deletion, or changes of owner references and
//! finalizers. An owner that is not known here is read from the API server before it counts as gone. Objects of
//! resources that are not watched are never collected, and count as owners that exist. Pure.

pub mod graph;

use crate::cluster::{Cause, Touched};
use crate::controller::{Clock, Logic};
use crate::key::Key;
use crate::plan::{Change, Note, Plan, Reasoned, Write, count};
use crate::views::Views;
use graph::{FOREGROUND, Found, Graph, GraphObject, ORPHAN, Owner};
use portway_api::complete::EndpointSlice;
use portway_api::metadata_only::{ConfigMap, Namespace, Secret, ServiceAccount};
use portway_api::{
    Deployment, Endpoints, Lease, Node, OwnerReference, Pod, ReplicaSet, Resource, ResourceType, Service,
};
use portway_client::{Propagation, Regarding, Subresource};
use serde_json::json;
use std::time::Duration;

/// The resources whose objects are collected.
pub const RESOURCES: &[ResourceType] = &[
    Service::TYPE,
    Endpoints::TYPE,
    EndpointSlice::TYPE,
    Pod::TYPE,
    Node::TYPE,
    ReplicaSet::TYPE,
    Deployment::TYPE,
    Lease::TYPE,
    Namespace::TYPE,
    ConfigMap::TYPE,
    Secret::TYPE,
    ServiceAccount::TYPE,
];

/// Writes of one plan at most, so that an object with many dependents does not occupy the collection.
const BATCH: usize = 100;

/// The owner references of an object by what is known of the owners.
#[derive(Default)]
struct Owners<'a> {
    /// Owners that exist, or of which nothing is known.
    solid: Vec<&'a OwnerReference>,
    /// Owners that wait for their dependents to be deleted.
    waiting: Vec<&'a OwnerReference>,
    gone: Vec<&'a OwnerReference>,
    invalid: bool,
}

/// Decides what happens to an object with this unique id.
pub fn reconcile(graph: &Graph, uid: &str) -> Plan {
    let Some(found @ (_, _, object)) = graph.get(uid) else { return Plan::default() };
    if !object.deleting {
        collect(graph, found)
    } else if object.has_finalizer(ORPHAN) {
        orphan_dependents(graph, found)
    } else if object.has_finalizer(FOREGROUND) {
        complete_foreground(graph, found)
    } else {
        // Others will remove their finalizers.
        Plan::default()
    }
}

/// Takes an object that is being deleted off its dependents' owners, and then its finalizer off it.
fn orphan_dependents(graph: &Graph, owner: Found<'_>) -> Plan {
    let (resource, key, object) = owner;
    let mut plan = Plan::default();
    for (dependent, name, state) in graph.dependents(&object.uid) {
        let kept = state.owners.iter().filter(|reference| *reference.uid != *object.uid);
        let reason = format!("its owner, {resource} {key}, is deleted without its dependents");
        plan.writes.push(change_owners((dependent, name, state), kept, reason));
    }
    if plan.writes.len() > BATCH {
        plan.writes.truncate(BATCH);
        plan.again_after = Some(Duration::ZERO);
    } else {
        let reason = format!("{} kept", count(plan.writes.len(), "dependent"));
        plan.writes.push(remove_finalizer(owner, ORPHAN, reason));
    }
    plan
}

/// Lets an object go whose dependents are gone.
fn complete_foreground(graph: &Graph, owner: Found<'_>) -> Plan {
    let (.., object) = owner;
    let blocks = |(.., dependent): &Found<'_>| {
        let mut references = dependent.owners.iter().filter(|reference| *reference.uid == *object.uid);
        references.any(|reference| reference.block_owner_deletion == Some(true))
    };
    let mut plan = Plan::default();
    if !graph.dependents(&object.uid).iter().any(blocks) {
        let reason = "no dependent is left that blocks its deletion".to_owned();
        plan.writes.push(remove_finalizer(owner, FOREGROUND, reason));
    }
    plan
}

/// Deletes an object that no owner is left of.
fn collect(graph: &Graph, found: Found<'_>) -> Plan {
    let (resource, key, object) = found;
    let mut plan = Plan::default();
    let owners = classify(graph, key, object, &mut plan);
    if owners.invalid {
        let text = format!("{resource} {key} is not in a namespace, but an owner of it would be");
        plan.notes.push(Note::warning("OwnerRefInvalidNamespace", text));
    }
    if !plan.reads.is_empty() || owners.waiting.is_empty() && owners.gone.is_empty() {
        return plan;
    }
    if !owners.solid.is_empty() {
        let reason = format!("{} gone", count(owners.gone.len() + owners.waiting.len(), "owner"));
        plan.writes.push(change_owners(found, owners.solid.into_iter(), reason));
        return plan;
    }
    let dependents = graph.dependents(&object.uid);
    let waits_for_dependents = !owners.waiting.is_empty() && !dependents.is_empty();
    let blocks = owners.waiting.iter().any(|owner| owner.block_owner_deletion == Some(true));
    if waits_for_dependents && blocks && dependents.iter().any(|(.., d)| d.awaits_dependents()) {
        // Owners that wait for each other would wait forever.
        let unblocked: Vec<OwnerReference> = object
            .owners
            .iter()
            .map(|owner| OwnerReference { block_owner_deletion: Some(false), ..owner.clone() })
            .collect();
        let reason = "it must not block its owner, which waits for it in a circle".to_owned();
        plan.writes.push(change_owners(found, unblocked.iter(), reason));
        plan.again_after = Some(Duration::ZERO);
        return plan;
    }
    let propagation = if object.has_finalizer(ORPHAN) {
        Propagation::Orphan
    } else if object.has_finalizer(FOREGROUND) || waits_for_dependents {
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    let names: Vec<String> =
        object.owners.iter().map(|owner| format!("{} {}", owner.kind, owner.name)).collect();
    let state = if owners.waiting.is_empty() { "gone" } else { "being deleted" };
    let reason = format!("its owner is {state}: {}", names.join(", "));
    let version = object.at_version(key);
    let write = Write::Delete { resource, version, propagation: Some(propagation) };
    plan.writes.push(Reasoned::new(write, reason));
    plan
}

fn classify<'a>(graph: &Graph, key: &Key, object: &'a GraphObject, plan: &mut Plan) -> Owners<'a> {
    let mut owners = Owners::default();
    for reference in &object.owners {
        match graph.owner(key, reference) {
            Owner::Exists(owner) if owner.awaits_dependents() => owners.waiting.push(reference),
            Owner::Exists(_) | Owner::Unknown => owners.solid.push(reference),
            Owner::Gone => owners.gone.push(reference),
            Owner::Unverified(read) => plan.reads.push(read),
            Owner::Invalid => {
                owners.invalid = true;
                owners.solid.push(reference);
            }
        }
    }
    owners
}

fn change_owners<'a>(
    (resource, key, object): Found<'_>,
    owners: impl Iterator<Item = &'a OwnerReference>,
    reason: String,
) -> Reasoned {
    let fields = json!({ "metadata": { "ownerReferences": owners.collect::<Vec<_>>() } });
    change((resource, key, object), fields, reason)
}

fn remove_finalizer((resource, key, object): Found<'_>, name: &str, reason: String) -> Reasoned {
    let kept: Vec<&String> = object.finalizers.iter().filter(|finalizer| *finalizer != name).collect();
    change((resource, key, object), json!({ "metadata": { "finalizers": kept } }), reason)
}

fn change((resource, key, object): Found<'_>, fields: serde_json::Value, reason: String) -> Reasoned {
    let change = Change::of(resource, &object.at_version(key), Subresource::None, fields);
    Reasoned::new(Write::Change(Box::new(change)), reason)
}

/// The garbage collection as a controller. Its keys are unique ids.
#[derive(Debug)]
pub(crate) struct GarbageCollector;

impl Logic for GarbageCollector {
    fn delay(&mut self, touched: &Touched, _: &Views) -> Option<Duration> {
        (touched.by == Cause::Ownership).then_some(Duration::ZERO)
    }

    fn reconcile(&mut self, views: &Views, key: &Key, _: Clock) -> Plan {
        views.graph.as_ref().map(|graph| reconcile(graph, key.name())).unwrap_or_default()
    }

    fn subject(&self, views: &Views, key: &Key) -> Regarding {
        match views.graph.as_ref().and_then(|graph| graph.get(key.name())) {
            Some((resource, name, _)) => name.regarding(resource, key.name().to_owned()),
            None => key.regarding(Namespace::TYPE, key.name().to_owned()),
        }
    }

    fn keys(&self, views: &Views) -> Vec<Key> {
        views.graph.as_ref().map(Graph::keys).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
