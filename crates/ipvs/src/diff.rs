//! A change as a value, in an order that no connection notices.
//!
//! An address on our device without its server answers with a reset. So servers come before their address, and the
//! address goes before its servers; what is refused is refused before anything else changes, and until all else has.

use crate::render::ServiceObjects;
use crate::servers::{Key, Server};
use crate::sets::Set;
use portway_model::Target;
use portway_netlink::ipset::Member;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// What to do to the kernel, from top to bottom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Members to add.
    pub add: BTreeMap<Set, Vec<Member>>,
    /// Servers to make, with those behind them.
    pub make: Vec<(Key, Server)>,
    /// Servers that are to behave otherwise.
    pub set: Vec<(Key, Server)>,
    /// Endpoints to put behind a server, with their shares.
    pub join: Vec<(Key, Target, u32)>,
    /// Endpoints that get another share.
    pub share: Vec<(Key, Target, u32)>,
    /// Addresses to put on our device.
    pub bind: Vec<IpAddr>,
    /// Addresses to take off it.
    pub unbind: Vec<IpAddr>,
    /// Endpoints that get nothing new, and go when they have nothing left.
    pub drain: Vec<(Key, Target)>,
    /// Endpoints that go at once.
    pub leave: Vec<(Key, Target)>,
    /// Servers that go.
    pub remove_servers: Vec<Key>,
    /// Members to remove.
    pub remove: BTreeMap<Set, Vec<Member>>,
}

impl Transaction {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Transaction::default()
    }

    /// How much comes.
    pub fn added(&self) -> usize {
        let targets: usize = self.make.iter().map(|(_, server)| server.targets.len()).sum();
        let members: usize = self.add.values().map(Vec::len).sum();
        members + targets + self.make.len() + self.join.len() + self.bind.len()
    }

    /// How much goes.
    pub fn removed(&self) -> usize {
        let members: usize = self.remove.values().map(Vec::len).sum();
        members + self.unbind.len() + self.drain.len() + self.leave.len() + self.remove_servers.len()
    }
}

/// Endpoints that get nothing new and are waited for.
#[derive(Clone, Debug, Default)]
pub struct Draining(HashMap<Key, BTreeSet<Target>>);

impl Draining {
    /// Notes one.
    pub fn insert(&mut self, key: Key, target: Target) {
        self.0.entry(key).or_default().insert(target);
    }

    /// Forgets one; whether it was there.
    pub fn remove(&mut self, key: Key, target: Target) -> bool {
        let Some(targets) = self.0.get_mut(&key) else { return false };
        let was = targets.remove(&target);
        if targets.is_empty() {
            self.0.remove(&key);
        }
        was
    }

    /// Forgets all of a server.
    pub fn forget(&mut self, key: Key) {
        self.0.remove(&key);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one is.
    pub fn contains(&self, key: Key, target: Target) -> bool {
        self.0.get(&key).is_some_and(|targets| targets.contains(&target))
    }

    /// Whether a server has some.
    pub fn has(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// The servers that have some.
    pub fn servers(&self) -> Vec<Key> {
        self.0.keys().copied().collect()
    }

    /// Those behind one server.
    pub fn behind(&self, key: Key) -> Vec<Target> {
        self.0.get(&key).into_iter().flatten().copied().collect()
    }
}

/// What several Services may need at once: how many do.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    members: HashMap<(Set, Member), Entry>,
    addresses: HashMap<IpAddr, u32>,
    sizes: BTreeMap<Set, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    count: u32,
    mark: Option<(u32, u32)>,
}

/// A member by what it is found by: its mark may change.
fn unmarked(member: &Member) -> Member {
    Member { mark: None, ..*member }
}

impl Shared {
    /// Notes that a Service's part is another one now.
    pub fn change(&mut self, old: &ServiceObjects, new: &ServiceObjects, tx: &mut Transaction) {
        for (set, member) in &new.members {
            let entry = self.members.entry((*set, unmarked(member))).or_default();
            entry.count += 1;
            if entry.count == 1 {
                *self.sizes.entry(*set).or_default() += 1;
            }
            if entry.count == 1 || entry.mark != member.mark {
                entry.mark = member.mark;
                tx.add.entry(*set).or_default().push(*member);
            }
        }
        for (set, member) in &old.members {
            let key = (*set, unmarked(member));
            let Some(entry) = self.members.get_mut(&key) else { continue };
            entry.count -= 1;
            if entry.count == 0 {
                self.members.remove(&key);
                *self.sizes.entry(*set).or_default() -= 1;
                tx.remove.entry(*set).or_default().push(*member);
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
        let own = self.members.iter().filter(move |((set, _), _)| *set == wanted);
        own.map(|((_, member), entry)| Member { mark: entry.mark, ..*member })
    }

    /// How many members a set should have.
    pub fn size(&self, set: Set) -> usize {
        self.sizes.get(&set).copied().unwrap_or(0)
    }

    /// All addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }

    /// Whether an address belongs on our device.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.contains_key(&ip)
    }
}

/// Notes how Services' servers change. A Service without endpoints has no server: a rule refuses its packets, for
/// ipvs would refuse this machine's own packets in a way that not every client takes for an answer. But it stays
/// while an endpoint drains.
pub fn change_servers(
    old: ServiceObjects,
    new: ServiceObjects,
    draining: &mut Draining,
    tx: &mut Transaction,
) {
    let mut before: HashMap<Key, Server> = old.servers.into_iter().collect();
    for (key, server) in new.servers {
        let old = before.remove(&key);
        let was_there = old.as_ref().is_some_and(|old| !old.is_empty()) || draining.has(key);
        match old {
            Some(old) if old == server => {}
            Some(old) if was_there => change_server(key, &old, &server, draining, tx),
            _ if server.is_empty() => {}
            _ => tx.make.push((key, server)),
        }
    }
    for (key, old) in before {
        if !old.is_empty() || draining.has(key) {
            draining.forget(key);
            tx.remove_servers.push(key);
        }
    }
}

fn change_server(key: Key, old: &Server, new: &Server, draining: &mut Draining, tx: &mut Transaction) {
    for (target, share) in &new.targets {
        match old.targets.get(target) {
            Some(before) if before == share => {}
            Some(_) => tx.share.push((key, *target, *share)),
            None if draining.remove(key, *target) => tx.share.push((key, *target, *share)),
            None => tx.join.push((key, *target, *share)),
        }
    }
    for target in old.targets.keys().filter(|t| !new.targets.contains_key(t)) {
        if new.drains() {
            draining.insert(key, *target);
            tx.drain.push((key, *target));
        } else {
            tx.leave.push((key, *target));
        }
    }
    if new.is_empty() && !draining.has(key) {
        tx.remove_servers.push(key);
    } else if (old.scheduler, old.affinity) != (new.scheduler, new.affinity) {
        tx.set.push((key, Server { targets: BTreeMap::new(), ..new.clone() }));
    }
}
