//! Deletes UDP conntrack entries that no longer match a Service.
//!
//! UDP has no end of a connection: as long as the client keeps sending, conntrack translates a flow to the endpoint
//! that was selected first, or not at all if the flow began while the Service had no endpoints. After a change, the
//! entries of the changed frontends whose endpoint is no longer serving are deleted, and the next packet starts a new
//! flow. Entries with a serving endpoint are left alone, so a restart of the agent interrupts no flow.
//!
//! Every mode uses [`Checks`]: it collects the changed frontends, and [`Checks::delete_stale`] deletes the entries
//! once the rules are written.

use portway_dataplane::{NodePortAddresses, Report};
use portway_model::{PortPlan, Protocol, ServiceName, ServicePlan, Target};
use portway_netlink::conntrack::{self, Filter, Flow, UDP};
use portway_netlink::route::Rtnetlink;
use portway_netlink::{Result, Socket};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

/// The kernel operations that the checks need.
pub trait Tracker {
    /// The flows that match the filter; flows of the same protocol that do not match may be included.
    fn flows(&mut self, filter: Filter) -> Result<Vec<Flow>>;
    /// Deletes the conntrack entry of a flow; false if it did not exist any more.
    fn delete_flow(&mut self, flow: &Flow) -> Result<bool>;
    /// The addresses of this node.
    fn addresses(&mut self) -> Result<Vec<IpAddr>>;
}

/// The real kernel, for one family.
#[derive(Debug)]
pub struct Kernel<'s> {
    /// A netfilter socket.
    pub socket: &'s mut Socket,
    /// IPv6 instead of IPv4.
    pub v6: bool,
}

impl Tracker for Kernel<'_> {
    fn flows(&mut self, filter: Filter) -> Result<Vec<Flow>> {
        conntrack::list(self.socket, self.v6, filter)
    }

    fn delete_flow(&mut self, flow: &Flow) -> Result<bool> {
        conntrack::delete(self.socket, flow)
    }

    fn addresses(&mut self) -> Result<Vec<IpAddr>> {
        Ok(Rtnetlink::open()?.addresses()?.into_iter().map(|a| a.net.addr()).collect())
    }
}

/// The address of a frontend, none for a node port, and its port.
type FrontendKey = (Option<IpAddr>, u16);

/// The UDP frontends whose flows have to be checked once the rules are written. They are kept until a check succeeds:
/// if the kernel refuses a change, a later sync writes it, and the flows are checked then.
#[derive(Debug, Default)]
pub struct Checks {
    frontends: HashSet<FrontendKey>,
    services: HashSet<ServiceName>,
}

impl Checks {
    /// Adds the UDP frontends of the ports that differ between the `old` and the `new` plan of a Service.
    pub fn change(&mut self, name: &ServiceName, old: Option<&ServicePlan>, new: Option<&ServicePlan>) {
        let (before, now) = (udp_ports(old), udp_ports(new));
        let only_in = |ports: &[&PortPlan], others: &[&PortPlan]| -> Vec<FrontendKey> {
            let changed = ports.iter().filter(|p| !others.contains(p));
            changed.flat_map(|p| p.frontends.iter().map(|f| (f.address, f.port))).collect()
        };
        let changed = [only_in(&before, &now), only_in(&now, &before)].concat();
        if !changed.is_empty() {
            self.frontends.extend(changed);
            self.services.insert(name.clone());
        }
    }

