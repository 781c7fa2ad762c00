//! From what the kernel holds to what it should hold.

use crate::diff::{Draining, Shared, Transaction};
use crate::listing::{Behind, Found, Seen};
use crate::servers::{DRAINED, Key, Server};
use crate::sets::Set;
use portway_dataplane::Drift;
use portway_model::{Family, Target};
use portway_netlink::ipset::Member;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What has to be done, and how the kernel differs from what was applied. `draining` becomes what the kernel has of it.
pub fn reconcile(
    seen: &Seen,
    family: Family,
    shared: &Shared,
    servers: HashMap<Key, Server>,
    draining: &mut Draining,
) -> (Transaction, Drift) {
    let mut difference = Difference { family, tx: Transaction::default(), drift: Drift::default() };
    for set in Set::ALL {
        difference.set(set, seen.sets.get(&set), shared.members(set));
    }
    let known = std::mem::take(draining);
    difference.servers(seen, servers, &known, draining);
    difference.addresses(seen, shared);
    (difference.tx, difference.drift)
}

struct Difference {
    family: Family,
    tx: Transaction,
    drift: Drift,
}

impl Difference {
    fn missing(&mut self, what: impl std::fmt::Display) {
        self.drift.missing += 1;
        self.drift.note(format_args!("{what} is missing"));
    }

    fn foreign(&mut self, what: impl std::fmt::Display) {
        self.drift.foreign += 1;
        self.drift.note(format_args!("{what} belongs to no Service"));
    }

    fn altered(&mut self, what: impl std::fmt::Display) {
        self.drift.altered += 1;
        self.drift.note(what);
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
                self.tx.add.entry(set).or_default().push(member);
            }
            known.insert(Member { mark: None, ..member });
        }
        let mut extra: Vec<&Member> =
            found.iter().filter(|m| !known.contains(&Member { mark: None, ..**m })).collect();
        extra.sort_unstable();
        for member in extra {
            self.foreign(format_args!("{member} in {name}"));
            self.tx.remove.entry(set).or_default().push(*member);
        }
    }

    fn servers(
        &mut self,
        seen: &Seen,
        wanted: HashMap<Key, Server>,
        known: &Draining,
        draining: &mut Draining,
    ) {
        let mut extra: Vec<Key> = seen.servers.keys().filter(|k| !wanted.contains_key(k)).copied().collect();
        let mut wanted: Vec<(Key, Server)> = wanted.into_iter().collect();
        wanted.sort_unstable_by_key(|(key, _)| *key);
        for (key, server) in wanted {
            match seen.servers.get(&key) {
                None if server.is_empty() => {}
                None => {
                    self.missing(format_args!("server {key}"));
                    self.tx.make.push((key, server));
                }
                Some(found) => self.server(key, &server, found, known, draining),
            }
        }
        extra.sort_unstable();
        for key in extra {
            self.foreign(format_args!("server {key}"));
            self.tx.remove_servers.push(key);
        }
    }

    fn server(
        &mut self,
        key: Key,
        server: &Server,
        found: &Found,
        known: &Draining,
        draining: &mut Draining,
    ) {
        if !server.is_like(&found.server) {
            self.altered(format_args!("server {key} behaves otherwise"));
            self.tx.set.push((key, Server { targets: BTreeMap::new(), ..server.clone() }));
        }
        for (target, share) in &server.targets {
            match found.targets.get(target) {
                Some(behind) if !behind.by_nat => {
                    self.altered(format_args!("{target} behind {key} is not reached by NAT"));
                    self.tx.share.push((key, *target, *share));
                }
                Some(behind) if behind.share == *share => {}
                Some(_) => {
                    self.altered(format_args!("{target} behind {key} has another share"));
                    self.tx.share.push((key, *target, *share));
                }
                None => {
                    self.missing(format_args!("{target} behind {key}"));
                    self.tx.join.push((key, *target, *share));
                }
            }
        }
        let mut extra: Vec<_> =
            found.targets.iter().filter(|(t, _)| !server.targets.contains_key(t)).collect();
        extra.sort_unstable_by_key(|(target, _)| **target);
        for (target, behind) in extra {
            self.unwanted(key, server, *target, *behind, known, draining);
        }
        if server.is_empty() && !draining.has(key) {
            if found.targets.is_empty() {
                self.foreign(format_args!("server {key}"));
            }
            self.tx.remove_servers.push(key);
        }
    }

    /// An unwanted server is removed, or drains first.
    fn unwanted(
        &mut self,
        key: Key,
        server: &Server,
        target: Target,
        behind: Behind,
        known: &Draining,
        draining: &mut Draining,
    ) {
        let drains = server.drains() && behind.connections > 0;
        if drains && behind.share == DRAINED {
            // An earlier run's, or ours.
            draining.insert(key, target);
            return;
        }
        if !known.contains(key, target) {
            self.foreign(format_args!("{target} behind {key}"));
        }
        if drains {
            draining.insert(key, target);
            self.tx.drain.push((key, target));
        } else {
            self.tx.leave.push((key, target));
        }
    }

    fn addresses(&mut self, seen: &Seen, shared: &Shared) {
        let device = crate::DEVICE;
        if seen.device.is_none() {
            self.missing(format_args!("device {device}"));
        }
        let mut wanted: Vec<_> = shared.addresses().collect();
        wanted.sort_unstable();
        for ip in wanted.into_iter().filter(|ip| !seen.addresses.contains(ip)) {
            self.missing(format_args!("{ip} on {device}"));
            self.tx.bind.push(ip);
        }
        let mut extra: Vec<_> = seen.addresses.iter().filter(|ip| !shared.has_address(**ip)).collect();
        extra.sort_unstable();
        for ip in extra {
            self.foreign(format_args!("{ip} on {device}"));
            self.tx.unbind.push(*ip);
        }
    }
}
