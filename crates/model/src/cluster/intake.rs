//! Applies events to the state: objects of each resource that are new, changed, deleted, or missing from a list.

use super::{Cluster, HEADLESS, PROXY_NAME, SERVICE_NAME, ServiceSlice, TRIGGER_TIME};
use crate::api;
use crate::ingest::{self, Fault, Service};
use crate::node::{Node, NodeState};
use crate::types::{Family, PortName, ServiceName};
use ipnet::IpNet;
use portway_api::time::parse_rfc3339;
use portway_api::{Applied, Event, Resource};
use std::collections::HashSet;
use std::sync::Arc;

impl Cluster {
    pub(super) fn service_event(&mut self, event: Event<api::Service>) {
        match event {
            Event::Init => self.services.begin_list(),
            Event::Apply(object) => self.apply_service(&object),
            Event::Delete { namespace, name } => {
                let name = ServiceName::new(&namespace, &name);
                self.clear_faults(api::Service::TYPE, name.as_str());
                self.set_service(&name, None);
            }
            Event::InitDone => {
                for name in self.services.finish_list() {
                    self.set_service(&name, None);
                }
                self.drop_old_rejections(api::Service::TYPE, self.services.generation());
            }
        }
    }

    fn apply_service(&mut self, object: &api::Service) {
        let empty = api::ObjectMeta::default();
        let meta = object.metadata.as_ref().unwrap_or(&empty);
        let name = ServiceName::new(&meta.namespace, &meta.name);
        let selected = meta.labels.get(PROXY_NAME).map(String::as_str) == self.identity.proxy_name.as_deref();
        let mut faults = Vec::new();
        let mut service = if selected { ingest::read_service(object, &mut faults) } else { None };
        if let Some(service) =
            service.as_mut().filter(|s| self.ignores_external_ips && !s.external_ips.is_empty())
        {
            service.external_ips = [].into();
            let reason = "not programmed: the feature gate AllowServiceExternalIPs is off";
            faults.push(Fault::new("forbidden", "spec.externalIPs", reason));
        }
        let (generation, partial) = (self.services.generation(), service.is_some());
        self.set_faults(api::Service::TYPE, generation, meta, name.as_str(), faults, partial);
        self.set_service(&name, service);
    }

    fn set_service(&mut self, name: &ServiceName, service: Option<Service>) {
        let old = match service {
            Some(service) => match self.services.apply(name.clone(), service) {
                Applied::Unchanged => return,
                Applied::Inserted => None,
                Applied::Replaced(old) => Some(old),
            },
            None => match self.services.delete(name) {
                Some((_, old)) => Some(old),
                None => return,
            },
        };
        if self.started {
            let affected = self.claims.update(name, old.as_ref(), self.services.get(name));
            affected.into_iter().for_each(|name| self.services.mark_dirty(name));
        }
        self.pending.service_events += 1;
        self.services.mark_dirty(name.clone());
    }

    pub(super) fn slice_event(&mut self, event: Event<api::EndpointSlice>) {
        match event {
            Event::Init => self.slices.begin_list(),
            Event::Apply(object) => self.apply_slice(&object),
            Event::Delete { namespace, name } => {
                let key = format!("{namespace}/{name}");
                self.clear_faults(api::EndpointSlice::TYPE, &key);
                self.set_slice(&key, None);
            }
            Event::InitDone => {
                for key in self.slices.finish_list() {
                    self.set_slice(&key, None);
                }
                self.drop_old_rejections(api::EndpointSlice::TYPE, self.slices.generation());
            }
        }
    }

    fn apply_slice(&mut self, object: &api::EndpointSlice) {
        let empty = api::ObjectMeta::default();
        let meta = object.metadata.as_ref().unwrap_or(&empty);
        let key = format!("{}/{}", meta.namespace, meta.name);
        let service = meta.labels.get(SERVICE_NAME).filter(|name| !name.is_empty());
        let headless = meta.labels.contains_key(HEADLESS);
        let mut faults = Vec::new();
        let slice = match service {
            Some(service) if !headless => {
                let (zone_lists, port_names) = (&mut self.zone_lists, &mut self.port_names);
                let slice = ingest::read_slice(
                    object,
                    &self.identity.node,
                    |zones| intern_zones(zone_lists, zones),
                    |name| intern(port_names, name),
                    &mut faults,
                );
                let service = ServiceName::new(&meta.namespace, service);
                slice.map(|slice| ServiceSlice { service, slice })
            }
            _ => None,
        };
        let (generation, partial) = (self.slices.generation(), slice.is_some());
        self.set_faults(api::EndpointSlice::TYPE, generation, meta, &key, faults, partial);
        if self.set_slice(&key, slice) {
            let trigger = meta.annotations.get(TRIGGER_TIME).and_then(|t| parse_rfc3339(t));
            let family = Family::ALL.into_iter().find(|family| object.address_type == family.to_string());
            self.pending
                .triggers
                .extend(family.zip(trigger).map(|(f, (seconds, nanos))| (f, seconds, nanos)));
        }
    }

    /// Replaces or deletes a slice; false if nothing changed.
    fn set_slice(&mut self, key: &str, new: Option<ServiceSlice>) -> bool {
        if self.slices.get(key) == new.as_ref() {
            self.slices.keep(key);
            return false;
        }
        let key = match self.slices.delete(key) {
            Some((key, old)) => {
                self.unlink_slice(&old.service, &key);
                self.services.mark_dirty(old.service);
                key
            }
            None => key.into(),
        };
        if let Some(new) = new {
            self.link_slice(&new.service, &key);
            self.services.mark_dirty(new.service.clone());
            self.slices.apply(key, new);
        }
        self.pending.endpoint_events += 1;
        true
    }

