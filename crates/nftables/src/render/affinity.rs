//! Session affinity: the one thing that needs chains of its own.
//!
//! Each Service port remembers its clients in two maps, client → address and client → port, with the Service's
//! time-out. A client that is known goes where it went; one that is not meets a random endpoint's chain, which
//! remembers it. Two maps, because nft 1.0.6 cannot load a rule that stores address and port at once for IPv6.
//! All frontends of a port share the maps, so a client sticks however it comes. Endpoints on this node and
//! endpoints in the cluster are remembered apart, because a client may be entitled to different ones.

use crate::rules::{Words, choice_map, choose, client_addresses, client_ports, own_name};
use crate::table::{Name, Table};
use portway_model::{FrontendKind, Outcome, PortPlan, Protocol, ServicePlan, Target, TrafficPolicy};
use portway_netlink::nft::{Data, Element, Key, Verdict};

/// A Service port's memory of its clients, for one set of endpoints.
pub(super) struct Sticky<'a> {
    id: String,
    seconds: u32,
    targets: &'a [Target],
}

/// The longest id that leaves room for a prefix and an endpoint in a name of 127 characters.
const ID_LIMIT: usize = 67;

/// The memories a port needs.
pub(super) fn groups<'a>(plan: &ServicePlan, port: &'a PortPlan) -> Vec<Sticky<'a>> {
    let Some(seconds) = port.affinity else { return Vec::new() };
    let kinds = || port.frontends.iter().map(|f| f.kind);
    let balanced = |policy| {
        kinds()
            .any(|k: FrontendKind| port.policy(k) == policy && matches!(port.outcome(k), Outcome::Balance(_)))
    };
    let mut groups = Vec::new();
    if balanced(TrafficPolicy::Cluster) || kinds().any(|k| port.short_cut(k).is_some()) {
        let id = Sticky::name(plan, port, TrafficPolicy::Cluster);
        groups.push(Sticky { id, seconds, targets: &port.cluster });
    }
    if balanced(TrafficPolicy::Local) {
        groups.push(Sticky {
            id: Sticky::name(plan, port, TrafficPolicy::Local),
            seconds,
            targets: &port.local,
        });
    }
    groups
}

impl Sticky<'_> {
    /// What tells a port's memory from all others, as a part of names.
    pub(super) fn name(plan: &ServicePlan, port: &PortPlan, policy: TrafficPolicy) -> String {
        let mut id = format!("{}/{}", plan.name, port.protocol.lower());
        if !port.name.is_empty() {
            id = format!("{id}/{}", port.name);
        }
        if policy == TrafficPolicy::Local {
            id.push_str("/local");
        }
        // The time-out is the maps', and a map cannot change it: another time-out is another name.
        id = format!("{id}/{}s", port.affinity.unwrap_or_default());
        shorten(id)
    }

    /// The names of the two maps that remember clients, for the group with this id.
    fn maps(id: &str) -> (Name, Name) {
        (own_name("client-address", id), own_name("client-port", id))
    }

    pub(super) fn render(&self, words: Words, protocol: Protocol, part: &mut Table) {
        let (addresses, ports) = Sticky::maps(&self.id);
        let choice = own_name("choice", &self.id);
        let sets = [
            client_addresses(&addresses, words.family, self.seconds),
            client_ports(&ports, words.family, self.seconds),
            choice_map(&choice, words.family),
        ];
        part.sets.extend(sets.into_iter().map(|set| (set.name.clone(), set)));
        let known = words.remembered(protocol, &addresses, &ports);
        part.chain(&own_name("sticky", &self.id), vec![known, choose(&choice, self.targets.len())]);
        for (i, target) in self.targets.iter().enumerate() {
            let chain = own_name("endpoint", &format!("{}/{}", self.id, path(*target)));
            part.chain(&chain, vec![words.remember(protocol, *target, &addresses, &ports)]);
            let key = Key::new().field(&(i as u32).to_ne_bytes());
            part.element(&choice, Element::map(key, Data::Verdict(Verdict::Goto(chain))));
        }
    }
}

/// The memories of a port and which targets may be remembered in each: the maps of addresses and of ports.
pub(crate) fn memories<'a>(plan: &ServicePlan, port: &'a PortPlan) -> Vec<(Name, Name, &'a [Target])> {
    let of = |s: Sticky<'a>| {
        let (addresses, ports) = Sticky::maps(&s.id);
        (addresses, ports, s.targets)
    };
    groups(plan, port).into_iter().map(of).collect()
}

/// A target as a part of a chain's name, which may hold no colon.
fn path(target: Target) -> String {
    format!("{}/{}", target.ip.to_string().replace(':', "."), target.port)
}

/// Keeps the beginning, for the reader, and a hash of the whole (FNV-1a), so that names stay apart.
fn shorten(id: String) -> String {
    if id.len() <= ID_LIMIT {
        return id;
    }
    let hash =
        id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{}/{hash:016x}", &id[..id.floor_char_boundary(ID_LIMIT - 17)])
}
