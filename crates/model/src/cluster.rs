//! The cluster as far as this node needs it, and what changed in it.

#[cfg(test)]
mod tests;

use crate::api::{self, Event, Kind, Object};
use crate::claims::Claims;
use crate::ingest::{self, Fault, Port, Service, Slice};
use crate::node::{Node, NodeState};
use crate::plan::{Frontend, FrontendKind, PortPlan, ServicePlan};
use crate::reject::Rejected;
use crate::select;
use crate::types::{Family, PortName, Protocol, ServiceName, TrafficPolicy};
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
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

    fn apply_object(&mut self, object: &Object) {
        let empty = api::ObjectMeta::default();
        let meta = object.metadata().unwrap_or(&empty);
        match object {
            Object::Service(service) => self.apply_service(service, meta),
            Object::EndpointSlice(slice) => self.apply_slice(slice, meta),
            Object::Node(node) => {
                if meta.name == self.identity.node {
                    self.node_generation = self.generation[Kind::Node as usize];
                    self.set_node(Node::read(node));
                }
            }
            Object::ServiceCidr(cidr) => self.apply_cidr(cidr, meta),
        }
    }

    fn apply_service(&mut self, object: &api::Service, meta: &api::ObjectMeta) {
        let name = ServiceName::new(&meta.namespace, &meta.name);
        let ours = meta.labels.get(PROXY_NAME).map(String::as_str) == self.identity.proxy_name.as_deref();
        let read = if ours { ingest::read_service(object) } else { Ok(None) };
        match read {
            Ok(service) => {
                // A fault that was mended may have covered a conflict, which planning finds again.
                if self.forgive(Kind::Service, name.as_str()) {
                    self.dirty.insert(name.clone());
                }
                self.set_service(&name, service);
            }
            Err(fault) => self.reject(Kind::Service, meta, name.as_str(), fault),
        }
        let generation = self.generation[Kind::Service as usize];
        if let Some(entry) = self.services.get_mut(&name) {
            entry.generation = generation;
        }
    }

    fn set_service(&mut self, name: &ServiceName, service: Option<Service>) {
        let entry = self.services.entry(name.clone()).or_default();
        if entry.service == service {
            self.prune(name);
            return;
        }
        let old = std::mem::replace(&mut entry.service, service);
        if self.started {
            let risen = self.claims.update(name, old.as_ref(), self.services[name].service.as_ref());
            self.dirty.extend(risen);
        }
        self.pending.service_events += 1;
        self.dirty.insert(name.clone());
        self.prune(name);
    }

    fn apply_slice(&mut self, object: &api::EndpointSlice, meta: &api::ObjectMeta) {
        let key = format!("{}/{}", meta.namespace, meta.name);
        let service = meta.labels.get(SERVICE_NAME).filter(|name| !name.is_empty());
        let headless = meta.labels.contains_key(HEADLESS);
        let read = match service {
            Some(_) if !headless => {
                let (zone_lists, port_names) = (&mut self.zone_lists, &mut self.port_names);
                ingest::read_slice(
                    object,
                    &self.identity.node,
                    |zones| intern_zones(zone_lists, zones),
                    |name| intern(port_names, name),
                )
            }
            _ => Ok(None),
        };
        let name = ServiceName::new(&meta.namespace, service.map_or("", String::as_str));
        match read {
            Ok(slice) => {
                self.forgive(Kind::EndpointSlice, &key);
                if self.set_slice(&key, slice.map(|s| (name, s))) {
                    let trigger = meta.annotations.get(TRIGGER_TIME);
                    self.pending.triggers.extend(trigger.and_then(|t| crate::time::parse_rfc3339(t)));
                }
            }
            Err(fault) => self.reject(Kind::EndpointSlice, meta, &key, fault),
        }
        let generation = self.generation[Kind::EndpointSlice as usize];
        if let Some(entry) = self.slices.get_mut(key.as_str()) {
            entry.generation = generation;
        }
    }

    /// Puts a slice in place of what was there; false if it is the same.
    fn set_slice(&mut self, key: &str, new: Option<(ServiceName, Slice)>) -> bool {
        let old = self.slices.get(key);
        if old.map(|e| (&e.service, &e.slice)) == new.as_ref().map(|(n, s)| (n, s)) {
            return false;
        }
        if let Some((old_key, old)) = self.slices.remove_entry(key) {
            if let Some(entry) = self.services.get_mut(&old.service) {
                entry.slices.retain(|k| *k != old_key);
            }
            self.dirty.insert(old.service.clone());
            self.prune(&old.service);
        }
        if let Some((service, slice)) = new {
            let key: Arc<str> = key.into();
            let slices = &mut self.services.entry(service.clone()).or_default().slices;
            // In order of name: where two slices contradict each other, who came first must not matter.
            let at = slices.partition_point(|k| *k < key);
            slices.insert(at, key.clone());
            self.dirty.insert(service.clone());
            self.slices.insert(key, SliceEntry { service, slice, generation: 0 });
        }
        self.pending.endpoint_events += 1;
        true
    }

    fn apply_cidr(&mut self, object: &api::ServiceCidr, meta: &api::ObjectMeta) {
        let generation = self.generation[Kind::ServiceCidr as usize];
        if let Some(entry) = self.cidrs.get_mut(&meta.name) {
            entry.generation = generation;
        }
        let mut ranges = Vec::new();
        for (i, text) in object.spec.iter().flat_map(|s| &s.cidrs).enumerate() {
            match text.parse::<IpNet>() {
                Ok(range) => ranges.push(range.trunc()),
                Err(_) => {
                    let reason = format!("{text:?} is not a CIDR such as 10.96.0.0/12");
                    let fault = Fault::new("bad-address", format!("spec.cidrs[{i}]"), reason);
                    return self.reject(Kind::ServiceCidr, meta, &meta.name, fault);
                }
            }
        }
        self.forgive(Kind::ServiceCidr, &meta.name);
        if self.cidrs.get(&meta.name).is_none_or(|e| e.ranges != ranges) {
            self.cidrs.insert(meta.name.clone(), CidrEntry { ranges, generation });
            self.pending.service_cidrs = Some(self.service_cidrs());
        }
    }

    fn set_node(&mut self, node: Node) {
        self.listed[Kind::Node as usize].get_or_insert(0);
        if node.zone != self.node.zone || node.addresses != self.node.addresses {
            // Zones decide which hinted endpoints are used; addresses, whether a source range admits the node.
            let slices = &self.slices;
            let touched = self.services.iter().filter(|(_, entry)| {
                entry.service.as_ref().is_some_and(|s| !s.source_ranges.is_empty())
                    || entry.slices.iter().any(|k| slices[k].slice.endpoints.iter().any(|e| e.zones != 0))
            });
            self.dirty.extend(touched.map(|(name, _)| name.clone()));
        }
        if node != self.node {
            self.pending.node = Some(node.clone());
            self.node = node;
        }
    }

    fn delete(&mut self, kind: Kind, namespace: &str, name: &str) {
        let key = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        self.forgive(kind, &key);
        match kind {
            Kind::Service => self.set_service(&ServiceName::new(namespace, name), None),
            Kind::EndpointSlice => drop(self.set_slice(&key, None)),
            Kind::Node if name == self.identity.node => {
                self.set_node(Node { state: NodeState::Missing, ..self.node.clone() });
            }
            Kind::Node => {}
            Kind::ServiceCidr => {
                if self.cidrs.remove(name).is_some() {
                    self.pending.service_cidrs = Some(self.service_cidrs());
                }
            }
        }
    }

    /// A list is complete: what it did not mention is gone.
    fn list_done(&mut self, kind: Kind) {
        let now = self.generation[kind as usize];
        self.listed[kind as usize] = Some(now);
        match kind {
            Kind::Service => {
                let gone = self.services.iter().filter(|(_, e)| e.service.is_some() && e.generation != now);
                for name in gone.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
                    self.set_service(&name, None);
                }
            }
            Kind::EndpointSlice => {
                let gone = self.slices.iter().filter(|(_, e)| e.generation != now);
                for key in gone.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                    self.set_slice(&key, None);
                }
            }
            Kind::Node => {
                if self.node.state != NodeState::Missing && self.node_generation != now {
                    self.set_node(Node { state: NodeState::Missing, ..self.node.clone() });
                }
            }
            Kind::ServiceCidr => {
                let before = self.cidrs.len();
                self.cidrs.retain(|_, e| e.generation == now);
                if self.cidrs.len() != before {
                    self.pending.service_cidrs = Some(self.service_cidrs());
                }
            }
        }
        // Conflicts are not found in a list, but when plans are made.
        self.rejections.retain(|(k, _), r| *k != kind || r.generation == now || r.is_conflict());
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

    fn plan(&mut self, name: ServiceName) -> ServiceChange {
        let nothing = |name| ServiceChange { name, plans: [None, None] };
        self.health.remove(&name);
        let entry = self.services.get(&name);
        let lost = entry.and_then(|e| self.claims.lost(&name, e.service.as_ref()?));
        if lost.is_none() {
            let key = (Kind::Service, name.to_string());
            if self.rejections.get(&key).is_some_and(Rejection::is_conflict) {
                self.rejections.remove(&key);
            }
        }
        let Some(entry) = self.services.get(&name) else { return nothing(name) };
        let Some(service) = &entry.service else { return nothing(name) };
        if let Some((field, reason)) = lost {
            let meta = api::ObjectMeta {
                namespace: name.namespace().to_owned(),
                name: name.name().to_owned(),
                uid: service.uid.to_string(),
                ..Default::default()
            };
            self.reject(Kind::Service, &meta, name.as_str(), Fault::new(CONFLICT, field, reason));
            return nothing(name);
        }
        let slices: Vec<&Slice> = entry.slices.iter().map(|key| &self.slices[key].slice).collect();
        if let Some(port) = service.health_check {
            let local_endpoints =
                Family::ALL.map(|f| local_ready(service, &slices, f)).into_iter().max().unwrap_or(0);
            self.health.insert(name.clone(), HealthCheck { port, local_endpoints });
        }
        let plans = Family::ALL.map(|family| self.service_plan(&name, service, &slices, family));
        ServiceChange { name, plans }
    }

    fn service_plan(
        &self,
        name: &ServiceName,
        service: &Service,
        slices: &[&Slice],
        family: Family,
    ) -> Option<ServicePlan> {
        if !service.cluster_ips.iter().any(|ip| Family::of(*ip) == family) {
            return None;
        }
        let ports = service.ports.iter().map(|port| self.port_plan(service, port, slices, family)).collect();
        Some(ServicePlan { name: name.clone(), family, ports })
    }

    fn port_plan(&self, service: &Service, port: &Port, slices: &[&Slice], family: Family) -> PortPlan {
        let all = select::candidates(slices.iter().copied(), family, &port.name, port.protocol);
        let cluster = select::cluster(&all, |zones| self.in_zone(zones));
        let wants_local = [service.internal, service.external].contains(&TrafficPolicy::Local);
        let local = if wants_local { select::local(&all) } else { Box::default() };
        let used = |t: &_| cluster.binary_search(t).is_ok() || local.binary_search(t).is_ok();
        let udp = port.protocol == Protocol::Udp;
        let source_ranges: Box<[IpNet]> =
            service.source_ranges.iter().filter(|r| Family::of(r.addr()) == family).copied().collect();
        PortPlan {
            name: port.name.clone(),
            protocol: port.protocol,
            frontends: frontends(service, port, family),
            also_serving: if udp { select::also_serving(&all, used) } else { Box::default() },
            here: select::here(&all, used),
            internal: service.internal,
            external: service.external,
            affinity: service.affinity,
            admits_node: source_ranges.iter().any(|r| self.node.addresses.iter().any(|a| r.contains(a))),
            source_ranges,
            cluster,
            local,
        }
    }

    fn in_zone(&self, zones: u16) -> bool {
        let Some(zone) = &self.node.zone else { return false };
        let list = (zones as usize).checked_sub(1).and_then(|i| self.zone_lists.get(i));
        list.is_some_and(|zones| zones.iter().any(|z| **z == **zone))
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

fn local_ready(service: &Service, slices: &[&Slice], family: Family) -> usize {
    let mut ips = HashSet::new();
    for port in &service.ports {
        let all = select::candidates(slices.iter().copied(), family, &port.name, port.protocol);
        ips.extend(select::local_ready(&all));
    }
    ips.len()
}

fn frontends(service: &Service, port: &Port, family: Family) -> Box<[Frontend]> {
    let mut all: Vec<Frontend> = Vec::new();
    let lists: [(FrontendKind, &[IpAddr]); 3] = [
        (FrontendKind::ClusterIp, &service.cluster_ips),
        (FrontendKind::LoadBalancer, &service.load_balancer_ips),
        (FrontendKind::ExternalIp, &service.external_ips),
    ];
    for (kind, ips) in lists {
        for ip in ips.iter().filter(|ip| Family::of(**ip) == family) {
            if !all.iter().any(|f| f.address == Some(*ip)) {
                all.push(Frontend { kind, address: Some(*ip), port: port.port });
            }
        }
    }
    all.extend(port.node_port.map(|port| Frontend { kind: FrontendKind::NodePort, address: None, port }));
    all.into()
}

fn intern(names: &mut HashSet<PortName>, name: &str) -> PortName {
    if let Some(known) = names.get(name) {
        return known.clone();
    }
    let new: PortName = name.into();
    names.insert(new.clone());
    new
}

/// A number for a list of zones, from 1; there are few distinct lists in a cluster.
fn intern_zones(lists: &mut Vec<Box<[Box<str>]>>, zones: &[api::Named]) -> u16 {
    if zones.is_empty() {
        return 0;
    }
    let same =
        |list: &[Box<str>]| list.len() == zones.len() && list.iter().zip(zones).all(|(a, b)| **a == *b.name);
    let known = lists.iter().position(|list| same(list));
    let index = known.unwrap_or_else(|| {
        lists.push(zones.iter().map(|z| z.name.as_str().into()).collect());
        lists.len() - 1
    });
    u16::try_from(index + 1).unwrap_or(u16::MAX)
}
