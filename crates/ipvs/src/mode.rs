//! The mode: plans in, servers, sets, addresses and rules in step, for one family.

mod checks;
mod repair;

use crate::commit::{Answer, Kernel, Netlink, commit};
use crate::diff::{Draining, Shared, Transaction, change_servers};
use crate::drift::IpvsDetector;
use crate::eval::{Snapshot, eval};
use crate::leftovers;
use crate::listing::list_sets;
use crate::marks::{Marks, Want};
use crate::modules;
use crate::reconcile::reconcile;
use crate::render::{RefusedParts, RenderContext, ServiceObjects};
use crate::rules::base;
use crate::servers::{Key, Server};
use portway_dataplane::trace::{Host, Packet, Trace};
use portway_dataplane::{
    Backend, Clear, Committed, Drift, Driver, Error, Families, FamilyProgram, Location, Mode, OpenOptions,
    PlanChanges, Program, Refused, Report, Scheduler, Section, Settings, State, UserspaceSettings,
};
use portway_flows::Checks;
use portway_model::{Family, Protocol, ServiceName, ServicePlan};
use portway_xtables::commit::Tool;
use portway_xtables::desired::{Renderer, ServiceRules};
use portway_xtables::eval::Ruleset;
use portway_xtables::{Engine, Tools, leftovers as rule_leftovers};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Refused objects are tried again after this time though their Service did not change: a module may have been loaded.
const RETRY_REFUSED: Duration = Duration::from_secs(300);

/// The rules of this mode: constant ones only, since sets know the Services.
pub const RENDERER: Renderer = Renderer {
    base: |family, settings, _| base(family, settings),
    service: |_, _, _| ServiceRules::default(),
};

/// The ipvs mode for one family.
#[derive(Debug)]
pub struct Ipvs<K = Netlink, R = Tool> {
    kernel: K,
    /// The constant rules.
    rules: Driver<Engine<R>>,
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
    checks: Checks,
    /// Servers whose endpoints are compared next.
    check_queue: Vec<Key>,
    /// Servers with draining endpoints that are checked next.
    drain_queue: Vec<Key>,
    /// Netlink messages that reports have counted.
    messages_reported: u64,
}

/// A server that should be there, as far as a cheap check tells.
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
    /// For one family, with the tools of a variant of iptables, in this thread's network namespace. Loads the modules that
    /// are missing, if this process may.
    pub fn open(tools: &Tools, family: Family, scheduler: Scheduler) -> Result<Ipvs, Error> {
        let modules::Kernel { ipvs, sets } = modules::check(scheduler)?;
        let kernel = Netlink::open(family, ipvs, sets).map_err(|e| refused(family, e))?;
        let rules = Driver::new(Engine::open(tools, family, RENDERER)?);
        Ok(Ipvs::with_kernel(kernel, rules, family))
    }
}

