//! Taking in what happened: each kind of object, new, changed, gone, or missing from a list.

use super::{CidrEntry, Cluster, HEADLESS, PROXY_NAME, SERVICE_NAME, SliceEntry, TRIGGER_TIME};
use crate::api::{self, Kind, Object};
use crate::ingest::{self, Fault, Service, Slice};
use crate::node::{Node, NodeState};
use crate::types::{PortName, ServiceName};
use ipnet::IpNet;
use std::collections::HashSet;
use std::sync::Arc;

impl Cluster {
    pub(super) fn apply_object(&mut self, object: &Object) {
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
                Ok(range) if range.prefix_len() > 0 => ranges.push(range.trunc()),
                Ok(range) => {
                    let reason =
                        format!("{range} is everything; unallocated addresses of it would be dropped");
                    let fault = Fault::new("bad-value", format!("spec.cidrs[{i}]"), reason);
                    return self.reject(Kind::ServiceCidr, meta, &meta.name, fault);
                }
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

    pub(super) fn delete(&mut self, kind: Kind, namespace: &str, name: &str) {
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
    pub(super) fn list_done(&mut self, kind: Kind) {
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
