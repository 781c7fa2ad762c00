//! Following a packet through rules, sets and servers, as the kernel would.
//!
//! In go the rules, which need not be in any kernel, and [`Beside`]: what is in the sets, and which servers there are. The
//! journey through the chains is that of the iptables mode.

use crate::commit::{Answer, Kernel};
use crate::listing::list_sets;
use crate::servers::{DRAINED, Key};
use crate::sets::Set;
use portway_dataplane::packet::Packet;
use portway_iptables::eval::{self, Host, Ruleset, Trace, Walker};
use portway_iptables::rules::{Lookup, Sides};
use portway_model::{Family, Target};
use portway_netlink::ipset::{Member, SetKind};
use portway_netlink::ipvs::PERSISTENT;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// What the kernel keeps beside the rules.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    family: Option<Family>,
    members: HashMap<Set, HashSet<Member>>,
    servers: BTreeMap<Key, Serves>,
    /// Addresses on our device.
    pub addresses: BTreeSet<IpAddr>,
    /// Clients that a server, by its name in the trace, remembers, and with whom they were.
    pub met: Vec<(String, IpAddr, Target)>,
}

/// What a server does.
#[derive(Clone, Debug)]
struct Serves {
    name: String,
    targets: Vec<Target>,
}

impl Beside {
    /// What a kernel has of one family.
    pub fn of_kernel(family: Family, kernel: &mut impl Kernel) -> Answer<Beside> {
        let (members, _) = list_sets(kernel, family)?;
        let mut servers = BTreeMap::new();
        for server in kernel.servers(family)? {
            let Some(key) = Key::of(&server) else { continue };
            let sticks = if server.flags & PERSISTENT != 0 { " persistent" } else { "" };
            let behind = kernel.targets(&server.key())?;
            let mut targets: Vec<Target> =
                behind.into_iter().filter(|(_, b)| b.share != DRAINED).map(|(target, _)| target).collect();
            targets.sort_unstable();
            servers.insert(key, Serves { name: format!("{key} {}{sticks}", server.scheduler), targets });
        }
        let addresses = match kernel.device()? {
            Some(link) => kernel.addresses_on(link, family)?.into_iter().collect(),
            None => BTreeSet::new(),
        };
        Ok(Beside { family: Some(family), members, servers, addresses, met: Vec::new() })
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
        let known = |(by, client, with): &&(String, IpAddr, Target)| {
            *by == server.name && *client == packet.source && server.targets.contains(with)
        };
        let targets = match self.met.iter().rev().find(known) {
            Some((.., target)) => vec![*target],
            None => server.targets.clone(),
        };
        Some((server.name.clone(), targets))
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
