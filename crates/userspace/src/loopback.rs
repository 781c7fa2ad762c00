//! Listeners at the node ports of loopback addresses.
//!
//! The kernel does not translate packets between a loopback address and a pod's (they would be martians, and the sysctl
//! that allows them opens loopback services to the network: CVE-2020-8558). So the relay listens at 127.0.0.1 and ::1
//! itself, at every node port that has an endpoint. Nothing outside of the node can reach these listeners.

use crate::listeners::Listener;
use crate::redirect::EndpointScope;
use portway_model::{Family, Protocol, ServiceName};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The listeners of all Services.
#[derive(Debug, Default)]
pub(crate) struct Loopback {
    services: HashMap<(ServiceName, Family), Vec<NodePort>>,
    /// The number of listeners that could not be opened so far, by family.
    failures: [u64; 2],
    /// Listeners that the present changes closed: another Service may take the port over.
    closed: HashMap<(Family, Protocol, u16), Arc<Listener>>,
}

/// The listener of a node port.
#[derive(Debug)]
struct NodePort {
    protocol: Protocol,
    port: u16,
    /// None if it could not be opened.
    listener: Option<Arc<Listener>>,
}

/// The numbers of these listeners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopbackCounts {
    /// Open listeners, by family.
    pub listeners: [u64; 2],
    /// Listeners that could not be opened, for example because another process has the port; by family.
    pub failures: [u64; 2],
    /// Connections that were accepted.
    pub accepted: u64,
}

/// The listeners that a change opened and closed.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) opened: Vec<Arc<Listener>>,
    pub(crate) closed: Vec<Arc<Listener>>,
}

impl Changed {
    pub(crate) fn is_empty(&self) -> bool {
        self.opened.is_empty() && self.closed.is_empty()
    }
}

impl Loopback {
    /// Makes these the node ports of a Service.
    pub(crate) fn change(
        &mut self,
        name: &ServiceName,
        family: Family,
        wanted: &[(Protocol, u16)],
        changed: &mut Changed,
    ) {
        let key = (name.clone(), family);
        let old = self.services.remove(&key).unwrap_or_default();
        let is_wanted = |p: &NodePort| wanted.contains(&(p.protocol, p.port));
        let (mut ports, removed): (Vec<NodePort>, Vec<NodePort>) = old.into_iter().partition(is_wanted);
        for NodePort { protocol, port, listener } in removed {
            if let Some(listener) = listener {
                changed.closed.push(listener.clone());
                self.closed.insert((family, protocol, port), listener);
            }
        }
        for (protocol, port) in wanted {
            if !ports.iter().any(|p| (p.protocol, p.port) == (*protocol, *port)) {
                ports.push(NodePort { protocol: *protocol, port: *port, listener: None });
            }
        }
        self.open(name, family, &mut ports, changed, true);
        if !ports.is_empty() {
            self.services.insert(key, ports);
        }
    }

    /// Tries again to open the listeners that could not be opened.
    pub(crate) fn retry(&mut self, changed: &mut Changed) {
        let mut services = std::mem::take(&mut self.services);
        for ((name, family), ports) in &mut services {
            self.open(name, *family, ports, changed, false);
        }
        self.services = services;
    }

    fn open(
        &mut self,
        name: &ServiceName,
        family: Family,
        ports: &mut [NodePort],
        changed: &mut Changed,
        warn: bool,
    ) {
        for node_port in ports.iter_mut().filter(|p| p.listener.is_none()) {
            let NodePort { protocol, port, .. } = *node_port;
            if let Some(listener) = self.closed.remove(&(family, protocol, port)) {
                node_port.listener = Some(listener.clone());
                changed.opened.push(listener);
                continue;
            }
            match Listener::open(address(family), port, protocol, EndpointScope::Cluster) {
                Ok(listener) => {
                    let listener = Arc::new(listener);
                    node_port.listener = Some(listener.clone());
                    changed.opened.push(listener);
                }
                Err(error) => {
                    self.failures[family as usize] += 1;
                    if warn {
                        let address = std::net::SocketAddr::new(address(family), port);
                        tracing::warn!(service = %name, %protocol, "cannot listen at node port {address}: {error}");
                    }
                }
            }
        }
    }

    /// The present changes are complete: no Service takes a closed listener over any more.
    pub(crate) fn changes_end(&mut self) {
        self.closed.clear();
    }

    /// Closes all listeners.
    pub(crate) fn close(&mut self, changed: &mut Changed) {
        let all = std::mem::take(&mut self.services).into_values().flatten();
        changed.closed.extend(all.filter_map(|p| p.listener));
    }

    /// Whether a listener could not be opened.
    pub(crate) fn lacks_listeners(&self) -> bool {
        self.services.values().flatten().any(|p| p.listener.is_none())
    }

    pub(crate) fn counts(&self) -> LoopbackCounts {
        let mut counts = LoopbackCounts { failures: self.failures, ..LoopbackCounts::default() };
        for ((_, family), ports) in &self.services {
            counts.listeners[*family as usize] +=
                ports.iter().filter(|p| p.listener.is_some()).count() as u64;
        }
        counts
    }
}

/// The loopback address of a family.
fn address(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_moves_to_another_service_keeps_its_listener() {
        let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let (a, b) = (ServiceName::new("default", "a"), ServiceName::new("default", "b"));
        let (mut loopback, mut changed) = (Loopback::default(), Changed::default());
        loopback.change(&a, Family::V4, &[(Protocol::Tcp, port)], &mut changed);
        // Worker threads hold listeners until they have seen the change.
        let held = changed.opened[0].clone();
        loopback.change(&b, Family::V4, &[(Protocol::Tcp, port)], &mut changed);
        assert!(loopback.lacks_listeners(), "the other Service still has it");
        loopback.change(&a, Family::V4, &[], &mut changed);
        let mut retried = Changed::default();
        loopback.retry(&mut retried);
        assert!(!loopback.lacks_listeners());
        assert!(Arc::ptr_eq(&retried.opened[0], &held));
        loopback.changes_end();
        assert_eq!(loopback.counts().listeners, [1, 0]);
    }
}
