//! Following a packet through rules, sets and servers, as the kernel would.
//!
//! In go the rules, which need not be in any kernel, and [`Beside`]: what is in the sets, and which servers there are. The
//! journey through the chains is that of the iptables mode.

use crate::render::Part;
use crate::servers::{DRAINED, Key, Server};
use crate::sets::Set;
use portway_dataplane::packet::Packet;
use portway_iptables::eval::{self, Host, Ruleset, Trace, Walker};
use portway_iptables::rules::{Lookup, Sides};
use portway_model::{Family, Target};
use portway_netlink::ipset::{Member, SetKind};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What the kernel keeps beside the rules.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    family: Option<Family>,
    members: BTreeMap<Set, BTreeSet<Member>>,
    servers: BTreeMap<Key, Server>,
    /// Addresses on our device.
    pub addresses: BTreeSet<IpAddr>,
}

impl Beside {
    /// What these parts of Services amount to.
    pub fn of(family: Family, parts: impl IntoIterator<Item = Part>) -> Beside {
        let mut beside = Beside { family: Some(family), ..Beside::default() };
        for part in parts {
            for (set, member) in part.members {
                beside.members.entry(set).or_default().insert(member);
            }
            beside.servers.extend(part.servers);
            beside.addresses.extend(part.addresses);
        }
        beside
    }
}

/// Follows a packet through `rules` and what is beside them.
pub fn eval(rules: &Ruleset, family: Family, packet: &Packet, host: &Host, beside: &Beside) -> Trace {
    let mut host = host.clone();
    host.addresses.extend(&beside.addresses);
    eval::eval_beside(rules, family, packet, &host, beside)
}

impl eval::Beside for Beside {
    fn find(&self, lookup: &Lookup, packet: &Walker) -> Option<u32> {
        let (set, family) = Set::parse(&lookup.set)?;
        if self.family != Some(family) {
            return None;
        }
        let found = self.members.get(&set)?.iter().find(|m| holds(set, m, lookup.sides, packet))?;
        Some(found.mark.map_or(0, |(mark, _)| mark))
    }

    fn balance(&self, packet: &Walker) -> Option<(String, Vec<Target>)> {
        let marked = Key::Mark(packet.mark);
        let at = Key::At { protocol: packet.protocol, ip: packet.destination, port: packet.port };
        let key = if packet.mark != 0 && self.servers.contains_key(&marked) { marked } else { at };
        let server = self.servers.get(&key)?;
        let takes = server.targets.iter().filter(|(_, share)| **share != DRAINED);
        Some((format!("{key} {}", server.scheduler), takes.map(|(target, _)| *target).collect()))
    }
}

/// Whether a member stands for a packet.
fn holds(set: Set, member: &Member, sides: Sides, packet: &Walker) -> bool {
    let source_first = sides == Sides::Source;
    let first = if source_first { packet.source } else { packet.destination };
    let ip = member.ip.is_none_or(|ip| ip == first);
    let port = member.port.is_none_or(|port| port == packet.port);
    let protocol = member.protocol.is_none_or(|p| p == packet.protocol.number());
    let second = match (set.kind(), member.ip2, member.cidr2) {
        (SetKind::IpPortNet, Some(ip), Some(length)) => {
            ipnet::IpNet::new(ip, length).is_ok_and(|net| net.contains(&packet.source))
        }
        (_, Some(ip), _) => ip == packet.source,
        _ => true,
    };
    ip && port && protocol && second
}
