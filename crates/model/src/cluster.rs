//! The state of the cluster that this node needs, and which Services changed.

mod intake;
mod planning;
#[cfg(test)]
mod tests;

use crate::api;
use crate::claims::Claims;
use crate::event::ClusterEvent;
use crate::ingest::{Fault, Service, Slice};
use crate::node::Node;
use crate::plan::ServicePlan;
use crate::reject::Rejected;
use crate::types::{Family, PortName, ServiceName};
use ipnet::IpNet;
use portway_api::{ObjectMeta, Resource, ResourceType, Store};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The node that plans are made for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// This node's name.
    pub node: String,
    /// The value of the label `service.kubernetes.io/service-proxy-name` of the Services to program; `None` for
    /// Services without that label.
    pub proxy_name: Option<String>,
}

/// A Service whose plan may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceChange {
    /// Its name.
    pub name: ServiceName,
    /// Its plans, IPv4 first; `None` if there is nothing to program in that family.
    pub plans: [Option<ServicePlan>; 2],
}

/// Changes since the last call of [`Cluster::take_changes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services with their new plans.
    pub services: Vec<ServiceChange>,
    /// The number of changes of Services.
    pub service_events: u64,
    /// The number of changes of EndpointSlices.
    pub endpoint_events: u64,
    /// When the changes of endpoints were triggered, where the EndpointSlice has that time: the family of the slice,
    /// seconds and nanoseconds since the epoch.
    pub triggers: Vec<(Family, i64, u32)>,
    /// The ranges of cluster IPs, if they changed.
    pub service_cidrs: Option<Vec<IpNet>>,
    /// This node, if it changed.
    pub node: Option<Node>,
}

/// The health check of a Service, for load balancers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The `healthCheckNodePort`.
    pub port: u16,
    /// The number of ready endpoints on this node, for each family that the Service has.
    pub local_endpoints: BTreeMap<Family, usize>,
}

#[derive(Debug, PartialEq)]
struct ServiceSlice {
    service: ServiceName,
    slice: Slice,
}

/// The rejected values of an object.
#[derive(Debug, Default)]
struct Rejections {
    /// Values that cannot be used, found when the object was read.
    faults: Vec<Rejected>,
    /// Addresses and ports that another Service holds, found when it was planned.
    conflicts: Vec<Rejected>,
    /// The list in which the object was last seen.
    generation: u32,
}

/// The state of the cluster as this node knows it.
#[derive(Debug, Default)]
pub struct Cluster {
    identity: Identity,
    ignores_external_ips: bool,
    /// The Services to program; those marked dirty need a new plan.
    services: Store<ServiceName, Service>,
    slices: Store<Arc<str>, ServiceSlice>,
    /// The slices of each Service in order of name, whether the Service exists or not.
    slices_of: HashMap<ServiceName, Box<[Arc<str>]>>,
    /// This node's Node object, if it exists.
    nodes: Store<(), Node>,
    /// The current state of this node, or the last one before its Node object was deleted.
    node: Node,
    node_known: bool,
    cidrs: Store<Box<str>, Vec<IpNet>>,
    claims: Claims,
    port_names: HashSet<PortName>,
    zone_lists: Vec<Box<[Box<str>]>>,
    health: BTreeMap<ServiceName, HealthCheck>,
    started: bool,
    /// The Services that had cluster IPs before the start.
    holders: HashMap<IpAddr, ServiceName>,
    pending: Changes,
    rejections: BTreeMap<(ResourceType, String), Rejections>,
    new_rejections: Vec<Rejected>,
}

impl Cluster {
    /// An empty state, before any event.
    pub fn new(identity: Identity) -> Cluster {
        Cluster { identity, ..Cluster::default() }
    }

    /// Ignores the external IPs of Services, if they are not allowed. To be called before the first event.
    pub fn set_external_ips_allowed(&mut self, allowed: bool) {
        self.ignores_external_ips = !allowed;
    }

