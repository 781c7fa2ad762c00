//! The mode itself: plans in, kernel in step.

mod glance;
mod repair;

use crate::commit::{Answer, Kernel, Netlink, commit};
use crate::diff::{Draining, Shared, Transaction, change_servers};
use crate::listing::list_sets;
use crate::marks::{Marks, Want};
use crate::modules;
use crate::reconcile::reconcile;
use crate::render::{Part, RefusedParts, World};
use crate::rules::base;
use crate::servers::{Key, Server};
use portway_dataplane::{Dataplane, Drift, Error, Refused, Report, Scheduler, Settings};
use portway_flows::Checks;
use portway_iptables::commit::Tool;
use portway_iptables::{Iptables, Tools, Variant};
use portway_model::{Family, Protocol, ServiceName, ServicePlan};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What was applied, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Nothing yet: the kernel may hold what an earlier run, or kube-proxy, made.
    Fresh,
    /// The last change was made, and nobody was seen to change anything since.
    Sure,
    /// Somebody changed something of ours.
    Tampered,
    /// Some of what we want is not there.
    Failed,
}

/// When what was refused is tried again though it did not change: a module may have been loaded.
const TRY_AGAIN: Duration = Duration::from_secs(300);

/// The ipvs mode for one family.
#[derive(Debug)]
pub struct Ipvs<K = Netlink, R = Tool> {
    kernel: K,
    /// The constant rules.
    rules: Iptables<R>,
    family: Family,
    /// The settings, as far as this kernel can do what they ask.
    settings: Settings,
    /// As they were asked for.
    asked: Settings,
    /// The addresses that this machine has anyway, as we last heard.
    own: BTreeSet<IpAddr>,
    /// They are to be asked for.
    own_is_stale: bool,
    plans: HashMap<ServiceName, ServicePlan>,
    marks: Marks,
    shared: Shared,
    /// All servers that should be there, and whose they are.
    servers: HashMap<Key, Expected>,
    /// Those that several Services want, and who goes without.
    contested: HashMap<Key, ServiceName>,
    draining: Draining,
    /// Schedulers that this kernel does not have.
    missing: HashSet<Scheduler>,
    /// What the kernel would not have, and since when.
    refused: RefusedParts,
    refused_since: Option<Instant>,
    device: Option<u32>,
    trust: Trust,
    /// Somebody changed something, and it has not been repaired since.
    tampered: bool,
    checks: Checks,
    /// Servers that are looked at next, and those of them with somebody who drains.
    rota: Vec<Key>,
    drain_rota: Vec<Key>,
}

/// A server that should be there, as far as a glance at it tells.
#[derive(Clone, Debug)]
struct Expected {
    service: ServiceName,
    server: Server,
}

impl Expected {
    fn new(service: &ServiceName, server: &Server) -> Expected {
        let server = Server { targets: std::collections::BTreeMap::new(), ..server.clone() };
        Expected { service: service.clone(), server }
    }
}

impl Ipvs {
    /// The variant of iptables that it uses.
    pub fn variant(&self) -> Variant {
        self.rules.variant()
    }

    /// For one family, with the tools of a variant of iptables, in this thread's network namespace. Loads what the kernel
    /// needs, if we may.
    pub fn open(tools: &Tools, family: Family, scheduler: Scheduler) -> Result<Ipvs, Error> {
        let modules::Kernel { ipvs, sets } = modules::check(scheduler)?;
        let kernel = Netlink::open(family, ipvs, sets).map_err(|e| refused(family, e))?;
        let rules = Iptables::beside(tools, family, base)?;
        Ok(Ipvs::with_kernel(kernel, rules, family))
    }
}

impl<K: Kernel, R: portway_iptables::commit::Kernel> Ipvs<K, R> {
    /// With kernels of the caller's choice.
    pub fn with_kernel(kernel: K, rules: Iptables<R>, family: Family) -> Ipvs<K, R> {
        Ipvs {
            kernel,
            rules,
            family,
            settings: Settings::default(),
            asked: Settings::default(),
            own: BTreeSet::new(),
            own_is_stale: true,
            plans: HashMap::new(),
            marks: Marks::default(),
            shared: Shared::default(),
            servers: HashMap::new(),
            contested: HashMap::new(),
            draining: Draining::default(),
            missing: HashSet::new(),
            refused: RefusedParts::new(),
            refused_since: None,
            device: None,
            trust: Trust::Fresh,
            tampered: false,
            checks: Checks::default(),
            rota: Vec::new(),
            drain_rota: Vec::new(),
        }
    }

    /// The constant rules, which are a data plane of their own.
    pub fn rules(&mut self) -> &mut Iptables<R> {
        &mut self.rules
    }

