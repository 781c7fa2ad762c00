//! Following a packet through rules, sets and servers, as the kernel would.
//!
//! In go the rules, which need not be in any kernel, and a [`Snapshot`] of the sets and
//! servers. The path through the chains is that of the iptables engine.

use crate::commit::{Answer, Kernel};
use crate::listing::list_sets;
use crate::servers::{DRAINED, Key};
use crate::sets::Set;
use portway_dataplane::trace::{Host, Packet, PacketState, Trace};
use portway_model::{Family, Target};
use portway_netlink::ipset::{Member, SetKind};
use portway_netlink::ipvs::PERSISTENT;
use portway_xtables::eval::{self, Ruleset};
use portway_xtables::rules::{Lookup, Sides};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// The sets, servers and addresses of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    family: Option<Family>,
    members: HashMap<Set, HashSet<Member>>,
    servers: BTreeMap<Key, Serves>,
    /// Addresses on our device.
    pub addresses: BTreeSet<IpAddr>,
    /// Clients that a server, by its name in the trace, remembers, and their endpoints.
    pub met: Vec<(String, IpAddr, Target)>,
}

/// What a server does.
#[derive(Clone, Debug)]
struct Serves {
    name: String,
    targets: Vec<Target>,
}

impl Snapshot {
    /// What a kernel has of one family.
    pub fn of_kernel(family: Family, kernel: &mut impl Kernel) -> Answer<Snapshot> {
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
        Ok(Snapshot { family: Some(family), members, servers, addresses, met: Vec::new() })
    }
}

/// Follows a packet through `rules`, sets and servers.
pub fn eval(rules: &Ruleset, family: Family, packet: &Packet, host: &Host, objects: &Snapshot) -> Trace {
    let mut host = host.clone();
    host.addresses.extend(&objects.addresses);
    eval::eval_with(rules, family, packet, &host, objects)
}

impl eval::KernelObjects for Snapshot {
    fn lookup(&self, lookup: &Lookup, packet: &PacketState) -> Option<u32> {
        let (set, family) = Set::parse(&lookup.set)?;
        if self.family != Some(family) {
            return None;
        }
        let found = self.members.get(&set)?.iter().find(|m| holds(set, m, lookup.sides, packet))?;
        Some(found.mark.map_or(0, |(mark, _)| mark))
    }

    fn balance(&self, packet: &PacketState) -> Option<(String, Vec<Target>)> {
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
fn holds(set: Set, member: &Member, sides: Sides, packet: &PacketState) -> bool {
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