    /// Applies an event: a change of one object, or the beginning or end of a list.
    pub fn apply(&mut self, event: impl Into<ClusterEvent>) {
        match event.into() {
            ClusterEvent::Service(event) => self.service_event(event),
            ClusterEvent::EndpointSlice(event) => self.slice_event(event),
            ClusterEvent::Node(event) => self.node_event(event),
            ClusterEvent::ServiceCidr(event) => self.cidr_event(event),
        }
    }

    /// Rejects an object that could not be decoded. Its last version stays in force, also if a relist has only the
    /// undecodable one.
    pub fn reject_undecodable(&mut self, resource: ResourceType, meta: &ObjectMeta, reason: String) {
        let fault = vec![Fault::new("undecodable", "", reason)];
        let name = ServiceName::new(&meta.namespace, &meta.name);
        let (key, generation) = if resource == api::Service::TYPE {
            self.services.keep(&name);
            (name.as_str(), self.services.generation())
        } else if resource == api::EndpointSlice::TYPE {
            self.slices.keep(name.as_str());
            (name.as_str(), self.slices.generation())
        } else if resource == api::ServiceCidr::TYPE {
            self.cidrs.keep(meta.name.as_str());
            (meta.name.as_str(), self.cidrs.generation())
        } else {
            if meta.name == self.identity.node {
                self.nodes.keep(&());
            }
            (meta.name.as_str(), self.nodes.generation())
        };
        self.set_faults(resource, generation, meta, key, fault, false);
    }

    /// The unique id of a Service; empty if it is not known.
    pub fn service_uid(&self, name: &ServiceName) -> &str {
        self.services.get(name).map_or("", |service| &service.uid)
    }

    /// Whether Services, EndpointSlices and this node have been listed once. Nothing may be programmed before.
    pub fn ready(&self) -> bool {
        self.services.is_listed() && self.slices.is_listed() && self.node_known
    }

    /// The plans of all Services that were touched since the last call. Empty until [`Cluster::ready`].
    pub fn take_changes(&mut self) -> Changes {
        if !self.ready() {
            return Changes::default();
        }
        if !self.started {
            self.start();
        }
        let mut changes = std::mem::take(&mut self.pending);
        let mut dirty: Vec<ServiceName> = self.services.take_dirty().into_iter().collect();
        dirty.sort_unstable();
        changes.services = dirty.into_iter().map(|name| self.plan(name)).collect();
        changes
    }

    /// The number of changes of Services and of EndpointSlices since the last [`Cluster::take_changes`].
    pub fn pending(&self) -> (u64, u64) {
        (self.pending.service_events, self.pending.endpoint_events)
    }

    /// Whether [`Cluster::take_changes`] would return changes.
    pub fn has_changes(&self) -> bool {
        !self.started
            || self.services.has_dirty()
            || self.pending.service_cidrs.is_some()
            || self.pending.node.is_some()
    }

    /// The current plans of all Services, whether they changed or not.
    pub fn plans(&mut self) -> Vec<ServiceChange> {
        let mut names: Vec<ServiceName> = self.services.iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names.into_iter().map(|name| self.plan(name)).collect()
    }

    /// Marks all Services as changed, so that the next [`Cluster::take_changes`] returns all plans.
    pub fn touch_all(&mut self) {
        self.services.mark_all_dirty();
    }

    /// Objects and values that were rejected since the last call.
    pub fn take_rejections(&mut self) -> Vec<Rejected> {
        std::mem::take(&mut self.new_rejections)
    }

