//! The cluster as far as this node needs it, and which Services changed.

mod intake;
mod planning;
#[cfg(test)]
mod tests;

use crate::claims::Claims;
use crate::event::ClusterEvent;
use crate::ingest::{Fault, Service, Slice};
use crate::node::Node;
use crate::plan::ServicePlan;
use crate::reject::Rejected;
use crate::types::{PortName, ServiceName};
use ipnet::IpNet;
use portway_api::{ObjectMeta, ResourceType, Store};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const CONFLICT: &str = "conflict";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The node that plans are made for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// This node's name.
    pub node: String,
    /// The proxy name whose Services are programmed; none means Services without one.
    pub proxy_name: Option<String>,
}

/// A Service whose plan may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceChange {
    /// Its name.
    pub name: ServiceName,
    /// Its plans, IPv4 first; none where there is nothing to program.
    pub plans: [Option<ServicePlan>; 2],
}

/// Changes since the last call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services with their new plans.
    pub services: Vec<ServiceChange>,
    /// How many Services changed.
    pub service_events: u64,
    /// How many slices changed.
    pub endpoint_events: u64,
    /// When the changes of endpoints were caused, as far as is known: seconds and nanoseconds since the epoch.
    pub triggers: Vec<(i64, u32)>,
    /// The ranges of cluster IPs, if they changed.
    pub service_cidrs: Option<Vec<IpNet>>,
    /// This node, if it changed.
    pub node: Option<Node>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.service_cidrs.is_none() && self.node.is_none()
    }
}

/// The answer to a load balancer that checks a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Where it asks.
    pub port: u16,
    /// How many endpoints on this node are ready.
    pub local_endpoints: usize,
}

#[derive(Debug, PartialEq)]
struct ServiceSlice {
    service: ServiceName,
    slice: Slice,
}

#[derive(Debug)]
struct Rejection {
    reason: Rejected,
    generation: u32,
}

impl Rejection {
    /// Whether another Service holds the address or port: the object itself is right.
    fn is_conflict(&self) -> bool {
        self.reason.class == CONFLICT
    }
}

/// Everything this node knows of the cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    identity: Identity,
    /// The Services to program; the marked ones have to be planned anew.
    services: Store<ServiceName, Service>,
    slices: Store<Arc<str>, ServiceSlice>,
    /// The slices of each Service, in order of name, whether the Service exists or not.
    slices_of: HashMap<ServiceName, Box<[Arc<str>]>>,
    /// This node's object, while there is one.
    nodes: Store<(), Node>,
    /// This node as it is or was last known.
    node: Node,
    node_known: bool,
    cidrs: Store<Box<str>, Vec<IpNet>>,
    claims: Claims,
    port_names: HashSet<PortName>,
    zone_lists: Vec<Box<[Box<str>]>>,
    health: BTreeMap<ServiceName, HealthCheck>,
    started: bool,
    pending: Changes,
    rejections: BTreeMap<(ResourceType, String), Rejection>,
    fresh_rejections: Vec<Rejected>,
}

impl Cluster {
    /// Nothing known yet.
    pub fn new(identity: Identity) -> Cluster {
        Cluster { identity, ..Cluster::default() }
    }

    /// Applies a change of one object, or the beginning or end of a list.
    pub fn apply(&mut self, event: impl Into<ClusterEvent>) {
        match event.into() {
            ClusterEvent::Service(event) => self.service_event(event),
            ClusterEvent::EndpointSlice(event) => self.slice_event(event),
            ClusterEvent::Node(event) => self.node_event(event),
            ClusterEvent::ServiceCidr(event) => self.cidr_event(event),
        }
    }

    /// Whether Services, slices and this node have been listed once. Before that nothing may be programmed.
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

    /// How many Services and slices wait to be planned.
    pub fn pending(&self) -> (u64, u64) {
        (self.pending.service_events, self.pending.endpoint_events)
    }

    /// Whether there is anything for [`Cluster::take_changes`] to tell.
    pub fn has_changes(&self) -> bool {
        !self.started
            || self.services.has_dirty()
            || self.pending.service_cidrs.is_some()
            || self.pending.node.is_some()
    }

    /// The plans of all Services as they are, whether they changed or not.
    pub fn plans(&mut self) -> Vec<ServiceChange> {
        let mut names: Vec<ServiceName> = self.services.iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names.into_iter().map(|name| self.plan(name)).collect()
    }

    /// Marks everything as changed, so that the next [`Cluster::take_changes`] gives all plans.
    pub fn touch_all(&mut self) {
        self.services.mark_all_dirty();
    }

    /// Objects that were rejected since the last call.
    pub fn take_rejections(&mut self) -> Vec<Rejected> {
        std::mem::take(&mut self.fresh_rejections)
    }

    /// All objects that stand rejected now.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejected> {
        self.rejections.values().map(|r| &r.reason)
    }

    /// The health checks to answer.
    pub fn health_checks(&self) -> &BTreeMap<ServiceName, HealthCheck> {
        &self.health
    }

    /// This node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The ranges of cluster IPs.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        let mut all: Vec<_> = self.cidrs.iter().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all.into_iter().flat_map(|(_, ranges)| ranges).copied().collect()
    }

    /// How many Services are known.
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Everything has been listed: decide which Service holds which address, the older first.
    fn start(&mut self) {
        self.started = true;
        let mut all: Vec<(i64, &ServiceName, &Service)> =
            self.services.iter().map(|(name, service)| (service.created, name, service)).collect();
        all.sort_unstable_by_key(|(created, name, _)| (*created, *name));
        for (_, name, service) in all {
            self.claims.update(name, None, Some(service));
        }
        self.pending.service_cidrs = Some(self.service_cidrs());
        self.pending.node = Some(self.node.clone());
        // Endpoints that are older than the agent do not count into its latency.
        self.pending.triggers.clear();
    }

    fn reject(
        &mut self,
        resource: ResourceType,
        generation: u32,
        meta: &ObjectMeta,
        key: &str,
        fault: Fault,
    ) {
        let reason = Rejected {
            resource,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            field: fault.field,
            reason: fault.reason,
            class: fault.class,
        };
        let rejection = Rejection { reason: reason.clone(), generation };
        let before = self.rejections.insert((resource, key.to_owned()), rejection);
        if before.is_none_or(|b| b.reason != reason) {
            self.fresh_rejections.push(reason);
        }
    }

    /// Withdraws the rejection of an object, except for a conflict, which ends only when plans are made. Returns whether
    /// there was one.
    fn clear_rejection(&mut self, resource: ResourceType, key: &str) -> bool {
        if self.rejections.is_empty() {
            return false;
        }
        let key = (resource, key.to_owned());
        let fault = self.rejections.get(&key).is_some_and(|r| !r.is_conflict());
        if fault {
            self.rejections.remove(&key);
        }
        fault
    }

    /// A list is complete: rejections of objects that it did not mention are void. Conflicts are not found in a list, but
    /// when plans are made.
    fn drop_old_rejections(&mut self, resource: ResourceType, generation: u32) {
        self.rejections.retain(|(r, _), rejection| {
            *r != resource || rejection.generation == generation || rejection.is_conflict()
        });
    }
}
