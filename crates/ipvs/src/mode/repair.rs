//! Making the kernel hold the wanted objects, whatever it holds, and finding the Service whose objects it refuses.

use super::{Expected, Ipvs, refused};
use crate::commit::{About, Answer, Kernel, Refusal, commit, fill};
use crate::diff::{Shared, Transaction};
use crate::listing::{Known, Seen, list};
use crate::reconcile::reconcile;
use crate::render::ServiceObjects;
use crate::servers::{Key, Server};
use crate::sets::Set;
use portway_dataplane::{Drift, Error, Refused, Report, Scheduler};
use portway_model::ServiceName;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// How often a repair begins anew because the kernel would not have something.
const ATTEMPTS: usize = 16;

impl<K: Kernel, R: portway_xtables::commit::Kernel> Ipvs<K, R> {
    /// Notes what the kernel will not have, however often it is asked, so that the rest can be in force; whether there was
    /// something.
    pub(super) fn leave_out(&mut self, refused: &[Refusal], report: &mut Report) -> bool {
        let before = self.refused.len();
        for Refusal { about, error } in refused.iter().filter(|r| is_final(&r.error)) {
            let part = match about {
                About::Server(key) => (*key, None),
                About::Target(key, target) => (*key, Some(*target)),
                _ => continue,
            };
            let Some(service) = self.servers.get(&part.0).map(|e| e.service.clone()) else { continue };
            if self.refused.insert(part, service.clone()).is_none() {
                report.refused.push(Refused { service, reason: error.to_string() });
            }
        }
        let news = self.refused.len() > before;
        if news {
            self.refused_since.get_or_insert_with(Instant::now);
        }
        news
    }

    /// Notes the schedulers that the kernel turned out not to have; whether there was one.
    pub(super) fn note_missing(&mut self, refused: &[Refusal], tx: &Transaction) -> bool {
        let lacking = |r: &Refusal| if let About::Scheduler(key) = r.about { Some(key) } else { None };
        let keys: HashSet<Key> = refused.iter().filter_map(lacking).collect();
        let all = tx.make.iter().chain(&tx.set);
        let schedulers: Vec<Scheduler> =
            all.filter(|(key, _)| keys.contains(key)).map(|(_, server)| server.scheduler).collect();
        // The configured one was tried before; without it there is nothing to fall back to.
        let new = schedulers.into_iter().filter(|s| *s != self.settings.ipvs.scheduler);
        let before = self.missing.len();
        self.missing.extend(new);
        let news = self.missing.len() > before;
        if news {
            self.refused_since.get_or_insert_with(Instant::now);
        }
        news
    }

    /// Gives up the marks of new servers that exist already: those servers belong to other programs.
    /// Whether there was one.
    pub(super) fn avoid_foreign_marks(&mut self, new: Vec<Key>) -> Answer<bool> {
        let mut some = false;
        for key in new {
            let Key::Mark(mark) = key else { continue };
            if self.kernel.has_server(&key.wire(self.family))? {
                tracing::info!(family = %self.family, mark = format!("{mark:#x}"), "another program has a virtual server with this firewall mark; using another mark");
                self.marks.avoid_foreign(mark);
                self.servers.remove(&key);
                some = true;
            }
        }
        Ok(some)
    }