    /// All objects and values that are rejected now.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejected> {
        self.rejections.values().flat_map(|r| r.faults.iter().chain(&r.conflicts))
    }

    /// The number of objects of a resource that are rejected, or partially programmed.
    pub fn rejected_objects(&self, resource: ResourceType) -> usize {
        self.rejections.keys().filter(|(r, _)| *r == resource).count()
    }

    /// The health checks of all Services that have one.
    pub fn health_checks(&self) -> &BTreeMap<ServiceName, HealthCheck> {
        &self.health
    }

    /// This node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The ranges of cluster IPs, from the ServiceCIDRs.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        let mut all: Vec<_> = self.cidrs.iter().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all.into_iter().flat_map(|(_, ranges)| ranges).copied().collect()
    }

    /// Tells which Services had which cluster IPs before the start: among Services of the same age they keep them.
    pub fn set_holders(&mut self, holders: impl IntoIterator<Item = (IpAddr, ServiceName)>) {
        self.holders = holders.into_iter().collect();
    }

    /// Called once all resources have been listed: decides which Service holds which address, older Services first.
    fn start(&mut self) {
        self.started = true;
        let holders = std::mem::take(&mut self.holders);
        let had_it = |name: &ServiceName, service: &Service| {
            service.cluster_ips.iter().any(|ip| holders.get(ip) == Some(name))
        };
        let mut all: Vec<(i64, bool, &ServiceName, &Service)> = self
            .services
            .iter()
            .map(|(name, service)| (service.created, !had_it(name, service), name, service))
            .collect();
        all.sort_unstable_by_key(|(created, is_new, name, _)| (*created, *is_new, *name));
        for (_, _, name, service) in all {
            self.claims.update(name, None, Some(service));
        }
        self.pending.service_cidrs = Some(self.service_cidrs());
        self.pending.node = Some(self.node.clone());
        // Changes from before the start do not count in the latency of the agent.
        self.pending.triggers.clear();
    }

    /// Replaces the faults of an object. `partial`: everything else of it is programmed.
    fn set_faults(
        &mut self,
        resource: ResourceType,
        generation: u32,
        meta: &ObjectMeta,
        key: &str,
        faults: Vec<Fault>,
        partial: bool,
    ) {
        if faults.is_empty() && self.rejections.is_empty() {
            return;
        }
        let faults = faults.into_iter().map(|fault| rejected(resource, meta, fault, partial)).collect();
        let entry = self.rejections.entry((resource, key.to_owned())).or_default();
        entry.generation = generation;
        let before = std::mem::replace(&mut entry.faults, faults);
        self.new_rejections.extend(entry.faults.iter().filter(|r| !before.contains(r)).cloned());
        self.drop_rejection_if_empty(resource, key);
    }

    /// Replaces the conflicts of a Service with others.
    fn set_conflicts(&mut self, resource: ResourceType, meta: &ObjectMeta, key: &str, conflicts: Vec<Fault>) {
        if conflicts.is_empty() && self.rejections.is_empty() {
            return;
        }
        let conflicts = conflicts.into_iter().map(|fault| rejected(resource, meta, fault, true)).collect();
        let entry = self.rejections.entry((resource, key.to_owned())).or_default();
        let before = std::mem::replace(&mut entry.conflicts, conflicts);
        self.new_rejections.extend(entry.conflicts.iter().filter(|r| !before.contains(r)).cloned());
        self.drop_rejection_if_empty(resource, key);
    }

    fn drop_rejection_if_empty(&mut self, resource: ResourceType, key: &str) {
        let key = (resource, key.to_owned());
        if self.rejections.get(&key).is_some_and(|r| r.faults.is_empty() && r.conflicts.is_empty()) {
            self.rejections.remove(&key);
        }
    }

    /// Removes the faults of a deleted object. Its conflicts are removed when it is planned.
    fn clear_faults(&mut self, resource: ResourceType, key: &str) {
        self.set_faults(resource, 0, &ObjectMeta::default(), key, Vec::new(), false);
    }

    /// Called at the end of a list: removes the faults of objects that are not in the list.
    fn drop_old_rejections(&mut self, resource: ResourceType, generation: u32) {
        self.rejections.retain(|(r, _), rejection| {
            if *r == resource && rejection.generation != generation {
                rejection.faults.clear();
            }
            !rejection.faults.is_empty() || !rejection.conflicts.is_empty()
        });
    }
}

fn rejected(resource: ResourceType, meta: &ObjectMeta, fault: Fault, partial: bool) -> Rejected {
    Rejected {
        resource,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        field: fault.field,
        reason: fault.reason,
        class: fault.class,
        partial,
    }
}
