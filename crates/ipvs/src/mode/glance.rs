//! Noticing what others change, and what has drained, a little at a time.
//!
//! The kernel announces addresses; of sets it tells how many members they have, and of servers it lists those there are,
//! which is cheap enough to be done every second. What is behind them is looked at for a few of them each
//! time, so that after a while all were.

use super::{Expected, Ipvs, Trust};
use crate::commit::{Answer, Kernel, is_a_nodes};
use crate::servers::{DRAINED, Key};
use crate::sets::Set;
use portway_model::Family;
use portway_netlink::ipvs::{Change, VirtualServer};
use portway_netlink::route::Event;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Servers that are looked at in one go.
const SERVERS: usize = 32;

impl<K: Kernel, R: portway_iptables::commit::Kernel> Ipvs<K, R> {
    /// Whether something looks different than after our last change, as far as a glance tells. What has drained goes.
    pub fn looks_different(&mut self) -> bool {
        if self.trust != Trust::Sure {
            return false;
        }
        if let Err(error) = self.release() {
            tracing::debug!(family = %self.family, %error, "endpoints that drain could not be looked at");
        }
        self.compare().unwrap_or(true)
    }

    /// Takes in what happened to links and addresses, which costs nothing; whether we have to do something about it.
    pub fn hears_of_changes(&mut self) -> bool {
        if self.trust == Trust::Fresh {
            return false;
        }
        let Some(events) = self.kernel.events() else {
            // So many that some were lost.
            self.own_is_stale = true;
            return true;
        };
        let (mut moved, mut own) = (false, false);
        // Of what came and went only the end counts. Our own changes of IPv6 addresses are announced to us too.
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

    /// Removes those that have drained.
    fn release(&mut self) -> Answer<()> {
        if self.drain_rota.is_empty() {
            self.drain_rota = self.draining.servers();
        }
        let these = self.drain_rota.split_off(self.drain_rota.len().saturating_sub(SERVERS));
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
                    tracing::debug!(family = %self.family, server = %key, %target, "has drained");
                }
            }
            if !self.servers.contains_key(&key) && !self.draining.has(key) {
                // Nobody is behind it any more.
                changes.push(Change::DeleteService { service: key.wire(self.family) });
            }
            if !changes.is_empty() && !self.kernel.change_servers(&changes)?.is_empty() {
                // Whatever it is now, nobody knows it.
                self.trust = Trust::Failed;
            }
        }
        Ok(())
    }

    /// Whether something differs.
    fn compare(&mut self) -> Answer<bool> {
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
        if self.rota.is_empty() {
            self.rota = self.servers.keys().copied().collect();
        }
        let these = self.rota.split_off(self.rota.len().saturating_sub(SERVERS));
        for key in these {
            let plan = self.servers.get(&key).and_then(|expected| self.plans.get(&expected.service));
            let Some(plan) = plan else { continue };
            let part = self.world().part(plan);
            let Some((_, server)) = part.servers.into_iter().find(|(k, _)| *k == key) else { continue };
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
