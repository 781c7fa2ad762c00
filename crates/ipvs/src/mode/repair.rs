//! Compares all objects of the kernel with the wanted ones and writes the differences. Objects that the kernel refuses
//! are left out and reported for their Service.

use super::{Expected, Ipvs, kernel_error};
use crate::commit::{Kernel, KernelResult, Object, Refusal, add_members, commit};
use crate::diff::{SharedObjects, Transaction};
use crate::listing::{Known, Listing, list};
use crate::reconcile::reconcile;
use crate::render::{RefusedObject, ServiceObjects};
use crate::servers::{Key, Server};
use crate::sets::Set;
use portway_dataplane::{Drift, Error, Refused, Report, Scheduler};
use portway_model::{ServiceName, ServicePlan};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

/// The number of attempts of a repair; each attempt leaves out objects that the kernel refused in the previous one.
const ATTEMPTS: usize = 16;

impl<K: Kernel, R: portway_xtables::commit::Kernel> Ipvs<K, R> {
    /// Records objects that the kernel refuses permanently, so that the other objects can be written. True if there
    /// was a new one.
    pub(super) fn leave_out(&mut self, refused: &[Refusal], report: &mut Report) -> bool {
        let before = self.refused_objects.len();
        for Refusal { object, error } in refused.iter().filter(|r| is_permanent(&r.error)) {
            let of_server = |key: &Key| self.servers.get(key).map(|expected| expected.service.clone());
            let (object, service) = match object {
                Object::Server(key) => (RefusedObject::Server(*key), of_server(key)),
                Object::Target(key, target) => (RefusedObject::Target(*key, *target), of_server(key)),
                // Not an address that could not be removed, nor one of a device that is gone or switched off.
                Object::Address(ip) if self.shared.has_address(*ip) && !is_of_device(error) => {
                    (RefusedObject::Address(*ip), self.service_at(*ip))
                }
                Object::Address(_) => continue,
                Object::Set(_) | Object::Scheduler(_) => continue,
            };
            let Some(service) = service else { continue };
            if self.refused_objects.insert(object, service.clone()).is_none() {
                report.refused.push(Refused { service, reason: error.to_string() });
            }
        }
        let is_new = self.refused_objects.len() > before;
        if is_new {
            self.refused_since.get_or_insert_with(Instant::now);
        }
        is_new
    }

    /// The Service that is served at an address.
    fn service_at(&self, ip: IpAddr) -> Option<ServiceName> {
        let is_there = |plan: &&ServicePlan| {
            plan.ports.iter().flat_map(|port| &port.frontends).any(|frontend| frontend.address == Some(ip))
        };
        self.plans.values().find(is_there).map(|plan| plan.name.clone())
    }

    /// Records schedulers that the kernel does not have. True if there was a new one.
    pub(super) fn record_missing_schedulers(&mut self, refused: &[Refusal], tx: &Transaction) -> bool {
        let lacking = |r: &Refusal| if let Object::Scheduler(key) = r.object { Some(key) } else { None };
        let keys: HashSet<Key> = refused.iter().filter_map(lacking).collect();
        let all = tx.add_servers.iter().chain(&tx.edit_servers);
        let schedulers: Vec<Scheduler> =
            all.filter(|(key, _)| keys.contains(key)).map(|(_, server)| server.scheduler).collect();
        // The configured scheduler is the fallback, and was probed before.
        let new = schedulers.into_iter().filter(|s| *s != self.settings.ipvs.scheduler);
        let before = self.missing_schedulers.len();
        self.missing_schedulers.extend(new);
        let is_new = self.missing_schedulers.len() > before;
        if is_new {
            self.refused_since.get_or_insert_with(Instant::now);
        }
        is_new
    }

    /// Releases the marks of new virtual servers if a virtual server with that mark exists already: it belongs to
    /// another program. True if there was one.
    pub(super) fn avoid_foreign_marks(&mut self, new: Vec<Key>) -> KernelResult<bool> {
        let mut found = false;
        for key in new {
            let Key::Mark(mark) = key else { continue };
            if self.kernel.has_server(&key.wire(self.family))? {
                tracing::info!(family = %self.family, mark = format!("{mark:#x}"), "another program has a virtual server with this firewall mark; using another mark");
                self.marks.add_foreign(mark);
                self.servers.remove(&key);
                found = true;
            }
        }
        Ok(found)
    }