    /// The kernel behind it.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Whether iptables works here: asks, and changes nothing.
    pub fn check(&mut self) -> Result<(), Error> {
        self.rules.check()
    }

    fn world(&self) -> World<'_> {
        World {
            family: self.family,
            settings: &self.settings,
            own: &self.own,
            marks: &self.marks,
            missing: &self.missing,
            refused: &self.refused,
        }
    }

    fn refused(&self, error: portway_netlink::Error) -> Error {
        refused(self.family, error)
    }

    /// Takes over settings, and what an earlier run left; what was rendered with others is rendered again.
    fn settle(&mut self, settings: &Settings, report: &mut Report) -> Answer<()> {
        let mut differs = *settings != self.asked;
        if differs {
            self.asked = settings.clone();
            self.choose_scheduler(report);
        }
        if self.refused_since.is_some_and(|since| since.elapsed() > TRY_AGAIN) {
            self.refused_since = None;
            self.refused.clear();
            self.missing.clear();
            self.choose_scheduler(report);
            differs = true;
        }
        let own = if self.own_is_stale {
            self.kernel.own_addresses(self.family).map(|own| {
                differs |= self.own != own;
                self.own = own;
                self.own_is_stale = false;
            })
        } else {
            Ok(())
        };
        if differs && self.trust == Trust::Sure {
            self.trust = Trust::Failed;
        }
        let adopted = if self.trust == Trust::Fresh { self.adopt_marks() } else { Ok(()) };
        own.and(adopted)
    }

    /// Takes over settings, but for a scheduler that this kernel does not have: there the one in use stays.
    fn choose_scheduler(&mut self, report: &mut Report) {
        let (old, new) = (self.settings.ipvs.scheduler, self.asked.ipvs.scheduler);
        self.settings = self.asked.clone();
        if self.trust != Trust::Fresh && new != old && !self.kernel.has_scheduler(new) {
            self.settings.ipvs.scheduler = old;
            let words =
                format!("ipvs.scheduler: {new} is not in this kernel, so {old} stays: modprobe ip_vs_{new}");
            report.afterthoughts.push(words);
            self.refused_since.get_or_insert_with(Instant::now);
        }
    }

    /// Finds the marks that an earlier run gave.
    fn adopt_marks(&mut self) -> Answer<()> {
        let (sets, _) = list_sets(&mut self.kernel, self.family)?;
        for (_, members) in sets.into_iter().filter(|(set, _)| set.has_marks()) {
            for member in members {
                let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
                let protocol = known.into_iter().find(|p| Some(p.number()) == member.protocol);
                if let (Some(ip), Some(port), Some(protocol), Some((mark, _))) =
                    (member.ip, member.port, protocol, member.mark)
                {
                    self.marks.adopt((ip, port, protocol), mark);
                }
            }
        }
        let servers = self.kernel.servers(self.family)?;
        self.marks.avoid(servers.iter().map(|server| server.fwmark));
        Ok(())
    }

    /// Gives a Service the marks it needs; none if it is gone. One that it needs no more stays its own while the server
    /// has connections.
    fn assign_marks(&mut self, name: &ServiceName, wants: Option<Vec<Want>>) {
        let (servers, draining, goes_on) = (&self.servers, &self.draining, wants.is_some());
        let is_there = |key: Key| servers.contains_key(&key) || draining.has(key);
        let in_use = |mark| goes_on && is_there(Key::Mark(mark));
        self.marks.assign(name, &wants.unwrap_or_default(), self.settings.masquerade_mark, in_use);
    }

    /// Takes over plans, and tells what has to change if all was as we knew it.
    fn absorb(
        &mut self,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
        report: &mut Report,
    ) -> Transaction {
        let sure = self.trust == Trust::Sure;
        let (mut before, mut now) = (Part::default(), Part::default());
        let mut owners = Vec::new();
        let mut contested = false;
        for (name, new) in changes {
            let old = self.plans.remove(&name);
            if old == new {
                self.plans.extend(new.map(|plan| (name, plan)));
                continue;
            }
            self.checks.change(&name, old.as_ref(), new.as_ref());
            if let Some(old) = old.filter(|_| sure) {
                before.extend(self.world().part(&old));
            }
            // It is another Service now: maybe one that the kernel takes.
            self.refused.retain(|_, service| *service != name);
            let wants = new.as_ref().map(|plan| self.world().wants(plan));
            self.assign_marks(&name, wants);
            if let Some(plan) = new {
                if sure {
                    let part = self.world().part(&plan);
                    owners.extend(part.served().map(|(key, server)| (key, Expected::new(&name, server))));
                    now.extend(part);
                }
                let complaint = self.world().complaint(&plan);
                report.otherwise.extend(complaint.map(|reason| Refused { service: name.clone(), reason }));
                self.plans.insert(name, plan);
            }
        }
        let mut tx = Transaction::default();
        if sure {
            // All at once: what one Service gives up, another may have taken.
            self.shared.change(&before, &now, &mut tx);
            for (key, _) in &before.servers {
                self.servers.remove(key);
                contested |= self.contested.contains_key(key);
            }
            for (key, expected) in owners {
                match self.servers.entry(key) {
                    Entry::Occupied(_) => contested = true,
                    Entry::Vacant(free) => drop(free.insert(expected)),
                }
            }
            change_servers(before, now, &mut self.draining, &mut tx);
        }
        if contested {
            // Who has what is decided with all of them in view.
            self.trust = Trust::Failed;
        }
        tx
    }

    /// Makes the changes, or repairs everything if that is what it takes.
    fn apply(&mut self, tx: &Transaction, report: &mut Report) -> Result<(), Error> {
        let device = match (self.trust, self.device) {
            (Trust::Sure, Some(device)) => device,
            _ => return self.repair(report),
        };
        if tx.is_empty() {
            return Ok(());
        }
        let new = tx.make.iter().map(|(key, _)| *key);
        if self.shun_foreign(new.collect()).map_err(|e| refused(self.family, e))? {
            self.trust = Trust::Failed;
            return self.repair(report);
        }
        let refused = commit(&mut self.kernel, self.family, device, tx, Vec::new()).map_err(|e| {
            self.trust = Trust::Failed;
            refused(self.family, e)
        })?;
        report.added += tx.added();
        report.removed += tx.removed();
        let Some(first) = refused.first() else { return Ok(()) };
        report.partial_failures += 1;
        tracing::info!(family = %self.family, "a change failed, so everything is compared: {}", first.error);
        // Not yet anybody's fault: the kernel may hold something else than we thought.
        self.note_missing(&refused, tx);
        self.trust = Trust::Failed;
        self.repair(report)
    }
}

