//! From settings and plans to rules.
//!
//! [`base`] is what is there whatever the Services are; [`service`] is a Service's share: chains of its own, and
//! single rules in the chains that all share.

mod base;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use base::is_firewalls;
pub use base::{Abilities, Base, Hook, TURNED_LOCALNET_ON, base, forward};
pub use service::service;

use crate::chains::{Fixed, PortChain, Table};
use crate::rules::{Action, Is, Match, Refusal, Rule, is, is_not};
use ipnet::IpNet;
use portway_dataplane::{LocalTraffic, Settings};
use portway_model::{Family, Protocol};
use std::net::IpAddr;
use std::sync::Arc;

/// A chain in which every Service may have rules, in any order, before the constant ones at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shared {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub chain: Fixed,
}

impl Shared {
    /// nat: from an address and port to its Service.
    pub const SERVICES: Shared = Shared { table: Table::Nat, chain: Fixed::Services };
    /// nat: from a node port to its Service.
    pub const NODE_PORTS: Shared = Shared { table: Table::Nat, chain: Fixed::NodePorts };
    /// filter: cluster IPs that nobody serves.
    pub const REFUSED: Shared = Shared { table: Table::Filter, chain: Fixed::Services };
    /// filter: other addresses that nobody serves.
    pub const REFUSED_EXTERNAL: Shared = Shared { table: Table::Filter, chain: Fixed::ExternalServices };
    /// filter: ports for health checks.
    pub const HEALTH_CHECKS: Shared = Shared { table: Table::Filter, chain: Fixed::NodePorts };
    /// filter: load-balancer IPs that only some may reach.
    pub const GUARDED: Shared = Shared { table: Table::Filter, chain: Fixed::ProxyFirewall };
    /// filter: cluster IPs at ports that are none.
    pub const CLUSTER_IPS: Shared = Shared { table: Table::Filter, chain: Fixed::ClusterIps };

    /// All of them.
    pub const ALL: [Shared; 7] = [
        Shared::SERVICES,
        Shared::NODE_PORTS,
        Shared::REFUSED,
        Shared::REFUSED_EXTERNAL,
        Shared::HEALTH_CHECKS,
        Shared::GUARDED,
        Shared::CLUSTER_IPS,
    ];
}

/// What a Service adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Chains of its own, all in nat, each after those it jumps to.
    pub chains: Vec<(PortChain, Vec<Rule>)>,
    /// Its rules in shared chains.
    pub shared: Vec<(Shared, Rule)>,
}

/// How a pod's traffic is told, if it is.
#[derive(Clone, Debug)]
enum Pods {
    Range(IpNet),
    Interface(Arc<str>),
}

impl Pods {
    fn of(settings: &Settings, family: Family) -> Option<Pods> {
        match &settings.local {
            LocalTraffic::Unknown => None,
            // A node has one range in each family.
            LocalTraffic::Cidrs(ranges) => {
                ranges.iter().find(|r| Family::of(r.addr()) == family).map(|r| Pods::Range(*r))
            }
            LocalTraffic::Interface(name) => Some(Pods::Interface(name.as_str().into())),
            LocalTraffic::InterfacePrefix(prefix) => Some(Pods::Interface(format!("{prefix}+").into())),
        }
    }

    /// For traffic of pods, or for all other.
    fn restrict(&self, mut rule: Rule, not: bool) -> Rule {
        match self {
            Pods::Range(range) => rule.source = Some(Is { value: *range, not }),
            Pods::Interface(name) => rule.input = Some(Is { value: name.clone(), not }),
        }
        rule
    }
}

/// How a packet is refused; `protocol` if it is known. A client that speaks TCP over IPv6 was seen to wait on in spite
/// of the ICMP message.
pub fn refusal(family: Family, protocol: Option<Protocol>) -> Action {
    Action::Reject(match (family, protocol) {
        (Family::V4, _) => Refusal::Icmp,
        (Family::V6, Some(Protocol::Tcp)) => Refusal::TcpReset,
        (Family::V6, _) => Refusal::Icmp6,
    })
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
        Family::V6 => IpNet::new_assert(std::net::Ipv6Addr::LOCALHOST.into(), 128),
    }
}

fn one(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

/// A rule for packets to each address at which node ports answer.
pub fn at_node_addresses(settings: &Settings, family: Family, rule: &Rule) -> Vec<Rule> {
    let local = |rule: Rule| rule.when(Match::DestinationIsLocal);
    let loopback = loopback(family);
    let answers = settings.answers_at_loopback(family);
    // Everything is said in one rule too, where what is left without the loopback addresses would take a hundred.
    let ranges = settings.node_ports.ranges(family).filter(|r| r.iter().all(|r| r.prefix_len() > 0));
    let Some(ranges) = ranges else {
        let mut rule = local(rule.clone());
        rule.destination = (!answers).then_some(is_not(loopback));
        return vec![rule];
    };
    let at = |range: IpNet| Rule { destination: Some(is(range)), ..local(rule.clone()) };
    let outside = |range: &IpNet| answers || !loopback.contains(range);
    let mut rules: Vec<Rule> = ranges.iter().filter(|r| outside(r)).map(|r| at(*r)).collect();
    // A range that happens to hold the loopback addresses does not mean them.
    if !answers && let Some(wide) = ranges.iter().find(|r| r.contains(&loopback)) {
        let pieces = without(*wide, loopback);
        rules.retain(|r| r.destination != Some(is(*wide)));
        rules.extend(pieces.into_iter().map(at));
    }
    rules
}

/// What is left of a range when a smaller one in it is taken out.
fn without(wide: IpNet, hole: IpNet) -> Vec<IpNet> {
    let mut left = Vec::new();
    let mut rest = wide;
    while rest != hole {
        let Ok(mut halves) = rest.subnets(rest.prefix_len() + 1) else { break };
        let (Some(a), Some(b)) = (halves.next(), halves.next()) else { break };
        let (inside, outside) = if a.contains(&hole) { (a, b) } else { (b, a) };
        left.push(outside);
        rest = inside;
    }
    left
}