impl<K: Kernel, R: portway_xtables::commit::Kernel> Ipvs<K, R> {
    /// With kernels of the caller's choice.
    pub fn with_kernel(kernel: K, rules: Driver<Engine<R>>, family: Family) -> Ipvs<K, R> {
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
            checks: Checks::default(),
            check_queue: Vec::new(),
            drain_queue: Vec::new(),
            messages_reported: 0,
        }
    }

    /// The constant rules.
    pub fn rules(&mut self) -> &mut Driver<Engine<R>> {
        &mut self.rules
    }

    /// The kernel behind it.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    fn context(&self) -> RenderContext<'_> {
        RenderContext {
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

    /// Takes over settings, the node's addresses, and at the start the marks of an earlier run. True if Services have to be
    /// rendered again.
    fn apply_settings(&mut self, settings: &Settings, state: State, report: &mut Report) -> Answer<bool> {
        let mut differs = *settings != self.asked;
        if differs {
            self.asked = settings.clone();
            self.choose_scheduler(state, report);
        }
        if self.refused_since.is_some_and(|since| since.elapsed() > RETRY_REFUSED) {
            self.refused_since = None;
            self.refused.clear();
            self.missing.clear();
            self.choose_scheduler(state, report);
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
        let adopted = if state == State::Fresh { self.adopt_marks() } else { Ok(()) };
        own.and(adopted).map(|()| differs)
    }

    /// Takes over settings, but for a scheduler that this kernel does not have: there the one in use stays.
    fn choose_scheduler(&mut self, state: State, report: &mut Report) {
        let (old, new) = (self.settings.ipvs.scheduler, self.asked.ipvs.scheduler);
        self.settings = self.asked.clone();
        if state != State::Fresh && new != old && !self.kernel.has_scheduler(new) {
            self.settings.ipvs.scheduler = old;
            let words =
                format!("ipvs.scheduler: {new} is not in this kernel, so {old} stays: modprobe ip_vs_{new}");
            report.warnings.push(words);
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

    /// Takes over plans. `None` if they can only be applied by comparing everything.
    fn stage_changes(
        &mut self,
        changes: PlanChanges,
        in_sync: bool,
        report: &mut Report,
    ) -> Option<Transaction> {
        let (mut before, mut now) = (ServiceObjects::default(), ServiceObjects::default());
        let mut owners = Vec::new();
        let mut contested = false;
        for (name, new) in changes {
            let old = self.plans.remove(&name);
            if old == new {
                self.plans.extend(new.map(|plan| (name, plan)));
                continue;
            }
            self.checks.change(&name, old.as_ref(), new.as_ref());
            if let Some(old) = old.filter(|_| in_sync) {
                before.extend(self.context().service_objects(&old));
            }
            // A changed Service is tried again: the kernel may accept it now.
            self.refused.retain(|_, service| *service != name);
            let wants = new.as_ref().map(|plan| self.context().wants(plan));
            self.assign_marks(&name, wants);
            if let Some(plan) = new {
                if in_sync {
                    let objects = self.context().service_objects(&plan);
                    owners.extend(objects.served().map(|(key, server)| (key, Expected::new(&name, server))));
                    now.extend(objects);
                }
                let degraded = self.context().degraded(&plan);
                report.degraded.extend(degraded.map(|reason| Refused { service: name.clone(), reason }));
                self.plans.insert(name, plan);
            }
        }
        let mut tx = Transaction::default();
        if in_sync {
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
        // Which of several Services gets a server is decided with all of them in view.
        (in_sync && !contested).then_some(tx)
    }
}

impl<K: Kernel, R: portway_xtables::commit::Kernel> Program for Ipvs<K, R> {
    type Transaction = Transaction;

    fn family(&self) -> Family {
        self.family
    }

    fn stage(
        &mut self,
        settings: &Settings,
        changes: PlanChanges,
        state: State,
        report: &mut Report,
    ) -> Result<Option<Transaction>, Error> {
        let applied = self.apply_settings(settings, state, report);
        let in_sync = state == State::InSync && matches!(applied, Ok(false));
        let tx = self.stage_changes(changes, in_sync, report);
        applied.map_err(|e| self.refused(e))?;
        Ok(tx)
    }

    fn commit(&mut self, tx: &Transaction, report: &mut Report) -> Result<Committed, Error> {
        if tx.is_empty() {
            return Ok(Committed::Yes);
        }
        let Some(device) = self.device else { return Ok(Committed::CompareAll) };
        let new = tx.make.iter().map(|(key, _)| *key);
        if self.avoid_foreign_marks(new.collect()).map_err(|e| refused(self.family, e))? {
            return Ok(Committed::CompareAll);
        }
        let refused = commit(&mut self.kernel, self.family, device, tx, Vec::new())
            .map_err(|e| refused(self.family, e))?;
        report.added += tx.added();
        report.removed += tx.removed();
        let Some(first) = refused.first() else { return Ok(Committed::Yes) };
        report.partial_failures += 1;
        tracing::info!(family = %self.family, "an incremental change failed; comparing all servers and sets: {}", first.error);
        // Not yet the fault of a Service: the kernel may hold something else than expected.
        self.note_missing(&refused, tx);
        Ok(Committed::CompareAll)
    }

    fn reconcile(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error> {
        let drift = self.reconcile_all(fresh, report)?;
        self.marks.forget_found();
        Ok(drift)
    }

    fn finish(&mut self, report: &mut Report) -> Result<(), Error> {
        self.sync_rules(report)?;
        self.checks.delete_stale(&mut self.kernel, &self.plans, &self.settings.node_ports, report);
        let sent = self.kernel.sent();
        report.messages = sent - std::mem::replace(&mut self.messages_reported, sent);
        Ok(())
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        let (known, contested) = (self.known(), self.contested.clone());
        let wanted = self.gather(&mut Report::default());
        // Conflicts found here are not reported, so the next sync has to find them as new.
        self.contested = contested;
        let seen = self.list(&known, &wanted).map_err(|e| self.refused(e))?;
        let mut draining = self.draining.clone();
        let (_, mut drift) = reconcile(&seen, self.family, &self.shared, wanted, &mut draining);
        drift.merge(self.rules.verify()?);
        Ok(drift)
    }

    fn mark_stale(&mut self) {
        self.own_is_stale = true;
        self.rules.mark_stale();
    }
}

impl FamilyProgram for Ipvs {
    const FAILURE_METRIC: &'static str = "sync_proxy_rules_iptables_restore_failures_total";

    fn locations(&self) -> Vec<Location> {
        let variant = self.rules.as_program().tool().variant();
        vec![rule_leftovers::location(variant, self.family), leftovers::location()]
    }

    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error> {
        let rules = Ruleset::parse(&self.rules.as_program().wanted());
        let objects = Snapshot::of_kernel(self.family, &mut self.kernel).map_err(|e| self.refused(e))?;
        Ok(eval(&rules, self.family, packet, host, &objects))
    }
}

/// The ipvs mode.
pub const MODE: &dyn Mode = &IpvsMode;

struct IpvsMode;

impl Mode for IpvsMode {
    fn name(&self) -> &'static str {
        "ipvs"
    }

    fn section(&self) -> Section {
        Section::Ipvs
    }

    fn settings(&self, all: Settings) -> Settings {
        Settings { userspace: UserspaceSettings::default(), ..all }
    }

    fn check(&self) -> Result<(), Error> {
        modules::check(Scheduler::default()).map(drop)
    }

    fn open(&self, options: &OpenOptions<'_>) -> Result<Box<dyn Backend>, Error> {
        let tools = Tools::detect_and_log()?;
        let drift = IpvsDetector::new(tools.variant, Instant::now());
        let scheduler = options.settings.ipvs.scheduler;
        let open = |family| Ipvs::open(&tools, family, scheduler);
        Ok(Box::new(Families::open(options.families, open, drift)?))
    }

    fn locations(&self) -> Vec<Location> {
        vec![leftovers::location()]
    }

    fn clear(&self, _: &Location, how: Clear, settings: &Settings) -> Result<Vec<String>, Error> {
        leftovers::clear(how, &settings.ipvs.exclude)
    }
}

/// The error for a refusal by the kernel, with the reason in words.
fn refused(family: Family, error: portway_netlink::Error) -> Error {
    match modules::refused(error) {
        Error::Kernel { source, .. } => Error::Kernel { family, source },
        other => other,
    }
}
