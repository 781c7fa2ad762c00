//! The cluster as far as this node needs it, and what changed in it.

mod intake;
mod planning;
#[cfg(test)]
mod tests;

use crate::api::{self, Event, Kind};
use crate::claims::Claims;
use crate::ingest::{Fault, Service, Slice};
use crate::node::Node;
use crate::plan::ServicePlan;
use crate::reject::Rejected;
use crate::types::{PortName, ServiceName};
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const CONFLICT: &str = "conflict";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Who we are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// This node's name.
    pub node: String,
    /// The proxy name whose Services are ours; none means those without one.
    pub proxy_name: Option<String>,
}

/// A Service whose plan may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceChange {
    /// Whose.
    pub name: ServiceName,
    /// Its plans, IPv4 first; none where there is nothing to program.
    pub plans: [Option<ServicePlan>; 2],
}

/// What changed since it was last asked.
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

/// What a load balancer is told about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Where it asks.
    pub port: u16,
    /// How many endpoints on this node are ready.
    pub local_endpoints: usize,
}

#[derive(Debug, Default)]
struct Entry {
    service: Option<Service>,
    generation: u32,
    slices: Vec<Arc<str>>,
}

#[derive(Debug)]
struct SliceEntry {
    service: ServiceName,
    slice: Slice,
    generation: u32,
}

#[derive(Debug)]
struct CidrEntry {
    ranges: Vec<IpNet>,
    generation: u32,
}

#[derive(Debug)]
struct Rejection {
    reason: Rejected,
    generation: u32,
}

impl Rejection {
    /// Whether somebody else holds what it claims: nothing is wrong with the object itself.
    fn is_conflict(&self) -> bool {
        self.reason.class == CONFLICT
    }
}

/// Everything this node knows of the cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    identity: Identity,
    services: HashMap<ServiceName, Entry>,
    slices: HashMap<Arc<str>, SliceEntry>,
    node: Node,
    node_generation: u32,
    cidrs: BTreeMap<String, CidrEntry>,
    claims: Claims,
    port_names: HashSet<PortName>,
    zone_lists: Vec<Box<[Box<str>]>>,
    health: BTreeMap<ServiceName, HealthCheck>,
    listed: [Option<u32>; 4],
    generation: [u32; 4],
    started: bool,
    dirty: HashSet<ServiceName>,
    pending: Changes,
    rejections: BTreeMap<(Kind, String), Rejection>,
    fresh_rejections: Vec<Rejected>,
}

impl Cluster {
    /// Nothing known yet.
    pub fn new(identity: Identity) -> Cluster {
        Cluster { identity, ..Cluster::default() }
    }

    /// Takes in what happened.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Init(kind) => self.generation[kind as usize] += 1,
            Event::InitDone(kind) => self.list_done(kind),
            Event::Apply(object) => self.apply_object(&object),
            Event::Delete { kind, namespace, name } => self.delete(kind, &namespace, &name),
        }
    }

    /// Whether Services, slices and this node have been listed once. Before that nothing may be programmed.
    pub fn ready(&self) -> bool {
        [Kind::Service, Kind::EndpointSlice, Kind::Node].iter().all(|k| self.listed[*k as usize].is_some())
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
        let mut dirty: Vec<ServiceName> = std::mem::take(&mut self.dirty).into_iter().collect();
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
            || !self.dirty.is_empty()
            || self.pending.service_cidrs.is_some()
            || self.pending.node.is_some()
    }

    /// The plans of all Services as they are, whether they changed or not.
    pub fn plans(&mut self) -> Vec<ServiceChange> {
        let mut names: Vec<ServiceName> = self.services.keys().cloned().collect();
        names.sort_unstable();
        names.into_iter().map(|name| self.plan(name)).collect()
    }

    /// Marks everything as changed, so that the next [`Cluster::take_changes`] gives all plans.
    pub fn touch_all(&mut self) {
        self.dirty.extend(self.services.keys().cloned());
    }

    /// What was rejected since the last call.
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
        self.cidrs.values().flat_map(|e| &e.ranges).copied().collect()
    }

    /// How many Services are known.
    pub fn service_count(&self) -> usize {
        self.services.values().filter(|e| e.service.is_some()).count()
    }

    /// Everything has been listed: decide who holds which address, the older first.
    fn start(&mut self) {
        self.started = true;
        let mut all: Vec<(i64, &ServiceName, &Service)> = self
            .services
            .iter()
            .filter_map(|(n, e)| Some((e.service.as_ref()?.created, n, e.service.as_ref()?)))
            .collect();
        all.sort_unstable_by_key(|(created, name, _)| (*created, *name));
        for (_, name, service) in all {
            self.claims.update(name, None, Some(service));
        }
        self.pending.service_cidrs = Some(self.service_cidrs());
        self.pending.node = Some(self.node.clone());
        // Endpoints that were there before us were not late because of us.
        self.pending.triggers.clear();
    }

    fn reject(&mut self, kind: Kind, meta: &api::ObjectMeta, key: &str, fault: Fault) {
        let reason = Rejected {
            kind,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            field: fault.field,
            reason: fault.reason,
            class: fault.class,
        };
        let rejection = Rejection { reason: reason.clone(), generation: self.generation[kind as usize] };
        let before = self.rejections.insert((kind, key.to_owned()), rejection);
        if before.is_none_or(|b| b.reason != reason) {
            self.fresh_rejections.push(reason);
        }
    }

    /// Takes back what was said of an object, except that somebody else holds what it claims. Whether there was
    /// anything comes back.
    fn forgive(&mut self, kind: Kind, key: &str) -> bool {
        if self.rejections.is_empty() {
            return false;
        }
        let key = (kind, key.to_owned());
        let fault = self.rejections.get(&key).is_some_and(|r| !r.is_conflict());
        if fault {
            self.rejections.remove(&key);
        }
        fault
    }

    /// Forgets a Service of which nothing is left.
    fn prune(&mut self, name: &ServiceName) {
        if self.services.get(name).is_some_and(|e| e.service.is_none() && e.slices.is_empty()) {
            self.services.remove(name);
        }
    }
}
