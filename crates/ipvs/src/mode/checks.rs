//! Checks for changes by other processes, and for endpoints that have drained, a little at a time.
//!
//! The kernel announces addresses; of sets it tells the number of members, and of servers it lists all, which is cheap
//! enough for every second. The endpoints of a few servers are compared each time, so that after a while all were.

use super::{Expected, Ipvs};
use crate::commit::{Answer, Kernel, is_a_nodes};
use crate::servers::{DRAINED, Key};
use crate::sets::Set;
use portway_model::Family;
use portway_netlink::ipvs::{Change, VirtualServer};
use portway_netlink::route::Event;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Servers whose endpoints are compared in one check.
const SERVERS: usize = 32;

impl<K: Kernel, R: portway_xtables::commit::Kernel> Ipvs<K, R> {
    /// Whether a sample of the kernel's objects differs from the applied ones.
    pub fn sample_differs(&mut self) -> bool {
        self.compare_sample().unwrap_or(true)
    }

    /// Reads the announcements about links and addresses, which costs nothing. True if a sync has to react to them.
    pub fn addresses_changed(&mut self) -> bool {
        let Some(events) = self.kernel.events() else {
            // Some announcements were lost.
            self.own_is_stale = true;
            return true;
        };
        let (mut moved, mut own) = (false, false);
        // Only the last announcement of an address counts. Changes of IPv6 addresses by this mode are announced too.
        let mut addresses = HashMap::new();
        for event in events {
            match event {
                Event::Address { added, address } => {
                    addresses.insert((address.link, address.net.addr()), added);
                }
                Event::Link { added, index, .. } => moved |= !added && Some(index) == self.device,
            }
        }
        for ((link, ip), added) in addresses {
            if Family::of(ip) != self.family || !is_a_nodes(ip) {
                continue;
            }
            match Some(link) == self.device {
                true => moved |= added != self.shared.has_address(ip),
                false => own |= added != self.own.contains(&ip),
            }
        }
        if own {
            // One that a link lost another one may have: each pod's has the same, with some network plugins.
            let listed = self.kernel.own_addresses(self.family);
            let differs = listed.map_or(true, |listed| listed != self.own);
            self.own_is_stale |= differs;
            moved |= differs;
        }
        moved
    }

    /// Removes endpoints that have drained. False if the kernel refused, and holds something else than expected.
    pub fn remove_drained(&mut self) -> Answer<bool> {
        let mut expected = true;
        if self.drain_queue.is_empty() {
            self.drain_queue = self.draining.servers();
        }
        let these = self.drain_queue.split_off(self.drain_queue.len().saturating_sub(SERVERS));
        for key in these {
            let found = self.kernel.targets(&key.wire(self.family))?;
            let mut changes = Vec::new();
            for target in self.draining.behind(key) {
                if found.get(&target).is_some_and(|behind| behind.connections > 0) {
                    continue;
                }
                self.draining.remove(key, target);
                if found.contains_key(&target) {
                    let server = SocketAddr::new(target.ip, target.port);
                    changes.push(Change::DeleteServer { service: key.wire(self.family), server });
                    tracing::debug!(family = %self.family, server = %key, %target, "endpoint has drained");
                }
            }
            if !self.servers.contains_key(&key) && !self.draining.has(key) {
                // It has no endpoint any more.
                changes.push(Change::DeleteService { service: key.wire(self.family) });
            }
            if !changes.is_empty() && !self.kernel.change_servers(&changes)?.is_empty() {
                expected = false;
            }
        }
        Ok(expected)
    }

    fn compare_sample(&mut self) -> Answer<bool> {
        Ok(self.sets_differ()? || self.servers_differ()? || self.targets_differ()?)
    }

    fn sets_differ(&mut self) -> Answer<bool> {
        let infos = self.kernel.sets()?;
        // Kernels before 4.9 do not count.
        let counts = crate::sysctl::linux().is_none_or(|version| version >= (4, 9));
        let differs = |set: Set| {
            let name = set.name(self.family);
            let Some(info) = infos.iter().find(|info| info.name == name) else { return true };
            counts && info.elements as usize != self.shared.size(set)
        };
        Ok(Set::ALL.into_iter().any(differs))
    }

    fn servers_differ(&mut self) -> Answer<bool> {
        let listed = self.kernel.servers(self.family)?;
        let found: HashMap<Key, &VirtualServer> =
            listed.iter().filter_map(|s| Some((Key::of(s)?, s))).collect();
        let same =
            |(key, expected): (&Key, &Expected)| found.get(key).is_some_and(|f| expected.server.is_like(f));
        Ok(!self.servers.iter().all(same))
    }

    fn targets_differ(&mut self) -> Answer<bool> {
        if self.check_queue.is_empty() {
            self.check_queue = self.servers.keys().copied().collect();
        }
        let these = self.check_queue.split_off(self.check_queue.len().saturating_sub(SERVERS));
        for key in these {
            let plan = self.servers.get(&key).and_then(|expected| self.plans.get(&expected.service));
            let Some(plan) = plan else { continue };
            let objects = self.context().service_objects(plan);
            let Some((_, server)) = objects.servers.into_iter().find(|(k, _)| *k == key) else { continue };
            let found = self.kernel.targets(&key.wire(self.family))?;
            let wanted = server
                .targets
                .iter()
                .all(|(t, share)| found.get(t).is_some_and(|b| b.share == *share && b.by_nat));
            let others = found.iter().filter(|(t, _)| !server.targets.contains_key(t));
            let drain =
                others.into_iter().all(|(t, b)| b.share == DRAINED && self.draining.contains(key, *t));
            if !wanted || !drain {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
