//! Session affinity: the one thing that needs chains of its own.
//!
//! Each endpoint of a Service port with affinity has a set of the clients that stick to it, with the Service's
//! time-out, and a chain that remembers a client, or for longer, and leads it there. A client that some endpoint
//! knows goes to its chain; one that none knows goes to a random one. An endpoint that is no longer eligible takes its
//! chain and its clients with it, in the same transaction. All frontends of a port share the sets, so a client sticks
//! however it comes. Endpoints on this node and endpoints in the cluster are remembered apart, because a client
//! may be entitled to different ones.

use crate::rules::{ExprBuilder, choice_map, choose, client_set, own_name};
use crate::table::Table;
use portway_model::{FrontendKind, Outcome, PortPlan, Protocol, ServicePlan, Target, TrafficPolicy};
use portway_netlink::nft::{Data, Element, Key, Rule, Verdict};
use std::collections::BTreeMap;

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
        let id = Sticky::name(plan, port, TrafficPolicy::Local);
        groups.push(Sticky { id, seconds, targets: &port.local });
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
        // The time-out is the sets', and a set cannot change it: another time-out is another name.
        id = format!("{id}/{}s", port.affinity.unwrap_or_default());
        shorten(id)
    }

    pub(super) fn render(&self, exprs: ExprBuilder, protocol: Protocol, part: &mut Table) {
        let choice = own_name("choice", &self.id);
        part.sets.insert(choice.clone(), choice_map(&choice, exprs.family));
        let mut known = BTreeMap::new();
        for (i, target) in self.targets.iter().enumerate() {
            let id = format!("{}/{}", self.id, path(*target));
            let (clients, chain) = (own_name("clients", &id), own_name("endpoint", &id));
            part.sets.insert(clients.clone(), client_set(&clients, exprs.family, self.seconds));
            // Two rules: a set that is full must not keep the packet from its endpoint.
            part.chain(&chain, vec![exprs.remember(&clients), exprs.lead_to(protocol, *target)]);
            known.insert(*target, exprs.known(&clients, &chain));
            let key = Key::new().field(&(i as u32).to_ne_bytes());
            part.element(&choice, Element::map(key, Data::Verdict(Verdict::Goto(chain))));
        }
        // In an order that does not depend on which index an endpoint has.
        let mut rules: Vec<Rule> = known.into_values().collect();
        rules.push(choose(&choice, self.targets.len()));
        part.chain(&own_name("sticky", &self.id), rules);
    }
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