    /// Lists the kernel's objects and writes the differences to the wanted ones. Objects that the kernel refuses are
    /// left out in the next attempt.
    pub(super) fn reconcile_all(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error> {
        let mut first = None;
        for _ in 0..ATTEMPTS {
            let known = self.known();
            let wanted = self.render_all(report);
            let is_new = |key: &&Key| match key {
                Key::Mark(mark) => !known.servers.contains(*key) && !self.marks.is_adopted(*mark),
                Key::Address { .. } => false,
            };
            let new = wanted.keys().filter(is_new).copied().collect();
            if self.avoid_foreign_marks(new).map_err(|e| self.kernel_error(e))? {
                continue;
            }
            let listing = self.list(&known, &wanted).map_err(|e| self.kernel_error(e))?;
            let device = self.prepare_device(report)?;
            self.create_sets(&listing)?;
            let (mut tx, drift) = reconcile(&listing, self.family, &self.shared, wanted, &mut self.draining);
            let drift = first.get_or_insert(drift).clone();
            let refused =
                add_members(&mut self.kernel, self.family, &mut tx).map_err(|e| self.kernel_error(e))?;
            // While chains of the iptables mode still serve the Services, the virtual servers are added before the
            // rules: packets do not need the new rules yet. Otherwise the rules are written first, so that no packet
            // reaches a virtual server without being masqueraded.
            let rules_last = fresh && self.rules.program().has_service_chains()?;
            if !rules_last {
                self.sync_rules(report)?;
            }
            let refused = commit(&mut self.kernel, self.family, device, &tx, refused);
            let refused = refused.map_err(|e| self.kernel_error(e))?;
            report.added += tx.added();
            report.removed += tx.removed();
            if rules_last && refused.is_empty() {
                self.sync_rules(report)?;
            }
            match refused.first() {
                None => return Ok(drift),
                Some(_) if self.record_missing_schedulers(&refused, &tx) => self.report_degraded(report),
                Some(_) if self.leave_out(&refused, report) => {}
                Some(first) => {
                    let message = format!("{}{}", first.error, and_more(refused.len() - 1));
                    return Err(Error::kernel(self.family, message));
                }
            }
        }
        let message = format!(
            "gave up after {ATTEMPTS} attempts: in each, the kernel refused another object, or another program had the firewall mark of a virtual server"
        );
        Err(Error::kernel(self.family, message))
    }

    /// Reports all Services that are not programmed as they ask.
    pub(super) fn report_degraded(&self, report: &mut Report) {
        for plan in self.plans.values() {
            let reason = self.context().degraded(plan);
            let degraded = reason.map(|reason| Refused { service: plan.name.clone(), reason });
            report.degraded.extend(degraded.filter(|d| !report.degraded.contains(d)));
        }
    }

    /// Creates `kube-ipvs0` if it does not exist, and sets the sysctls. Returns the index of the device.
    pub(super) fn prepare_device(&mut self, report: &mut Report) -> Result<u32, Error> {
        let found = self.kernel.device().map_err(|e| self.kernel_error(e))?;
        let device = match found {
            Some(device) => device,
            None => self.kernel.create_device().map_err(|e| self.kernel_error(e))?,
        };
        self.device = Some(device);
        let sysctls = self.kernel.set_sysctls(device, &self.settings.ipvs);
        report.warnings.extend(sysctls.warnings);
        match sysctls.fatal {
            Some(reason) => Err(Error::kernel(self.family, reason)),
            None => Ok(device),
        }
    }

    /// The objects whose owner this process knows.
    pub(super) fn known(&self) -> Known {
        Known {
            servers: self.servers.keys().copied().chain(self.draining.servers()).collect(),
            addresses: self.shared.addresses().collect(),
            foreign_marks: self.marks.foreign().clone(),
        }
    }

    /// Renders all Services and returns the wanted virtual servers; members and addresses are counted again. Two
    /// Services can need the same virtual server, if the external IP of one is an address of this node and its port is
    /// the node port of the other. The Service that has it keeps it.
    pub(super) fn render_all(&mut self, report: &mut Report) -> HashMap<Key, Server> {
        let mut shared = SharedObjects::default();
        let mut servers = HashMap::new();
        let mut owners: HashMap<Key, Expected> = HashMap::new();
        let reported = std::mem::take(&mut self.contested);
        let (none, mut ignored) = (ServiceObjects::default(), Transaction::default());
        let mut names: Vec<ServiceName> = self.plans.keys().cloned().collect();
        names.sort_unstable();
        for name in names {
            // Settings and addresses may have changed since the marks were assigned.
            let mark_requests = self.context().mark_requests(&self.plans[&name]);
            self.assign_marks(&name, Some(mark_requests));
            let objects = self.context().service_objects(&self.plans[&name]);
            shared.change(&none, &objects, &mut ignored);
            ignored = Transaction::default();
            for (key, server) in objects.servers {
                let has =
                    |service: &ServiceName| self.servers.get(&key).is_some_and(|e| e.service == *service);
                if let Some(other) = owners.get(&key).map(|e| e.service.clone()) {
                    let (keeps, yields) = if has(&name) { (&name, &other) } else { (&other, &name) };
                    if reported.get(&key) != Some(yields) {
                        let reason = format!("{key} is served for Service {keeps} already");
                        report.degraded.push(Refused { service: yields.clone(), reason });
                    }
                    self.contested.insert(key, yields.clone());
                    if *keeps != name {
                        continue;
                    }
                }
                if !server.is_empty() {
                    owners.insert(key, Expected::new(&name, &server));
                }
                servers.insert(key, server);
            }
        }
        self.shared = shared;
        self.servers = owners;
        self.check_queue.clear();
        servers
    }

    pub(super) fn list(&mut self, known: &Known, wanted: &HashMap<Key, Server>) -> KernelResult<Listing> {
        let (node_addresses, exclude) = (self.node_addresses.clone(), &self.settings.ipvs.exclude);
        list(&mut self.kernel, self.family, &node_addresses, exclude, known, wanted)
    }

    pub(super) fn create_sets(&mut self, listing: &Listing) -> Result<(), Error> {
        if let Some(incompatible) = listing.incompatible.first() {
            let message = format!(
                "the set {} exists with another type ({}) or other options than Portway needs: remove it (ipset destroy {})",
                incompatible.name, incompatible.kind, incompatible.name
            );
            return Err(Error::kernel(self.family, message));
        }
        for set in Set::ALL.into_iter().filter(|set| !listing.sets.contains_key(set)) {
            self.kernel.create_set(&set.describe(self.family)).map_err(|e| kernel_error(self.family, e))?;
        }
        Ok(())
    }

    /// Brings the constant rules up to date.
    pub(super) fn sync_rules(&mut self, report: &mut Report) -> Result<(), Error> {
        let done = self.rules.sync(&self.settings, Vec::new())?;
        report.full |= done.full;
        report.added += done.added;
        report.removed += done.removed;
        report.partial_failures += done.partial_failures;
        report.warnings.extend(done.warnings);
        report.tables = done.tables;
        report.drift.merge(done.drift);
        Ok(())
    }
}

/// Whether the kernel would refuse the same request again, whatever other objects exist.
fn is_permanent(error: &portway_netlink::Error) -> bool {
    let depends_on_others =
        error.is_exists() || error.is_not_found() || portway_netlink::ipvs::is_no_service(error);
    !depends_on_others && !error.is_transient()
}

/// Whether an error concerns all addresses of the device.
fn is_of_device(error: &portway_netlink::Error) -> bool {
    let of_device = [Errno::NODEV, Errno::NETDOWN, Errno::PERM, Errno::ACCESS];
    of_device.iter().any(|errno| error.errno() == Some(errno.raw_os_error()))
}

fn and_more(n: usize) -> String {
    match n {
        0 => String::new(),
        n => format!(", and {n} more refused changes"),
    }
}
