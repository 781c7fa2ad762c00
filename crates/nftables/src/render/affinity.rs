//! Session affinity. Only Service ports with affinity have chains and maps of their own.
//!
//! Each endpoint of such a port has a set of clients, with the Service's timeout, and a chain that adds the client to
//! the set, or renews its timeout, and translates to the endpoint. A client that is in the set of an endpoint goes to
//! that endpoint's chain; any other client goes to a random one. When an endpoint is removed, its chain and its set are
//! deleted in the same transaction. All frontends of a port use the same sets, so affinity does not depend on the
//! frontend that the client connects to. Traffic policy Local and Cluster have separate sets, because they may allow
//! different endpoints.

use crate::rules::{ExprBuilder, affinity_name, choice_map, choose, client_set};
use crate::table::Table;
use portway_model::{FrontendKind, Outcome, PortPlan, Protocol, ServicePlan, Target, TrafficPolicy};
use portway_netlink::nft::{Data, Element, Key, Rule, Verdict};
use std::collections::BTreeMap;

/// Session affinity of a Service port for one traffic policy.
pub(super) struct AffinityGroup<'a> {
    id: String,
    seconds: u32,
    targets: &'a [Target],
}

/// The longest id that leaves room for a prefix and an endpoint in a name of 127 characters.
const ID_LIMIT: usize = 67;

/// The affinity groups that a port needs: none, one or two.
pub(super) fn groups<'a>(plan: &ServicePlan, port: &'a PortPlan) -> Vec<AffinityGroup<'a>> {
    let Some(seconds) = port.affinity else { return Vec::new() };
    let kinds = || port.frontends.iter().map(|f| f.kind);
    let balanced = |policy| {
        kinds()
            .any(|k: FrontendKind| port.policy(k) == policy && matches!(port.outcome(k), Outcome::Balance(_)))
    };
    let mut groups = Vec::new();
    if balanced(TrafficPolicy::Cluster) || kinds().any(|k| port.short_cut(k).is_some()) {
        let id = AffinityGroup::id(plan, port, TrafficPolicy::Cluster);
        groups.push(AffinityGroup { id, seconds, targets: &port.cluster });
    }
    if balanced(TrafficPolicy::Local) {
        let id = AffinityGroup::id(plan, port, TrafficPolicy::Local);
        groups.push(AffinityGroup { id, seconds, targets: &port.local });
    }
    groups
}

impl AffinityGroup<'_> {
    /// The id of a group, which is unique in the table and part of the names of its objects.
    pub(super) fn id(plan: &ServicePlan, port: &PortPlan, policy: TrafficPolicy) -> String {
        let mut id = format!("{}/{}", plan.name, port.protocol.lower());
        if !port.name.is_empty() {
            id = format!("{id}/{}", port.name);
        }
        if policy == TrafficPolicy::Local {
            id.push_str("/local");
        }
        // The timeout of a set cannot be changed, so another timeout needs sets with other names.
        id = format!("{id}/{}s", port.affinity.unwrap_or_default());
        shorten(id)
    }

    pub(super) fn render(&self, exprs: ExprBuilder, protocol: Protocol, part: &mut Table) {
        let choice = affinity_name("choice", &self.id);
        part.sets.insert(choice.clone(), choice_map(&choice, exprs.family));
        let mut known = BTreeMap::new();
        for (i, target) in self.targets.iter().enumerate() {
            let id = format!("{}/{}", self.id, path(*target));
            let (clients, chain) = (affinity_name("clients", &id), affinity_name("endpoint", &id));
            part.sets.insert(clients.clone(), client_set(&clients, exprs.family, self.seconds));
            // Two rules: adding a client to a full set fails, which ends the rule, and the packet must still be
            // translated.
            part.chain(&chain, vec![exprs.remember(&clients), exprs.dnat_to(protocol, *target)]);
            known.insert(*target, exprs.known_client(&clients, &chain));
            let key = Key::new().field(&(i as u32).to_ne_bytes());
            part.element(&choice, Element::map(key, Data::Verdict(Verdict::Goto(chain))));
        }
        // Sorted by endpoint, so that the order does not depend on their indices.
        let mut rules: Vec<Rule> = known.into_values().collect();
        rules.push(choose(&choice, self.targets.len()));
        part.chain(&affinity_name("sticky", &self.id), rules);
    }
}

/// A target as a part of a chain's name, without colons: nft does not accept them in a name.
fn path(target: Target) -> String {
    format!("{}/{}", target.ip.to_string().replace(':', "."), target.port)
}

/// Shortens an id that exceeds [`ID_LIMIT`] to its beginning, and a hash of all of it (FNV-1a) that keeps ids distinct.
fn shorten(id: String) -> String {
    if id.len() <= ID_LIMIT {
        return id;
    }
    let hash =
        id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{}/{hash:016x}", &id[..id.floor_char_boundary(ID_LIMIT - 17)])
}
