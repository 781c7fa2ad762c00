//! The routing table of the relay: finds the Service port that owns the original destination of a connection.

use crate::balance::{Port, PortId};
use crate::clock::Moment;
use crate::redirect::relays;
use portway_dataplane::UserspaceSettings;
use portway_model::{Family, PortPlan, Protocol, ServiceName, ServicePlan};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A frontend. It has no address if it is a node port, which answers at several addresses of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Destination {
    protocol: Protocol,
    family: Family,
    address: Option<IpAddr>,
    port: u16,
}

/// The routes of all Services.
#[derive(Debug, Default)]
pub struct Routes {
    by_destination: HashMap<Destination, Arc<Port>>,
    services: HashMap<(ServiceName, Family), Entry>,
    /// Routes that no rule points to after the next commit of their family, with the port that had them.
    obsolete: Vec<(Destination, Arc<Port>)>,
}

/// The ports and destinations of a Service in one family.
#[derive(Debug, Default)]
struct Entry {
    ports: Vec<Arc<Port>>,
    destinations: Vec<Destination>,
    /// The node ports that have an endpoint.
    node_ports: Vec<(Protocol, u16)>,
}

impl Routes {
    /// The Service port that owns an original destination: by its address, or as a node port.
    pub fn find(&self, protocol: Protocol, original: SocketAddr) -> Option<&Arc<Port>> {
        let (family, port) = (Family::of(original.ip()), original.port());
        let find = |address| self.by_destination.get(&Destination { protocol, family, address, port });
        find(Some(original.ip())).or_else(|| find(None))
    }

    /// Applies a plan. New routes are found at once; old ones are removed by [`Routes::commit_routes`]. Returns whether
    /// endpoints with open connections were removed.
    pub fn change(
        &mut self,
        name: &ServiceName,
        family: Family,
        plan: Option<&ServicePlan>,
        settings: &UserspaceSettings,
        now: Moment,
    ) -> bool {
        let old = self.services.remove(&(name.clone(), family)).unwrap_or_default();
        let mut new = Entry::default();
        let mut drains = false;
        let stays = |port: &Port| {
            let is_same = |p: &PortPlan| p.name == port.id.port && p.protocol == port.id.protocol;
            plan.is_some_and(|plan| plan.ports.iter().any(is_same))
        };
        let removed: Vec<&Arc<Port>> = old.ports.iter().filter(|port| !stays(port)).collect();
        for port in &removed {
            drains |= port.retire(settings.drain_timeout, now);
        }
        for (plan, port_plan) in plan.iter().flat_map(|p| p.ports.iter().map(move |port| (*p, port))) {
            let (port, protocol) = (port_plan.name.clone(), port_plan.protocol);
            if !relays(protocol) {
                continue;
            }
            let id = PortId { service: name.clone(), port, protocol, family };
            let known = old.ports.iter().find(|p| p.id == id).cloned();
            let port = known.unwrap_or_else(|| Arc::new(Port::new(id)));
            // A port that was renamed keeps its endpoints, and the endpoints keep their connections.
            let renamed = removed.iter().filter(|other| other.id.protocol == protocol);
            renamed.for_each(|other| port.take_draining_from(other));
            drains |= port.update(plan, port_plan, settings, now);
            for frontend in &port_plan.frontends {
                let (address, number) = (frontend.address, frontend.port);
                let destination = Destination { protocol, family, address, port: number };
                self.by_destination.insert(destination, port.clone());
                new.destinations.push(destination);
                if address.is_none() && !port_plan.cluster.is_empty() {
                    new.node_ports.push((protocol, number));
                }
            }
            new.ports.push(port);
        }
        for destination in old.destinations.into_iter().filter(|d| !new.destinations.contains(d)) {
            let owner = self.by_destination.get(&destination).filter(|port| port.id.service == *name);
            self.obsolete.extend(owner.map(|port| (destination, port.clone())));
        }
        if !new.ports.is_empty() {
            self.services.insert((name.clone(), family), new);
        }
        drains
    }

    /// The node ports of a Service that have an endpoint.
    pub fn node_ports(&self, name: &ServiceName, family: Family) -> &[(Protocol, u16)] {
        self.services.get(&(name.clone(), family)).map_or(&[], |entry| &entry.node_ports)
    }

    /// The Services of all families.
    pub fn services(&self) -> impl Iterator<Item = &(ServiceName, Family)> {
        self.services.keys()
    }

    /// Whether a Service has a UDP port.
    pub fn has_udp(&self, name: &ServiceName, family: Family) -> bool {
        let entry = self.services.get(&(name.clone(), family));
        entry.is_some_and(|entry| entry.ports.iter().any(|port| port.id.protocol == Protocol::Udp))
    }

    /// The Services of a family that are not in `names`.
    pub fn services_except(&self, family: Family, names: &HashSet<ServiceName>) -> Vec<ServiceName> {
        let is_other = |(name, of): &&(ServiceName, Family)| *of == family && !names.contains(name);
        self.services.keys().filter(is_other).map(|(name, _)| name.clone()).collect()
    }

    /// The rules of a family are committed: removes the routes that no rule points to.
    pub fn commit_routes(&mut self, family: Family) {
        for (destination, port) in self.obsolete.extract_if(.., |(d, _)| d.family == family) {
            let entry = self.services.get(&(port.id.service.clone(), family));
            let was_added_again = entry.is_some_and(|entry| entry.destinations.contains(&destination));
            let owner = self.by_destination.get(&destination);
            if !was_added_again && owner.is_some_and(|owner| Arc::ptr_eq(owner, &port)) {
                self.by_destination.remove(&destination);
            }
        }
    }

    /// All Service ports.
    pub fn ports(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.services.values().flat_map(|entry| &entry.ports)
    }
}

#[cfg(test)]
mod tests;
