//! The EndpointSlice controller: the slices of a Service with a selector.
//!
//! In: the Service, its Pods, their nodes and the slices that there are. Out: the writes that make the slices right,
//! as few as possible. Pure.

pub(crate) mod desired;
pub(crate) mod hints;
pub(crate) mod pack;
pub(crate) mod slices;
pub(crate) mod topology;

use crate::cluster::Cluster;
use crate::cluster::service::{AddressFamily, ServiceState};
use crate::cluster::slice::{Maintainer, SliceState};
use crate::key::Key;
use crate::mirroring;
use crate::plan::{Note, Object, Plan, Reasoned, Version, Write, count};
use desired::Desired;
use pack::Group;
use portway_api::complete::EndpointSlice;
use slices::SliceBuilder;

/// The limit of endpoints in a slice, and the time of the change that a plan is for.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Endpoints in a slice at most.
    pub max_endpoints: usize,
    /// Addresses of a subset that are mirrored at most.
    pub max_mirrored: usize,
    /// The time of the change that led to this reconciliation, in seconds since the epoch.
    pub trigger: Option<i64>,
}

/// Decides which slices of a Service to write.
pub fn reconcile(cluster: &Cluster, key: &Key, context: Context) -> Plan {
    let existing = cluster.slices_of(key, Maintainer::Slices);
    // The slices of a deleted Service are left to the garbage collection.
    let Some(service) = cluster.service(key) else { return Plan::default() };
    if !service.selects() {
        return abandoned(cluster, key, service, &existing, context.max_mirrored);
    }
    let mut plan = Plan::default();
    let pods = cluster.pods_of(service);
    for &family in &service.families {
        let of_family = existing.iter().filter(|slice| *slice.address_type == *family.name());
        let of_family: Vec<&SliceState> = of_family.copied().collect();
        let (mut desired, missing) = desired::desired(cluster, key, service, &pods, family);
        if let Some(node) = missing {
            plan.incomplete = Some(format!("Node {node} does not exist"));
        }
        let previous = hints::previous(&of_family);
        plan.notes.extend(hints::assign(service, cluster.shares(), family, &mut desired, &previous));
        let builder = SliceBuilder { key, service, family, trigger: context.trigger };
        let is_taken = |name: &str| cluster.has_slice(&Key::new(key.namespace(), name));
        plan_family(&mut plan, builder, &of_family, desired, context.max_endpoints, is_taken);
    }
    for slice in existing {
        let supported = AddressFamily::parse(&slice.address_type);
        if supported.is_none_or(|family| !service.families.contains(&family)) {
            let reason = format!("the Service has no family {}", slice.address_type);
            plan.writes.push(delete(slice, reason));
        }
    }
    plan
}

/// The slices of a Service that has lost its selector, or become an ExternalName: they are removed. If its Endpoints
/// object is mirrored from now on, they stay until it has been, so that no endpoint is lost in between.
fn abandoned(
    cluster: &Cluster,
    key: &Key,
    service: &ServiceState,
    existing: &[&SliceState],
    max_mirrored: usize,
) -> Plan {
    let mut plan = Plan::default();
    if !service.external_name && !existing.is_empty() {
        let mirrored = mirroring::reconcile(cluster, key, max_mirrored);
        if !mirrored.reads.is_empty() || !mirrored.writes.is_empty() {
            return plan;
        }
    }
    let reason =
        if service.external_name { "the Service is an ExternalName" } else { "the Service has no selector" };
    plan.writes.extend(existing.iter().map(|slice| delete(slice, reason.to_owned())));
    plan
}

fn delete(slice: &SliceState, reason: String) -> Reasoned {
    Reasoned::new(Write::delete::<EndpointSlice>(Version::of(&slice.meta.unpack())), reason)
}

/// Plans the slices of one family.
fn plan_family(
    plan: &mut Plan,
    builder: SliceBuilder<'_>,
    existing: &[&SliceState],
    desired: Vec<Desired<'_>>,
    max_endpoints: usize,
    is_taken: impl Fn(&str) -> bool,
) {
    // A slice of an earlier Service of the same name waits for the garbage collection.
    let (own, foreign): (Vec<&SliceState>, Vec<&SliceState>) =
        existing.iter().partition(|slice| builder.may_own(slice));
    let (mut changes, mut needed) = (pack::Changes::default(), 0);
    for group in pack::groups(&own, desired) {
        let Group { ports, existing, desired } = group;
        plan.figures.endpoints += desired.len();
        needed += desired.len().div_ceil(max_endpoints);
        let labels_differ = |slice: &SliceState| builder.metadata_differs(slice);
        pack::pack(ports, &existing, desired, max_endpoints, labels_differ, &mut changes);
    }
    plan.figures.added += changes.added;
    plan.figures.removed += changes.removed;
    plan.figures.changed += changes.changed;

    let remaining = own.len() - changes.delete.len() + changes.create.len();
    if remaining == 0 {
        match changes.delete.iter().position(|slice| builder.is_placeholder(slice)) {
            // The slice without endpoints is there already.
            Some(position) => _ = changes.delete.remove(position),
            None => changes.create.push(pack::Content::default()),
        }
    }
    plan.figures.slices += remaining.max(1);
    plan.figures.needed += needed.max(1);

    changes.reuse_deleted();
    // While the Service is being deleted, its slices are too.
    if !builder.service.deleting {
        let mut names: Vec<String> = Vec::new();
        for content in changes.create {
            let slice = builder.create(&content, |name| is_taken(name) || names.iter().any(|n| n == name));
            names.extend(slice.metadata.as_ref().map(|meta| meta.name.clone()));
            let reason = match content.endpoints.len() {
                0 => "the Service has no endpoints".to_owned(),
                n => count(n, "endpoint"),
            };
            plan.writes.push(Reasoned::new(Write::Create(Object::Slice(Box::new(slice))), reason));
        }
    }
    for (slice, content) in changes.update {
        let replaced = builder.replace(slice, &content);
        plan.writes.push(Reasoned::new(Write::Replace(Object::Slice(Box::new(replaced))), content.reason));
    }
    for slice in changes.delete {
        plan.writes.push(delete(slice, "no endpoint is left in it".to_owned()));
    }
    for slice in foreign {
        plan.writes.push(delete(slice, "it belongs to an earlier Service of the same name".to_owned()));
    }
}

/// The Event for a reconciliation that failed.
pub(crate) fn failed(key: &Key, error: &str) -> Note {
    let text = format!("Error updating Endpoint Slices for Service {key}: {error}");
    Note::warning("FailedToUpdateEndpointSlices", text)
}

#[cfg(test)]
mod tests;
