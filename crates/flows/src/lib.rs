//! UDP conntrack entries that no longer match a Service.
//!
//! UDP has no end of connection: a flow that conntrack once led to an endpoint goes there as long as the client
//! keeps sending, and one that began while a Service had no endpoints goes on missing it. After a change, flows of
//! the frontends concerned that do not lead to an endpoint that answers are forgotten; their next packet starts
//! anew. Those that do are left alone, so a restart disturbs none.
//!
//! Every mode does this in the same way: [`Checks`] adds up what its changes concern, and [`Checks::delete_stale`] looks, once
//! the rules are in place.

use portway_dataplane::{NodePortAddresses, Report};
use portway_model::{PortPlan, Protocol, ServiceName, ServicePlan, Target};
use portway_netlink::conntrack::{self, Filter, Flow, UDP};
use portway_netlink::route::Rtnetlink;
use portway_netlink::{Result, Socket};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

/// What is asked of a kernel here.
pub trait Tracker {
    /// The tracked flows that match, and maybe others of the same protocol.
    fn flows(&mut self, filter: Filter) -> Result<Vec<Flow>>;
    /// Forgets a flow; false if it had ended.
    fn delete_flow(&mut self, flow: &Flow) -> Result<bool>;
    /// The addresses of this machine.
    fn addresses(&mut self) -> Result<Vec<IpAddr>>;
}

/// The real kernel, in one family, through a netfilter socket.
#[derive(Debug)]
pub struct Kernel<'s> {
    /// The socket.
    pub socket: &'s mut Socket,
    /// IPv6, not IPv4.
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

/// A frontend's address, none for a node port, and port.
type At = (Option<IpAddr>, u16);

/// What to look at once the rules are in place. It adds up over changes, for a change that the kernel refused is
/// made good by a later one, and its flows are to be looked at then.
#[derive(Debug, Default)]
pub struct Checks {
    frontends: HashSet<At>,
    services: HashSet<ServiceName>,
}

impl Checks {
    /// Notes a Service whose plan went from `old` to `new`. Only what differs is looked at.
    pub fn change(&mut self, name: &ServiceName, old: Option<&ServicePlan>, new: Option<&ServicePlan>) {
        let (before, now) = (udp_ports(old), udp_ports(new));
        let differs = |these: &[&PortPlan], those: &[&PortPlan]| -> Vec<At> {
            let changed = these.iter().filter(|p| !those.contains(p));
            changed.flat_map(|p| p.frontends.iter().map(|f| (f.address, f.port))).collect()
        };
        let touched = [differs(&before, &now), differs(&now, &before)].concat();
        if !touched.is_empty() {
            self.frontends.extend(touched);
            self.services.insert(name.clone());
        }
    }

    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty()
    }

    /// Forgets the flows that `plans` leave nowhere to go, and says so in the report. What could not be looked at is
    /// looked at next time.
    pub fn delete_stale(
        &mut self,
        kernel: &mut impl Tracker,
        plans: &HashMap<ServiceName, ServicePlan>,
        nodes: &NodePortAddresses,
        report: &mut Report,
    ) {
        if self.is_empty() {
            return;
        }
        let started = Instant::now();
        match self.run(kernel, plans, nodes) {
            Ok(deleted) => {
                report.flows_deleted = deleted;
                report.flows_took = Some(started.elapsed());
                *self = Checks::default();
            }
            Err(e) => report.warnings.push(format!("stale UDP flows could not be forgotten: {e}")),
        }
    }

    /// How many there were comes back.
    fn run(
        &self,
        kernel: &mut impl Tracker,
        plans: &HashMap<ServiceName, ServicePlan>,
        nodes: &NodePortAddresses,
    ) -> Result<usize> {
        let mut only = self.frontends.iter();
        let destination = match (only.next(), only.next()) {
            (Some((Some(address), port)), None) => Some((*address, *port)),
            _ => None,
        };
        let has_node_port = self.frontends.iter().any(|(address, _)| address.is_none());
        let own = if has_node_port { kernel.addresses()? } else { Vec::new() };
        let allowed = Allowed(self.allowed(plans));
        let mut deleted = 0;
        for flow in kernel.flows(Filter { protocol: UDP, destination })? {
            if allowed.is_stale(&flow, |ip| own.contains(&ip) && nodes.contains(ip)) {
                deleted += usize::from(kernel.delete_flow(&flow)?);
            }
        }
        Ok(deleted)
    }

    /// Where flows of each frontend may lead now.
    fn allowed(&self, plans: &HashMap<ServiceName, ServicePlan>) -> HashMap<At, Vec<Target>> {
        let mut allowed: HashMap<At, Vec<Target>> =
            self.frontends.iter().map(|at| (*at, Vec::new())).collect();
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

/// Where flows may lead, by frontend.
struct Allowed(HashMap<At, Vec<Target>>);

impl Allowed {
    fn is_stale(&self, flow: &Flow, at_node: impl Fn(IpAddr) -> bool) -> bool {
        let to = (flow.original.destination, flow.original.destination_port);
        let target = Target { ip: flow.reply.source, port: flow.reply.source_port };
        match self.0.get(&(Some(to.0), to.1)) {
            Some(targets) => !targets.contains(&target),
            None => {
                let node_port = self.0.get(&(None, to.1));
                node_port.is_some_and(|targets| at_node(to.0) && !targets.contains(&target))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_netlink::conntrack::Tuple;

    fn flow(to: &str, led_to: &str) -> Flow {
        let (to, led_to): (std::net::SocketAddr, std::net::SocketAddr) =
            (to.parse().unwrap(), led_to.parse().unwrap());
        let tuple = |d: std::net::SocketAddr| Tuple {
            source: "10.9.9.9".parse().unwrap(),
            destination: d.ip(),
            protocol: UDP,
            source_port: 999,
            destination_port: d.port(),
        };
        let mut reply = tuple(led_to);
        std::mem::swap(&mut reply.source, &mut reply.destination);
        std::mem::swap(&mut reply.source_port, &mut reply.destination_port);
        Flow { original: tuple(to), reply, zone: 0, translated: true }
    }

    #[test]
    fn only_flows_of_the_frontend_that_miss_its_endpoints_are_stale() {
        let target = Target { ip: "10.1.1.1".parse().unwrap(), port: 5353 };
        let vip = (Some("10.96.0.10".parse().unwrap()), 53);
        let allowed = Allowed([(vip, vec![target]), ((None, 30053), vec![target])].into());
        let node = |ip: IpAddr| ip == "192.168.1.1".parse::<IpAddr>().unwrap();
        let table = [
            ("10.96.0.10:53", "10.1.1.1:5353", false, "leads to an endpoint"),
            ("10.96.0.10:53", "10.1.1.2:5353", true, "its endpoint is gone"),
            ("10.96.0.10:53", "10.96.0.10:53", true, "began while there was none"),
            ("10.96.0.10:54", "10.1.1.2:5353", false, "another port"),
            ("192.168.1.1:30053", "10.1.1.1:5353", false, "node port that leads to an endpoint"),
            ("192.168.1.1:30053", "10.1.1.2:5353", true, "node port whose endpoint is gone"),
            ("8.8.8.8:30053", "8.8.8.8:30053", false, "another host's port with the same number"),
        ];
        for (to, led_to, stale, why) in table {
            assert_eq!(allowed.is_stale(&flow(to, led_to), node), stale, "{why}");
        }
    }
}