impl<K: Kernel, R: portway_iptables::commit::Kernel> Dataplane for Ipvs<K, R> {
    fn family(&self) -> Family {
        self.family
    }

    fn sync(
        &mut self,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Result<Report, Error> {
        let mut report = Report::default();
        let sent = self.kernel.sent();
        let repaired = if self.trust == Trust::Tampered { self.repair(&mut report) } else { Ok(()) };
        let settled = self.settle(settings, &mut report);
        if settled.is_err() && self.trust == Trust::Sure {
            // What changes now is not made now, so everything has to be compared.
            self.trust = Trust::Failed;
        }
        // Nobody tells us of these changes again, whatever failed before.
        let tx = self.absorb(changes, &mut report);
        repaired?;
        settled.map_err(|e| self.refused(e))?;
        self.apply(&tx, &mut report)?;
        self.sync_rules(&mut report)?;
        self.checks.settle(&mut self.kernel, &self.plans, &self.settings.node_ports, &mut report);
        report.messages = self.kernel.sent() - sent;
        Ok(report)
    }

    fn distrust(&mut self) {
        self.own_is_stale = true;
        if self.trust != Trust::Fresh {
            self.tampered = true;
        }
        if self.trust == Trust::Sure {
            self.trust = Trust::Tampered;
        }
        self.rules.distrust();
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        let (known, contested) = (self.known(), self.contested.clone());
        let wanted = self.gather(&mut Report::default());
        // What is found here is not told, so it shall be told another time.
        self.contested = contested;
        let seen = self.list(&known, &wanted).map_err(|e| self.refused(e))?;
        let mut draining = self.draining.clone();
        let (_, mut drift) = reconcile(&seen, self.family, &self.shared, wanted, &mut draining);
        merge(&mut drift, self.rules.verify()?);
        Ok(drift)
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.trust = Trust::Fresh;
        self.rules.cleanup()?;
        crate::leftovers::clear(portway_dataplane::Clear::Now, &self.settings.ipvs.exclude).map(drop)
    }
}

fn merge(into: &mut Drift, drift: Drift) {
    into.missing += drift.missing;
    into.altered += drift.altered;
    into.foreign += drift.foreign;
    drift.examples.into_iter().for_each(|example| into.note(example));
}

/// Turns the kernel's refusal into words about what can be done.
fn refused(family: Family, error: portway_netlink::Error) -> Error {
    match modules::refused(error) {
        Error::Kernel { source, .. } => Error::Kernel { family, source },
        other => other,
    }
}
