//! From where a client wanted to go to the port of a Service.

use crate::balance::{Port, PortId};
use crate::clock::Moment;
use crate::redirect::carries;
use portway_dataplane::UserspaceSettings;
use portway_model::{Family, PortPlan, Protocol, ServiceName, ServicePlan};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A frontend: its address, none for a node port, and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct At {
    protocol: Protocol,
    family: Family,
    address: Option<IpAddr>,
    port: u16,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Routes {
    at: HashMap<At, Arc<Port>>,
    services: HashMap<(ServiceName, Family), Entry>,
    /// What nothing will lead to once the rules are in place, and who had it.
    obsolete: Vec<(At, Arc<Port>)>,
}

/// What a Service has in one family.
#[derive(Debug, Default)]
struct Entry {
    ports: Vec<Arc<Port>>,
    at: Vec<At>,
}

impl Routes {
    /// Whose connection it is that wanted to go there.
    pub fn find(&self, protocol: Protocol, wanted: SocketAddr) -> Option<&Arc<Port>> {
        let (family, port) = (Family::of(wanted.ip()), wanted.port());
        let at = |address| self.at.get(&At { protocol, family, address, port });
        at(Some(wanted.ip())).or_else(|| at(None))
    }

    /// Takes on a plan: what is new can be found at once, what is gone only goes with [`Routes::settle`]. Whether
    /// endpoints left that have connections comes back.
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
            let here = |p: &PortPlan| p.name == port.id.port && p.protocol == port.id.protocol;
            plan.is_some_and(|plan| plan.ports.iter().any(here))
        };
        let gone: Vec<&Arc<Port>> = old.ports.iter().filter(|port| !stays(port)).collect();
        for port in &gone {
            drains |= port.retire(settings.drain_timeout, now);
        }
        for (plan, port_plan) in plan.iter().flat_map(|p| p.ports.iter().map(move |port| (*p, port))) {
            let (port, protocol) = (port_plan.name.clone(), port_plan.protocol);
            if !carries(protocol) {
                continue;
            }
            let id = PortId { service: name.clone(), port, protocol, family };
            let known = old.ports.iter().find(|p| p.id == id).cloned();
            let port = known.unwrap_or_else(|| Arc::new(Port::new(id)));
            // One that was renamed goes on with the endpoints it had.
            let renamed = gone.iter().filter(|other| other.id.protocol == protocol);
            renamed.for_each(|other| port.adopt(other));
            drains |= port.update(plan, port_plan, settings, now);
            for frontend in &port_plan.frontends {
                let at = At { protocol, family, address: frontend.address, port: frontend.port };
                self.at.insert(at, port.clone());
                new.at.push(at);
            }
            new.ports.push(port);
        }
        for at in old.at.into_iter().filter(|at| !new.at.contains(at)) {
            let had = self.at.get(&at).filter(|port| port.id.service == *name);
            self.obsolete.extend(had.map(|port| (at, port.clone())));
        }
        if !new.ports.is_empty() {
            self.services.insert((name.clone(), family), new);
        }
        drains
    }

    /// Whether a Service has a port for UDP.
    pub fn has_udp(&self, name: &ServiceName, family: Family) -> bool {
        let entry = self.services.get(&(name.clone(), family));
        entry.is_some_and(|entry| entry.ports.iter().any(|port| port.id.protocol == Protocol::Udp))
    }

    /// Services of a family that are not among these.
    pub fn others(&self, family: Family, these: &HashSet<ServiceName>) -> Vec<ServiceName> {
        let other = |(name, of): &&(ServiceName, Family)| *of == family && !these.contains(name);
        self.services.keys().filter(other).map(|(name, _)| name.clone()).collect()
    }

    /// The rules of a family are in place: nothing leads any more to what is gone.
    pub fn settle(&mut self, family: Family) {
        for (at, port) in self.obsolete.extract_if(.., |(at, _)| at.family == family) {
            let key = (port.id.service.clone(), at.family);
            let is_back = self.services.get(&key).is_some_and(|entry| entry.at.contains(&at));
            if !is_back && self.at.get(&at).is_some_and(|now| Arc::ptr_eq(now, &port)) {
                self.at.remove(&at);
            }
        }
    }

    /// All ports, for whoever counts.
    pub fn ports(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.services.values().flat_map(|entry| &entry.ports)
    }
}

#[cfg(test)]
mod tests;