    /// Whether there are no frontends to check.
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty()
    }

    /// Deletes the flows that have no serving endpoint in `plans`, and reports their number. After an error, the
    /// next call repeats the check.
    pub fn delete_stale(
        &mut self,
        kernel: &mut impl Tracker,
        plans: &HashMap<ServiceName, ServicePlan>,
        node_ports: &NodePortAddresses,
        report: &mut Report,
    ) {
        if self.is_empty() {
            return;
        }
        let started = Instant::now();
        match self.run(kernel, plans, node_ports) {
            Ok(deleted) => {
                report.flows_deleted = deleted;
                report.flows_took = Some(started.elapsed());
                *self = Checks::default();
            }
            Err(e) => report.warnings.push(format!("stale UDP conntrack entries could not be deleted: {e}")),
        }
    }

    /// Returns the number of deleted flows.
    fn run(
        &self,
        kernel: &mut impl Tracker,
        plans: &HashMap<ServiceName, ServicePlan>,
        node_ports: &NodePortAddresses,
    ) -> Result<usize> {
        // With a single frontend that has an address, the kernel filters the flows.
        let mut frontends = self.frontends.iter();
        let destination = match (frontends.next(), frontends.next()) {
            (Some((Some(address), port)), None) => Some((*address, *port)),
            _ => None,
        };
        let has_node_port = self.frontends.iter().any(|(address, _)| address.is_none());
        let node_addresses = if has_node_port { kernel.addresses()? } else { Vec::new() };
        let allowed = Allowed(self.allowed(plans));
        let mut deleted = 0;
        for flow in kernel.flows(Filter { protocol: UDP, destination })? {
            if allowed.is_stale(&flow, |ip| node_addresses.contains(&ip) && node_ports.contains(ip)) {
                deleted += usize::from(kernel.delete_flow(&flow)?);
            }
        }
        Ok(deleted)
    }

    /// The endpoints that flows of each frontend may have.
    fn allowed(&self, plans: &HashMap<ServiceName, ServicePlan>) -> HashMap<FrontendKey, Vec<Target>> {
        let mut allowed: HashMap<FrontendKey, Vec<Target>> =
            self.frontends.iter().map(|frontend| (*frontend, Vec::new())).collect();
        for port in self.services.iter().flat_map(|name| udp_ports(plans.get(name))) {
            for frontend in &port.frontends {
                if let Some(list) = allowed.get_mut(&(frontend.address, frontend.port)) {
                    list.extend(port.cluster.iter().chain(&port.local).chain(&port.also_serving));
                }
            }
        }
        allowed
    }
}

fn udp_ports(plan: Option<&ServicePlan>) -> Vec<&PortPlan> {
    plan.into_iter().flat_map(|p| p.ports.iter()).filter(|p| p.protocol == Protocol::Udp).collect()
}

/// The endpoints that flows may have, by frontend.
struct Allowed(HashMap<FrontendKey, Vec<Target>>);

impl Allowed {
    fn is_stale(&self, flow: &Flow, has_node_ports: impl Fn(IpAddr) -> bool) -> bool {
        let to = (flow.original.destination, flow.original.destination_port);
        let target = Target { ip: flow.reply.source, port: flow.reply.source_port };
        match self.0.get(&(Some(to.0), to.1)) {
            Some(targets) => !targets.contains(&target),
            None => {
                let node_port = self.0.get(&(None, to.1));
                node_port.is_some_and(|targets| has_node_ports(to.0) && !targets.contains(&target))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_netlink::conntrack::Tuple;

    fn flow(to: &str, endpoint: &str) -> Flow {
        let (to, endpoint): (std::net::SocketAddr, std::net::SocketAddr) =
            (to.parse().unwrap(), endpoint.parse().unwrap());
        let tuple = |d: std::net::SocketAddr| Tuple {
            source: "10.9.9.9".parse().unwrap(),
            destination: d.ip(),
            protocol: UDP,
            source_port: 999,
            destination_port: d.port(),
        };
        let mut reply = tuple(endpoint);
        std::mem::swap(&mut reply.source, &mut reply.destination);
        std::mem::swap(&mut reply.source_port, &mut reply.destination_port);
        Flow { original: tuple(to), reply, zone: 0, translated: true }
    }

    #[test]
    fn flows_of_a_frontend_to_other_than_its_endpoints_are_stale() {
        let target = Target { ip: "10.1.1.1".parse().unwrap(), port: 5353 };
        let vip = (Some("10.96.0.10".parse().unwrap()), 53);
        let allowed = Allowed([(vip, vec![target]), ((None, 30053), vec![target])].into());
        let node = |ip: IpAddr| ip == "192.168.1.1".parse::<IpAddr>().unwrap();
        let table = [
            ("10.96.0.10:53", "10.1.1.1:5353", false, "translated to an endpoint"),
            ("10.96.0.10:53", "10.1.1.2:5353", true, "its endpoint was removed"),
            ("10.96.0.10:53", "10.96.0.10:53", true, "began while there were no endpoints"),
            ("10.96.0.10:54", "10.1.1.2:5353", false, "another port"),
            ("192.168.1.1:30053", "10.1.1.1:5353", false, "node port, translated to an endpoint"),
            ("192.168.1.1:30053", "10.1.1.2:5353", true, "node port, its endpoint was removed"),
            ("8.8.8.8:30053", "8.8.8.8:30053", false, "the same port of another host"),
        ];
        for (to, endpoint, stale, why) in table {
            assert_eq!(allowed.is_stale(&flow(to, endpoint), node), stale, "{why}");
        }
    }
}