    /// Adds a slice to its Service. Slices are in order of name, so that plans do not depend on the order of arrival
    /// where two slices contradict each other.
    fn link_slice(&mut self, service: &ServiceName, key: &Arc<str>) {
        let slices = self.slices_of.entry(service.clone()).or_default();
        let mut keys = std::mem::take(slices).into_vec();
        let at = keys.partition_point(|k| k < key);
        keys.reserve_exact(1);
        keys.insert(at, Arc::clone(key));
        *slices = keys.into_boxed_slice();
    }

    fn unlink_slice(&mut self, service: &ServiceName, key: &Arc<str>) {
        let Some(slices) = self.slices_of.get_mut(service) else { return };
        let mut keys = std::mem::take(slices).into_vec();
        keys.retain(|k| k != key);
        if keys.is_empty() {
            self.slices_of.remove(service);
        } else {
            *slices = keys.into_boxed_slice();
        }
    }

    pub(super) fn cidr_event(&mut self, event: Event<api::ServiceCidr>) {
        match event {
            Event::Init => self.cidrs.begin_list(),
            Event::Apply(object) => self.apply_cidr(&object),
            Event::Delete { name, .. } => {
                self.clear_faults(api::ServiceCidr::TYPE, &name);
                self.delete_cidr(&name);
            }
            Event::InitDone => {
                for name in self.cidrs.finish_list() {
                    self.delete_cidr(&name);
                }
                self.drop_old_rejections(api::ServiceCidr::TYPE, self.cidrs.generation());
            }
        }
    }

    fn apply_cidr(&mut self, object: &api::ServiceCidr) {
        let empty = api::ObjectMeta::default();
        let meta = object.metadata.as_ref().unwrap_or(&empty);
        let mut faults = Vec::new();
        let ranges = read_ranges(object, &mut faults);
        self.set_faults(
            api::ServiceCidr::TYPE,
            self.cidrs.generation(),
            meta,
            &meta.name,
            faults,
            !ranges.is_empty(),
        );
        if self.cidrs.apply(meta.name.as_str().into(), ranges) != Applied::Unchanged {
            self.pending.service_cidrs = Some(self.service_cidrs());
        }
    }

    fn delete_cidr(&mut self, name: &str) {
        if self.cidrs.delete(name).is_some() {
            self.pending.service_cidrs = Some(self.service_cidrs());
        }
    }

    pub(super) fn node_event(&mut self, event: Event<api::Node>) {
        match event {
            Event::Init => self.nodes.begin_list(),
            Event::Apply(object) => {
                if let Some(meta) = object.metadata().filter(|meta| meta.name == self.identity.node) {
                    let mut faults = Vec::new();
                    let node = Node::read(&object, &mut faults);
                    self.set_faults(api::Node::TYPE, self.nodes.generation(), meta, &meta.name, faults, true);
                    self.nodes.apply((), node.clone());
                    self.set_node(node);
                }
            }
            Event::Delete { name, .. } if name == self.identity.node => self.delete_node(),
            Event::Delete { .. } => {}
            Event::InitDone => {
                self.node_known = true;
                if !self.nodes.finish_list().is_empty() {
                    self.delete_node();
                }
                self.drop_old_rejections(api::Node::TYPE, self.nodes.generation());
            }
        }
    }

    fn delete_node(&mut self) {
        self.nodes.delete(&());
        self.set_node(Node { state: NodeState::Missing, ..self.node.clone() });
    }

    fn set_node(&mut self, node: Node) {
        self.node_known = true;
        if node.zone != self.node.zone || node.addresses != self.node.addresses {
            // The zone decides which endpoints with hints are used, the addresses whether a source range contains the
            // node.
            let limited =
                self.services.iter().filter(|(_, s)| !s.source_ranges.is_empty()).map(|(name, _)| name);
            let hinted = self.slices.iter().filter(|(_, s)| s.slice.endpoints.iter().any(|e| e.zones != 0));
            let touched: Vec<_> = limited.chain(hinted.map(|(_, s)| &s.service)).cloned().collect();
            touched.into_iter().for_each(|name| self.services.mark_dirty(name));
        }
        if node != self.node {
            self.pending.node = Some(node.clone());
            self.node = node;
        }
    }
}

fn read_ranges(object: &api::ServiceCidr, faults: &mut Vec<Fault>) -> Vec<IpNet> {
    let mut ranges = Vec::new();
    for (i, text) in object.spec.iter().flat_map(|s| &s.cidrs).enumerate() {
        let field = format!("spec.cidrs[{i}]");
        match ingest::parse_cidr(text) {
            Some(range) if range.prefix_len() > 0 => ranges.push(range),
            Some(range) => {
                let reason =
                    format!("{range} contains all addresses; packets to unallocated ones would be dropped");
                faults.push(Fault::new("bad-value", field, reason));
            }
            None => {
                let reason = format!("{text:?} is not a CIDR such as 10.96.0.0/12");
                faults.push(Fault::new("bad-address", field, reason));
            }
        }
    }
    ranges
}

fn intern(names: &mut HashSet<PortName>, name: &str) -> PortName {
    if let Some(known) = names.get(name) {
        return known.clone();
    }
    let new: PortName = name.into();
    names.insert(new.clone());
    new
}

/// The number of a list of zones, from 1, and 0 for an empty list; there are few distinct lists in a cluster.
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
