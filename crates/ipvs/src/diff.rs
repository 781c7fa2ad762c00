//! A transaction as a value, written in an order that resets no connection.
//!
//! The node resets connections to an address on `kube-ipvs0` that has no virtual server. So virtual servers are added
//! before their address, and the address is removed before its virtual servers. A frontend that rejects or drops is
//! added to its set before all other changes, and removed from it after its virtual server was added.

use crate::render::ServiceObjects;
use crate::servers::{Key, Server};
use crate::sets::Set;
use portway_model::Target;
use portway_netlink::ipset::Member;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// The changes to make, from top to bottom; but members of sets that block a frontend ([`Set::blocks`]) are removed
/// before endpoints drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Members to add to sets.
    pub add_members: BTreeMap<Set, Vec<Member>>,
    /// Virtual servers to add, with their endpoints.
    pub add_servers: Vec<(Key, Server)>,
    /// Endpoints to add to a virtual server, with their weights.
    pub add_targets: Vec<(Key, Target, u32)>,
    /// Endpoints whose weight changes.
    pub set_weights: Vec<(Key, Target, u32)>,
    /// Virtual servers whose options change.
    pub edit_servers: Vec<(Key, Server)>,
    /// Addresses to add to `kube-ipvs0`.
    pub bind: Vec<IpAddr>,
    /// Addresses to remove from it.
    pub unbind: Vec<IpAddr>,
    /// Endpoints that get weight 0, and are removed when their connections have ended.
    pub drain_targets: Vec<(Key, Target)>,
    /// Endpoints to remove at once.
    pub remove_targets: Vec<(Key, Target)>,
    /// Virtual servers to remove.
    pub remove_servers: Vec<Key>,
    /// Members to remove from sets.
    pub remove_members: BTreeMap<Set, Vec<Member>>,
}

impl Transaction {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Transaction::default()
    }

    /// The number of objects to add.
    pub fn added(&self) -> usize {
        let targets: usize = self.add_servers.iter().map(|(_, server)| server.targets.len()).sum();
        let members: usize = self.add_members.values().map(Vec::len).sum();
        members + targets + self.add_servers.len() + self.add_targets.len() + self.bind.len()
    }

    /// The number of objects to remove, including endpoints that drain first.
    pub fn removed(&self) -> usize {
        let members: usize = self.remove_members.values().map(Vec::len).sum();
        let targets = self.drain_targets.len() + self.remove_targets.len();
        members + self.unbind.len() + targets + self.remove_servers.len()
    }
}

/// Draining endpoints, by virtual server: they have weight 0 and are removed when their connections have ended.
#[derive(Clone, Debug, Default)]
pub struct Draining(HashMap<Key, BTreeSet<Target>>);

impl Draining {
    /// Adds an endpoint.
    pub fn insert(&mut self, key: Key, target: Target) {
        self.0.entry(key).or_default().insert(target);
    }

    /// Removes an endpoint; false if it was not draining.
    pub fn remove(&mut self, key: Key, target: Target) -> bool {
        let Some(targets) = self.0.get_mut(&key) else { return false };
        let was_draining = targets.remove(&target);
        if targets.is_empty() {
            self.0.remove(&key);
        }
        was_draining
    }

    /// Removes all endpoints of a virtual server.
    pub fn remove_server(&mut self, key: Key) {
        self.0.remove(&key);
    }

    /// Removes all endpoints.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether no endpoint is draining.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an endpoint is draining.
    pub fn contains(&self, key: Key, target: Target) -> bool {
        self.0.get(&key).is_some_and(|targets| targets.contains(&target))
    }

