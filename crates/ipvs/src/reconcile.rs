//! Compares the kernel's objects with the wanted ones, and stages the differences.

use crate::diff::{Draining, SharedObjects, Transaction};
use crate::listing::{ListedServer, Listing, RealServerState};
use crate::servers::{DRAINING_WEIGHT, Key, Server};
use crate::sets::Set;
use portway_dataplane::Drift;
use portway_model::{Family, Target};
use portway_netlink::ipset::Member;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The transaction that makes the kernel hold the wanted objects, and the drift. `draining` becomes the draining
/// endpoints that the kernel has, and those that the transaction drains.
pub fn reconcile(
    listing: &Listing,
    family: Family,
    shared: &SharedObjects,
    servers: HashMap<Key, Server>,
    draining: &mut Draining,
) -> (Transaction, Drift) {
    let mut difference = Difference { family, tx: Transaction::default(), drift: Drift::default() };
    for set in Set::ALL {
        difference.set(set, listing.sets.get(&set), shared.members(set));
    }
    let known = std::mem::take(draining);
    difference.servers(listing, servers, &known, draining);
    difference.addresses(listing, shared);
    (difference.tx, difference.drift)
}

struct Difference {
    family: Family,
    tx: Transaction,
    drift: Drift,
}

impl Difference {
    fn missing(&mut self, object: impl std::fmt::Display) {
        self.drift.missing += 1;
        self.drift.note(format_args!("{object} is missing"));
    }

    fn foreign(&mut self, object: impl std::fmt::Display) {
        self.drift.foreign += 1;
        self.drift.note(format_args!("{object} belongs to no Service"));
    }

    fn altered(&mut self, difference: impl std::fmt::Display) {
        self.drift.altered += 1;
        self.drift.note(difference);
    }

    fn set(&mut self, set: Set, found: Option<&HashSet<Member>>, wanted: impl Iterator<Item = Member>) {
        let name = set.name(self.family);
        let none = HashSet::new();
        if found.is_none() {
            self.missing(format_args!("set {name}"));
        }
        let found = found.unwrap_or(&none);
        let mut known = HashSet::new();
        let mut wanted: Vec<Member> = wanted.collect();
        wanted.sort_unstable();
        for member in wanted {
            if !found.contains(&member) {
                self.missing(format_args!("{member} in {name}"));
                self.tx.add_members.entry(set).or_default().push(member);
            }
            known.insert(Member { mark: None, ..member });
        }
        let mut extra: Vec<&Member> =
            found.iter().filter(|m| !known.contains(&Member { mark: None, ..**m })).collect();
        extra.sort_unstable();
        for member in extra {
            self.foreign(format_args!("{member} in {name}"));
            self.tx.remove_members.entry(set).or_default().push(*member);
        }
    }

    fn servers(
        &mut self,
        listing: &Listing,
        wanted: HashMap<Key, Server>,
        known: &Draining,
        draining: &mut Draining,
    ) {
        let mut extra: Vec<Key> =
            listing.servers.keys().filter(|k| !wanted.contains_key(k)).copied().collect();
        let mut wanted: Vec<(Key, Server)> = wanted.into_iter().collect();
        wanted.sort_unstable_by_key(|(key, _)| *key);
        for (key, server) in wanted {
            match listing.servers.get(&key) {
                None if server.is_empty() => {}
                None => {
                    self.missing(format_args!("virtual server {key}"));
                    self.tx.add_servers.push((key, server));
                }
                Some(found) => self.server(key, &server, found, known, draining),
            }
        }
        extra.sort_unstable();
        for key in extra {
            self.foreign(format_args!("virtual server {key}"));
            self.tx.remove_servers.push(key);
        }
    }

    fn server(
        &mut self,
        key: Key,
        server: &Server,
        found: &ListedServer,
        known: &Draining,
        draining: &mut Draining,
    ) {
        if !server.matches_listed(&found.server) {
            self.altered(format_args!("virtual server {key} has another scheduler, timeout or flags"));
            self.tx.edit_servers.push((key, Server { targets: BTreeMap::new(), ..server.clone() }));
        }
        for (target, weight) in &server.targets {
            match found.targets.get(target) {
                Some(listed) if !listed.by_nat => {
                    self.altered(format_args!("real server {target} of {key} is not reached by NAT"));
                    self.tx.set_weights.push((key, *target, *weight));
                }
                Some(listed) if listed.weight == *weight => {}
                Some(_) => {
                    self.altered(format_args!("real server {target} of {key} has another weight"));
                    self.tx.set_weights.push((key, *target, *weight));
                }
                None => {
                    self.missing(format_args!("real server {target} of {key}"));
                    self.tx.add_targets.push((key, *target, *weight));
                }
            }
        }
        let mut extra: Vec<_> =
            found.targets.iter().filter(|(t, _)| !server.targets.contains_key(t)).collect();
        extra.sort_unstable_by_key(|(target, _)| **target);
        for (target, listed) in extra {
            self.unwanted(key, server, *target, *listed, known, draining);
        }
        if server.is_empty() && !draining.has_server(key) {
            if found.targets.is_empty() {
                self.foreign(format_args!("virtual server {key}"));
            }
            self.tx.remove_servers.push(key);
        }
    }

    /// An unwanted real server is removed, or drains first.
    fn unwanted(
        &mut self,
        key: Key,
        server: &Server,
        target: Target,
        listed: RealServerState,
        known: &Draining,
        draining: &mut Draining,
    ) {
        let drains = server.drains() && listed.connections > 0;
        if drains && listed.weight == DRAINING_WEIGHT {
            // This process or a previous one began to drain it.
            draining.insert(key, target);
            return;
        }
        if !known.contains(key, target) {
            self.foreign(format_args!("real server {target} of {key}"));
        }
        if drains {
            draining.insert(key, target);
            self.tx.drain_targets.push((key, target));
        } else {
            self.tx.remove_targets.push((key, target));
        }
    }

    fn addresses(&mut self, listing: &Listing, shared: &SharedObjects) {
        let device = crate::DEVICE;
        if listing.device.is_none() {
            self.missing(format_args!("device {device}"));
        }
        let mut wanted: Vec<_> = shared.addresses().collect();
        wanted.sort_unstable();
        for ip in wanted.into_iter().filter(|ip| !listing.addresses.contains(ip)) {
            self.missing(format_args!("{ip} on {device}"));
            self.tx.bind.push(ip);
        }
        let mut extra: Vec<_> = listing.addresses.iter().filter(|ip| !shared.has_address(**ip)).collect();
        extra.sort_unstable();
        for ip in extra {
            self.foreign(format_args!("{ip} on {device}"));
            self.tx.unbind.push(*ip);
        }
    }
}
