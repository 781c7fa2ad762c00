//! Cheap checks for changes by other processes, and the removal of drained endpoints.
//!
//! The kernel sends notifications of address changes. The sizes of sets and the list of virtual servers are cheap
//! enough to compare every second. The endpoints of a few virtual servers are compared each time, in turn.

use super::{Expected, Ipvs};
use crate::commit::{Kernel, KernelResult, is_node_address};
use crate::servers::{DRAINING_WEIGHT, Key};
use crate::sets::Set;
use portway_model::Family;
use portway_netlink::ipvs::{Change, VirtualServer};
use portway_netlink::route::Event;
use std::collections::HashMap;
use std::net::SocketAddr;

/// The number of virtual servers whose endpoints are compared in one check.
const SERVERS: usize = 32;

impl<K: Kernel, R: portway_xtables::commit::Kernel> Ipvs<K, R> {
    /// Whether a sample of the kernel's objects differs from the applied ones.
    pub fn sample_differs(&mut self) -> bool {
        self.compare_sample().unwrap_or(true)
    }

    /// Reads the notifications of links and addresses, without asking the kernel unless a node address changed. True
    /// if a sync is needed.
    pub fn addresses_changed(&mut self) -> bool {
        let Some(events) = self.kernel.events() else {
            // Some notifications were lost.
            self.node_addresses_stale = true;
            return true;
        };
        let (mut needs_sync, mut node_changed) = (false, false);
        // Only the last notification of an address counts. Changes of IPv6 addresses by this mode are included.
        let mut addresses = HashMap::new();
        for event in events {
            match event {
                Event::Address { added, address } => {
                    addresses.insert((address.link, address.net.addr()), added);
                }
                Event::Link { added, index, .. } => needs_sync |= !added && Some(index) == self.device,
            }
        }
        for ((link, ip), added) in addresses {
            if Family::of(ip) != self.family || !is_node_address(ip) {
                continue;
            }
            match Some(link) == self.device {
                true => needs_sync |= added != self.shared.has_address(ip),
                false => node_changed |= added != self.node_addresses.contains(&ip),
            }
        }
        if node_changed {
            // Another device may still have the address: some network plugins give the devices of all pods the same
            // one.
            let listed = self.kernel.node_addresses(self.family);
            let differs = listed.map_or(true, |listed| listed != self.node_addresses);
            self.node_addresses_stale |= differs;
            needs_sync |= differs;
        }
        needs_sync
    }

    /// Removes endpoints that have drained. False if the kernel refused a change, so its objects differ from the
    /// expected ones.
    pub fn remove_drained(&mut self) -> KernelResult<bool> {
        if self.drain_queue.is_empty() {
            self.drain_queue = self.draining.servers();
        }
        let batch = self.drain_queue.split_off(self.drain_queue.len().saturating_sub(SERVERS));
        for key in batch {
            let found = self.kernel.targets(&key.wire(self.family))?;
            let mut changes = Vec::new();
            for target in self.draining.targets(key) {
                if found.get(&target).is_some_and(|real| real.connections > 0) {
                    continue;
                }
                self.draining.remove(key, target);
                if found.contains_key(&target) {
                    let server = SocketAddr::new(target.ip, target.port);
                    changes.push(Change::DeleteServer { service: key.wire(self.family), server });
                    tracing::debug!(family = %self.family, server = %key, %target, "endpoint has drained");
                }
            }
            if !self.servers.contains_key(&key) && !self.draining.has_server(key) {
                // The virtual server has no endpoints left.
                changes.push(Change::DeleteService { service: key.wire(self.family) });
            }
            if !changes.is_empty() && !self.kernel.change_servers(&changes)?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn compare_sample(&mut self) -> KernelResult<bool> {
        Ok(self.sets_differ()? || self.servers_differ()? || self.targets_differ()?)
    }

    fn sets_differ(&mut self) -> KernelResult<bool> {
        let infos = self.kernel.sets()?;
        // Kernels before 4.9 do not report the number of members.
        let counts = crate::sysctl::linux().is_none_or(|version| version >= (4, 9));
        let differs = |set: Set| {
            let name = set.name(self.family);
            let Some(info) = infos.iter().find(|info| info.name == name) else { return true };
            counts && info.elements as usize != self.shared.size(set)
        };
        Ok(Set::ALL.into_iter().any(differs))
    }

    fn servers_differ(&mut self) -> KernelResult<bool> {
        let listed = self.kernel.servers(self.family)?;
        let found: HashMap<Key, &VirtualServer> =
            listed.iter().filter_map(|s| Some((Key::of(s)?, s))).collect();
        let same = |(key, expected): (&Key, &Expected)| {
            found.get(key).is_some_and(|f| expected.server.matches_listed(f))
        };
        Ok(!self.servers.iter().all(same))
    }

    fn targets_differ(&mut self) -> KernelResult<bool> {
        if self.check_queue.is_empty() {
            self.check_queue = self.servers.keys().copied().collect();
        }
        let batch = self.check_queue.split_off(self.check_queue.len().saturating_sub(SERVERS));
        for key in batch {
            let plan = self.servers.get(&key).and_then(|expected| self.plans.get(&expected.service));
            let Some(plan) = plan else { continue };
            let objects = self.context().service_objects(plan);
            let Some((_, server)) = objects.servers.into_iter().find(|(k, _)| *k == key) else { continue };
            let found = self.kernel.targets(&key.wire(self.family))?;
            let all_wanted = server
                .targets
                .iter()
                .all(|(t, weight)| found.get(t).is_some_and(|b| b.weight == *weight && b.by_nat));
            let extra = found.iter().filter(|(t, _)| !server.targets.contains_key(t));
            let all_draining = extra
                .into_iter()
                .all(|(t, b)| b.weight == DRAINING_WEIGHT && self.draining.contains(key, *t));
            if !all_wanted || !all_draining {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
