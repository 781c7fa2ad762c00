//! Follows a packet through rules, sets and virtual servers, as the kernel would.
//!
//! The input is rules, which need not be in a kernel, and a [`Snapshot`] of the sets and virtual servers. The iptables
//! engine follows the chains.

use crate::commit::{Kernel, KernelResult};
use crate::listing::list_sets;
use crate::servers::{DRAINING_WEIGHT, Key};
use crate::sets::Set;
use portway_dataplane::trace::{Host, Packet, PacketState, Trace};
use portway_model::{Family, Target};
use portway_netlink::ipset::{Member, SetKind};
use portway_netlink::ipvs::PERSISTENT;
use portway_xtables::eval::{self, Ruleset};
use portway_xtables::rules::{Lookup, Sides};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// The sets, virtual servers and addresses of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    family: Option<Family>,
    members: HashMap<Set, HashSet<Member>>,
    servers: BTreeMap<Key, SnapshotServer>,
    /// Addresses on `kube-ipvs0`.
    pub addresses: BTreeSet<IpAddr>,
    /// Stored affinity: the name of the virtual server in the trace, the client, and its endpoint.
    pub affinity: Vec<(String, IpAddr, Target)>,
}

/// A virtual server, with the endpoints that get new connections.
#[derive(Clone, Debug)]
struct SnapshotServer {
    name: String,
    targets: Vec<Target>,
}

impl Snapshot {
    /// Lists the objects of one family.
    pub fn of_kernel(family: Family, kernel: &mut impl Kernel) -> KernelResult<Snapshot> {
        let (members, _) = list_sets(kernel, family)?;
        let mut servers = BTreeMap::new();
        for server in kernel.servers(family)? {
            let Some(key) = Key::of(&server) else { continue };
            let persistent = if server.flags & PERSISTENT != 0 { " persistent" } else { "" };
            let listed = kernel.targets(&server.key())?;
            let mut targets: Vec<Target> = listed
                .into_iter()
                .filter(|(_, b)| b.weight != DRAINING_WEIGHT)
                .map(|(target, _)| target)
                .collect();
            targets.sort_unstable();
            servers.insert(
                key,
                SnapshotServer { name: format!("{key} {}{persistent}", server.scheduler), targets },
            );
        }
        let addresses = match kernel.device()? {
            Some(link) => kernel.addresses_on(link, family)?.into_iter().collect(),
            None => BTreeSet::new(),
        };
        Ok(Snapshot { family: Some(family), members, servers, addresses, affinity: Vec::new() })
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
        let found = self.members.get(&set)?.iter().find(|m| member_matches(set, m, lookup.sides, packet))?;
        Some(found.mark.map_or(0, |(mark, _)| mark))
    }

    fn balance(&self, packet: &PacketState) -> Option<(String, Vec<Target>)> {
        let marked = Key::Mark(packet.mark);
        let at = Key::Address { protocol: packet.protocol, ip: packet.destination, port: packet.port };
        let key = if packet.mark != 0 && self.servers.contains_key(&marked) { marked } else { at };
        let server = self.servers.get(&key)?;
        let known = |(by, client, with): &&(String, IpAddr, Target)| {
            *by == server.name && *client == packet.source && server.targets.contains(with)
        };
        let targets = match self.affinity.iter().rev().find(known) {
            Some((.., target)) => vec![*target],
            None => server.targets.clone(),
        };
        Some((server.name.clone(), targets))
    }
}

/// Whether a set matches a packet by this member.
fn member_matches(set: Set, member: &Member, sides: Sides, packet: &PacketState) -> bool {
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