    /// Whether a virtual server has draining endpoints.
    pub fn has_server(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// The virtual servers with draining endpoints.
    pub fn servers(&self) -> Vec<Key> {
        self.0.keys().copied().collect()
    }

    /// The draining endpoints of a virtual server.
    pub fn targets(&self, key: Key) -> Vec<Target> {
        self.0.get(&key).into_iter().flatten().copied().collect()
    }
}

/// Members and addresses that several Services may need at once, with the number of Services that do.
#[derive(Clone, Debug, Default)]
pub struct SharedObjects {
    members: HashMap<(Set, Member), Entry>,
    addresses: HashMap<IpAddr, u32>,
    sizes: BTreeMap<Set, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    count: u32,
    mark: Option<(u32, u32)>,
}

/// A member as a key: its mark may change.
fn unmarked(member: &Member) -> Member {
    Member { mark: None, ..*member }
}

impl SharedObjects {
    /// Replaces the objects of Services, and stages the changes that result.
    pub fn change(&mut self, old: &ServiceObjects, new: &ServiceObjects, tx: &mut Transaction) {
        for (set, member) in &new.members {
            let entry = self.members.entry((*set, unmarked(member))).or_default();
            entry.count += 1;
            if entry.count == 1 {
                *self.sizes.entry(*set).or_default() += 1;
            }
            if entry.count == 1 || entry.mark != member.mark {
                entry.mark = member.mark;
                tx.add_members.entry(*set).or_default().push(*member);
            }
        }
        for (set, member) in &old.members {
            let key = (*set, unmarked(member));
            let Some(entry) = self.members.get_mut(&key) else { continue };
            entry.count -= 1;
            if entry.count == 0 {
                self.members.remove(&key);
                *self.sizes.entry(*set).or_default() -= 1;
                tx.remove_members.entry(*set).or_default().push(*member);
            }
        }
        for ip in &new.addresses {
            let count = self.addresses.entry(*ip).or_default();
            *count += 1;
            if *count == 1 {
                tx.bind.push(*ip);
            }
        }
        for ip in &old.addresses {
            let Some(count) = self.addresses.get_mut(ip) else { continue };
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(ip);
                tx.unbind.push(*ip);
            }
        }
    }

    /// All members of a set.
    pub fn members(&self, wanted: Set) -> impl Iterator<Item = Member> {
        let members = self.members.iter().filter(move |((set, _), _)| *set == wanted);
        members.map(|((_, member), entry)| Member { mark: entry.mark, ..*member })
    }

    /// The number of members that a set should have.
    pub fn size(&self, set: Set) -> usize {
        self.sizes.get(&set).copied().unwrap_or(0)
    }

    /// All addresses of `kube-ipvs0`.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }

    /// Whether an address belongs on `kube-ipvs0`.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.contains_key(&ip)
    }
}

/// Stages the changes of virtual servers. A Service without endpoints has no virtual server, and a rule rejects its
/// packets: ipvs would reject packets of the node itself with an ICMP message, which TCP over IPv6 was seen to ignore.
/// The virtual server stays while an endpoint drains.
pub fn change_servers(
    old: ServiceObjects,
    new: ServiceObjects,
    draining: &mut Draining,
    tx: &mut Transaction,
) {
    let mut before: HashMap<Key, Server> = old.servers.into_iter().collect();
    for (key, server) in new.servers {
        let old = before.remove(&key);
        let existed = old.as_ref().is_some_and(|old| !old.is_empty()) || draining.has_server(key);
        match old {
            Some(old) if old == server => {}
            Some(old) if existed => change_server(key, &old, &server, draining, tx),
            _ if server.is_empty() => {}
            _ => tx.add_servers.push((key, server)),
        }
    }
    for (key, old) in before {
        if !old.is_empty() || draining.has_server(key) {
            draining.remove_server(key);
            tx.remove_servers.push(key);
        }
    }
}

fn change_server(key: Key, old: &Server, new: &Server, draining: &mut Draining, tx: &mut Transaction) {
    for (target, weight) in &new.targets {
        match old.targets.get(target) {
            Some(before) if before == weight => {}
            Some(_) => tx.set_weights.push((key, *target, *weight)),
            None if draining.remove(key, *target) => tx.set_weights.push((key, *target, *weight)),
            None => tx.add_targets.push((key, *target, *weight)),
        }
    }
    for target in old.targets.keys().filter(|t| !new.targets.contains_key(t)) {
        if new.drains() {
            draining.insert(key, *target);
            tx.drain_targets.push((key, *target));
        } else {
            tx.remove_targets.push((key, *target));
        }
    }
    if new.is_empty() && !draining.has_server(key) {
        tx.remove_servers.push(key);
    } else if (old.scheduler, old.affinity) != (new.scheduler, new.affinity) {
        tx.edit_servers.push((key, Server { targets: BTreeMap::new(), ..new.clone() }));
    }
}