    /// Lists the kernel, and makes it hold the wanted objects. Objects that it refuses are left out, one by one.
    pub(super) fn reconcile_all(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error> {
        let mut first = None;
        for _ in 0..ATTEMPTS {
            let known = self.known();
            let wanted = self.gather(report);
            let is_new = |key: &&Key| match key {
                Key::Mark(mark) => !known.servers.contains(*key) && !self.marks.is_found(*mark),
                Key::At { .. } => false,
            };
            let new = wanted.keys().filter(is_new).copied().collect();
            if self.avoid_foreign_marks(new).map_err(|e| self.refused(e))? {
                continue;
            }
            let seen = self.list(&known, &wanted).map_err(|e| self.refused(e))?;
            let device = self.prepare(report)?;
            self.make_sets(&seen)?;
            let (mut tx, drift) = reconcile(&seen, self.family, &self.shared, wanted, &mut self.draining);
            let drift = first.get_or_insert(drift).clone();
            let refused = fill(&mut self.kernel, self.family, &mut tx).map_err(|e| self.refused(e))?;
            // While rules of another mode lead to endpoints, servers come first: no packet needs the new rules yet.
            // Without, ours come first, lest something leave unmasqueraded.
            let rules_last = fresh && self.rules.program().finds_service_chains()?;
            if !rules_last {
                self.sync_rules(report)?;
            }
            let refused = commit(&mut self.kernel, self.family, device, &tx, refused);
            let refused = refused.map_err(|e| self.refused(e))?;
            report.added += tx.added();
            report.removed += tx.removed();
            if rules_last && refused.is_empty() {
                self.sync_rules(report)?;
            }
            match refused.first() {
                None => return Ok(drift),
                Some(_) if self.note_missing(&refused, &tx) => self.report_degraded(report),
                Some(_) if self.leave_out(&refused, report) => {}
                Some(first) => {
                    let words = format!("{}{}", first.error, others(refused.len() - 1));
                    return Err(Error::kernel(self.family, words));
                }
            }
        }
        let words = "servers kept being refused, each for another reason";
        Err(Error::kernel(self.family, words))
    }

    /// Says for every Service that is balanced otherwise than it asks.
    pub(super) fn report_degraded(&self, report: &mut Report) {
        for plan in self.plans.values() {
            let reason = self.context().degraded(plan);
            let degraded = reason.map(|reason| Refused { service: plan.name.clone(), reason });
            report.degraded.extend(degraded.filter(|d| !report.degraded.contains(d)));
        }
    }

    /// Our device, and the kernel's settings.
    pub(super) fn prepare(&mut self, report: &mut Report) -> Result<u32, Error> {
        let found = self.kernel.device().map_err(|e| self.refused(e))?;
        let device = match found {
            Some(device) => device,
            None => self.kernel.make_device().map_err(|e| self.refused(e))?,
        };
        self.device = Some(device);
        let prepared = self.kernel.prepare(device, &self.settings.ipvs);
        report.warnings.extend(prepared.warnings);
        match prepared.impossible {
            Some(words) => Err(Error::kernel(self.family, words)),
            None => Ok(device),
        }
    }

    /// What we made, as far as we know.
    pub(super) fn known(&self) -> Known {
        Known {
            servers: self.servers.keys().copied().chain(self.draining.servers()).collect(),
            addresses: self.shared.addresses().collect(),
            foreign_marks: self.marks.others().clone(),
        }
    }

    /// All servers that are wanted; what is shared is counted anew. Of several Services that want one server, because an
    /// external IP is this node's own address, and its port another one's node port, the one that has it keeps it.
    pub(super) fn gather(&mut self, report: &mut Report) -> HashMap<Key, Server> {
        let mut shared = Shared::default();
        let mut servers = HashMap::new();
        let mut owners: HashMap<Key, Expected> = HashMap::new();
        let told = std::mem::take(&mut self.contested);
        let (none, mut ignored) = (ServiceObjects::default(), Transaction::default());
        let mut names: Vec<ServiceName> = self.plans.keys().cloned().collect();
        names.sort_unstable();
        for name in names {
            // Settings and addresses may have changed since it got its marks.
            let wants = self.context().wants(&self.plans[&name]);
            self.assign_marks(&name, Some(wants));
            let objects = self.context().service_objects(&self.plans[&name]);
            shared.change(&none, &objects, &mut ignored);
            ignored = Transaction::default();
            for (key, server) in objects.servers {
                let has =
                    |service: &ServiceName| self.servers.get(&key).is_some_and(|e| e.service == *service);
                if let Some(other) = owners.get(&key).map(|e| e.service.clone()) {
                    let (keeps, yields) = if has(&name) { (&name, &other) } else { (&other, &name) };
                    if told.get(&key) != Some(yields) {
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

    pub(super) fn list(&mut self, known: &Known, wanted: &HashMap<Key, Server>) -> Answer<Seen> {
        let (own, exclude) = (self.own.clone(), &self.settings.ipvs.exclude);
        list(&mut self.kernel, self.family, &own, exclude, known, |key| wanted.contains_key(&key))
    }

    pub(super) fn make_sets(&mut self, seen: &Seen) -> Result<(), Error> {
        if let Some(unfit) = seen.unfit.first() {
            let words = format!(
                "the set {} is a {} that we did not make, and our rules need one of that name: remove it (ipset destroy {})",
                unfit.name, unfit.kind, unfit.name
            );
            return Err(Error::kernel(self.family, words));
        }
        for set in Set::ALL.into_iter().filter(|set| !seen.sets.contains_key(set)) {
            self.kernel.make_set(&set.describe(self.family)).map_err(|e| refused(self.family, e))?;
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

/// Whether the same request would be refused again, whatever else is there.
fn is_final(error: &portway_netlink::Error) -> bool {
    let moment = error.is_exists() || error.is_not_found() || portway_netlink::ipvs::is_no_service(error);
    !moment && !error.is_transient()
}

fn others(n: usize) -> String {
    match n {
        0 => String::new(),
        1 => ", and another one".to_owned(),
        n => format!(", and {n} others"),
    }
}
