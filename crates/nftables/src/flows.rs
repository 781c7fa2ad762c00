//! UDP flows that lead nowhere.
//!
//! UDP has no end of connection: a flow that conntrack once led to an endpoint goes there as long as the client
//! keeps sending, and one that began while a Service had no endpoints goes on missing it. After a change, flows of
//! the frontends concerned that do not lead to an endpoint that answers are forgotten; their next packet starts
//! anew. Those that do are left alone, so a restart disturbs none.

use portway_dataplane::NodePortAddresses;
use portway_model::{PortPlan, Protocol, ServicePlan, Target};
use portway_netlink::conntrack::{self, Filter, Flow, UDP};
use portway_netlink::route::Rtnetlink;
use portway_netlink::{Result, Socket};
use std::collections::HashMap;
use std::net::IpAddr;

/// What to look at after a change: frontends, and which of their flows may stay.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    frontends: HashMap<(Option<IpAddr>, u16), Vec<Target>>,
}

impl Checks {
    /// Looks at a Service whose plan went from `old` to `new`. Only what differs is looked at.
    pub(crate) fn change(&mut self, old: Option<&ServicePlan>, new: Option<&ServicePlan>) {
        let ports = |plan: Option<&ServicePlan>| -> Vec<PortPlan> {
            let udp = plan.iter().flat_map(|p| p.ports.iter()).filter(|p| p.protocol == Protocol::Udp);
            udp.cloned().collect()
        };
        let (old, new) = (ports(old), ports(new));
        for port in old.iter().filter(|p| !new.contains(p)) {
            for frontend in &port.frontends {
                self.frontends.entry((frontend.address, frontend.port)).or_default();
            }
        }
        for port in new.iter().filter(|p| !old.contains(p)) {
            for frontend in &port.frontends {
                let list = self.frontends.entry((frontend.address, frontend.port)).or_default();
                list.extend(port.cluster.iter().chain(&port.local).chain(&port.also_serving));
            }
        }
    }

    /// Forgets the flows that may not stay. How many there were comes back.
    pub(crate) fn run(self, socket: &mut Socket, v6: bool, nodes: &NodePortAddresses) -> Result<usize> {
        if self.frontends.is_empty() {
            return Ok(0);
        }
        let mut only = self.frontends.keys();
        let destination = match (only.next(), only.next()) {
            (Some((Some(address), port)), None) => Some((*address, *port)),
            _ => None,
        };
        let has_node_port = self.frontends.keys().any(|(address, _)| address.is_none());
        let own = if has_node_port { own_addresses()? } else { Vec::new() };
        let flows = conntrack::list(socket, v6, Filter { protocol: UDP, destination })?;
        let mut deleted = 0;
        for flow in flows.iter().filter(|f| self.is_stale(f, |ip| own.contains(&ip) && nodes.contains(ip))) {
            deleted += usize::from(conntrack::delete(socket, flow)?);
        }
        Ok(deleted)
    }

    fn is_stale(&self, flow: &Flow, at_node: impl Fn(IpAddr) -> bool) -> bool {
        let to = (flow.original.destination, flow.original.destination_port);
        let target = Target { ip: flow.reply.source, port: flow.reply.source_port };
        match self.frontends.get(&(Some(to.0), to.1)) {
            Some(targets) => !targets.contains(&target),
            None => {
                let node_port = self.frontends.get(&(None, to.1));
                node_port.is_some_and(|targets| at_node(to.0) && !targets.contains(&target))
            }
        }
    }
}

/// The addresses of this machine, for telling a node port from somebody else's port with the same number.
fn own_addresses() -> Result<Vec<IpAddr>> {
    Ok(Rtnetlink::open()?.addresses()?.into_iter().map(|a| a.net.addr()).collect())
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
        Flow { original: tuple(to), reply, zone: 0 }
    }

    #[test]
    fn only_flows_of_the_frontend_that_miss_its_endpoints_are_stale() {
        let target = Target { ip: "10.1.1.1".parse().unwrap(), port: 5353 };
        let mut checks = Checks::default();
        checks.frontends.insert((Some("10.96.0.10".parse().unwrap()), 53), vec![target]);
        checks.frontends.insert((None, 30053), vec![target]);
        let node = |ip: IpAddr| ip == "192.168.1.1".parse::<IpAddr>().unwrap();
        let table = [
            ("10.96.0.10:53", "10.1.1.1:5353", false, "leads to an endpoint"),
            ("10.96.0.10:53", "10.1.1.2:5353", true, "its endpoint is gone"),
            ("10.96.0.10:53", "10.96.0.10:53", true, "began while there was none"),
            ("10.96.0.10:54", "10.1.1.2:5353", false, "another port"),
            ("192.168.1.1:30053", "10.1.1.1:5353", false, "node port that leads to an endpoint"),
            ("192.168.1.1:30053", "10.1.1.2:5353", true, "node port whose endpoint is gone"),
            ("8.8.8.8:30053", "8.8.8.8:30053", false, "somebody else's port with our number"),
        ];
        for (to, led_to, stale, why) in table {
            assert_eq!(checks.is_stale(&flow(to, led_to), node), stale, "{why}");
        }
    }
}
