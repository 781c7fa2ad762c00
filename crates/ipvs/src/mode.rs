//! The mode of one family: plans become virtual servers, sets and addresses; settings become rules.

mod checks;
mod repair;

use crate::commit::{Kernel, KernelResult, Netlink, commit};
use crate::diff::{Draining, SharedObjects, Transaction, change_servers};
use crate::drift::IpvsDetector;
use crate::eval::{Snapshot, eval};
use crate::leftovers;
use crate::listing::list_sets;
use crate::marks::{MarkRequest, Marks};
use crate::modules;
use crate::reconcile::reconcile;
use crate::render::{RefusedObjects, RenderContext, ServiceObjects};
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

/// Refused objects of an unchanged Service are tried again in the first sync after this time: a module may have been
/// loaded.
const RETRY_REFUSED: Duration = Duration::from_secs(300);

/// The rules of this mode do not depend on Services, which are in sets.
pub const RENDERER: Renderer = Renderer { base, service: |_, _, _| ServiceRules::default() };

/// The ipvs mode for one family.
#[derive(Debug)]
pub struct Ipvs<K = Netlink, R = Tool> {
    kernel: K,
    /// The constant rules.
    rules: Driver<Engine<R>>,
    family: Family,
    /// The settings in use: the configured ones, but for a scheduler that this kernel does not have.
    settings: Settings,
    /// The settings as configured.
    configured: Settings,
    /// The node's addresses on other devices than `kube-ipvs0`, as last listed.
    node_addresses: BTreeSet<IpAddr>,
    /// They have to be listed again.
    node_addresses_stale: bool,
    plans: HashMap<ServiceName, ServicePlan>,
    marks: Marks,
    shared: SharedObjects,
    /// The virtual servers with endpoints, and their Services.
    servers: HashMap<Key, Expected>,
    /// Virtual servers that several Services need, with the Service that does not get it.
    contested: HashMap<Key, ServiceName>,
    draining: Draining,
    /// Schedulers that this kernel does not have.
    missing_schedulers: HashSet<Scheduler>,
    refused_objects: RefusedObjects,
    /// When the first of them was refused, or a scheduler was found missing.
    refused_since: Option<Instant>,
    /// The index of `kube-ipvs0`.
    device: Option<u32>,
    flow_checks: Checks,
    /// Virtual servers whose endpoints are compared next.
    check_queue: Vec<Key>,
    /// Virtual servers whose draining endpoints are checked next.
    drain_queue: Vec<Key>,
    /// The number of netlink messages that were sent before the present sync.
    messages_before: u64,
}

/// A virtual server that the kernel should have, without its endpoints, for the cheap check.
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
    /// Opens the mode of one family in this thread's network namespace. Loads missing modules if this process has the
    /// permission.
    pub fn open(tools: &Tools, family: Family, scheduler: Scheduler) -> Result<Ipvs, Error> {
        let modules::Sockets { ipvs, sets } = modules::check(scheduler)?;
        let kernel = Netlink::open(family, ipvs, sets).map_err(|e| kernel_error(family, e))?;
        let rules = Driver::new(Engine::open(tools, family, RENDERER)?);
        Ok(Ipvs::with_kernel(kernel, rules, family))
    }
}

impl<K: Kernel, R: portway_xtables::commit::Kernel> Ipvs<K, R> {
    /// Builds the mode with the given kernel and rules, for tests.
    pub fn with_kernel(kernel: K, rules: Driver<Engine<R>>, family: Family) -> Ipvs<K, R> {
        Ipvs {
            kernel,
            rules,
            family,
            settings: Settings::default(),
            configured: Settings::default(),
            node_addresses: BTreeSet::new(),
            node_addresses_stale: true,
            plans: HashMap::new(),
            marks: Marks::default(),
            shared: SharedObjects::default(),
            servers: HashMap::new(),
            contested: HashMap::new(),
            draining: Draining::default(),
            missing_schedulers: HashSet::new(),
            refused_objects: RefusedObjects::new(),
            refused_since: None,
            device: None,
            flow_checks: Checks::default(),
            check_queue: Vec::new(),
            drain_queue: Vec::new(),
            messages_before: 0,
        }
    }

    /// The constant rules.
    pub fn rules(&mut self) -> &mut Driver<Engine<R>> {
        &mut self.rules
    }

    /// The kernel.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    fn context(&self) -> RenderContext<'_> {
        RenderContext {
            family: self.family,
            settings: &self.settings,
            node_addresses: &self.node_addresses,
            marks: &self.marks,
            missing_schedulers: &self.missing_schedulers,
            refused_objects: &self.refused_objects,
        }
    }

    fn kernel_error(&self, error: portway_netlink::Error) -> Error {
        kernel_error(self.family, error)
    }

    /// Applies changed settings, lists the node's addresses if they are stale, and in a fresh state adopts the marks
    /// in the kernel. True if all Services have to be rendered again.
    fn apply_settings(
        &mut self,
        settings: &Settings,
        state: State,
        report: &mut Report,
    ) -> KernelResult<bool> {
        let mut differs = *settings != self.configured;
        if differs {
            self.configured = settings.clone();
            self.choose_scheduler(state, report);
        }
        if self.refused_since.is_some_and(|since| since.elapsed() > RETRY_REFUSED) {
            self.refused_since = None;
            self.refused_objects.clear();
            self.missing_schedulers.clear();
            self.choose_scheduler(state, report);
            differs = true;
        }
        let node_addresses = if self.node_addresses_stale {
            self.kernel.node_addresses(self.family).map(|node_addresses| {
                differs |= self.node_addresses != node_addresses;
                self.node_addresses = node_addresses;
                self.node_addresses_stale = false;
            })
        } else {
            Ok(())
        };
        let adopted = if state == State::Fresh { self.adopt_marks() } else { Ok(()) };
        node_addresses.and(adopted).map(|()| differs)
    }

    /// Uses the configured settings, but keeps the current scheduler if this kernel does not have the configured one.
    fn choose_scheduler(&mut self, state: State, report: &mut Report) {
        let (old, new) = (self.settings.ipvs.scheduler, self.configured.ipvs.scheduler);
        self.settings = self.configured.clone();
        if state != State::Fresh && new != old && !self.kernel.has_scheduler(new) {
            self.settings.ipvs.scheduler = old;
            let warning =
                format!("ipvs.scheduler: {new} is not in this kernel, so {old} stays: modprobe ip_vs_{new}");
            report.warnings.push(warning);
            self.refused_since.get_or_insert_with(Instant::now);
        }
    }

    /// Adopts the marks that a previous process assigned, and records those of other programs.
    fn adopt_marks(&mut self) -> KernelResult<()> {
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
        self.marks.set_foreign(servers.iter().map(|server| server.fwmark));
        Ok(())
    }

    /// Assigns a Service the marks it needs; none if it was deleted. A mark that an existing Service no longer needs
    /// stays assigned while its virtual server exists or drains.
    fn assign_marks(&mut self, name: &ServiceName, mark_requests: Option<Vec<MarkRequest>>) {
        let (servers, draining, service_exists) = (&self.servers, &self.draining, mark_requests.is_some());
        let has_server = |key: Key| servers.contains_key(&key) || draining.has_server(key);
        let in_use = |mark| service_exists && has_server(Key::Mark(mark));
        self.marks.assign(name, &mark_requests.unwrap_or_default(), self.settings.masquerade_mark, in_use);
    }

    /// Stores changed plans and stages their changes. `None` if all objects have to be compared instead.
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
            self.flow_checks.change(&name, old.as_ref(), new.as_ref());
            if let Some(old) = old.filter(|_| in_sync) {
                before.extend(self.context().service_objects(&old));
            }
            // A changed Service is tried again: the kernel may accept it now.
            self.refused_objects.retain(|_, service| *service != name);
            let mark_requests = new.as_ref().map(|plan| self.context().mark_requests(plan));
            self.assign_marks(&name, mark_requests);
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
            // All Services at once: one may need a member or address that another releases.
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
        // If several Services need one virtual server, the decision needs all Services.
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
        self.messages_before = self.kernel.sent();
        let applied = self.apply_settings(settings, state, report);
        let in_sync = state == State::InSync && matches!(applied, Ok(false));
        let tx = self.stage_changes(changes, in_sync, report);
        applied.map_err(|e| self.kernel_error(e))?;
        Ok(tx)
    }

    fn commit(&mut self, tx: &Transaction, report: &mut Report) -> Result<Committed, Error> {
        if tx.is_empty() {
            return Ok(Committed::Yes);
        }
        let Some(device) = self.device else { return Ok(Committed::CompareAll) };
        let new = tx.add_servers.iter().map(|(key, _)| *key);
        if self.avoid_foreign_marks(new.collect()).map_err(|e| kernel_error(self.family, e))? {
            return Ok(Committed::CompareAll);
        }
        let refused = commit(&mut self.kernel, self.family, device, tx, Vec::new())
            .map_err(|e| kernel_error(self.family, e))?;
        report.added += tx.added();
        report.removed += tx.removed();
        let Some(first) = refused.first() else { return Ok(Committed::Yes) };
        report.partial_failures += 1;
        tracing::info!(family = %self.family, "an incremental change failed; comparing all servers and sets: {}", first.error);
        // No Service is reported yet: the kernel's objects may differ from the expected ones.
        self.record_missing_schedulers(&refused, tx);
        Ok(Committed::CompareAll)
    }

    fn reconcile(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error> {
        let drift = self.reconcile_all(fresh, report)?;
        self.marks.clear_adopted();
        Ok(drift)
    }

    fn finish(&mut self, report: &mut Report) -> Result<(), Error> {
        self.sync_rules(report)?;
        self.flow_checks.delete_stale(&mut self.kernel, &self.plans, &self.settings.node_ports, report);
        report.messages = self.kernel.sent() - self.messages_before;
        Ok(())
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        let (known, contested) = (self.known(), self.contested.clone());
        let wanted = self.render_all(&mut Report::default());
        // Conflicts found here are not reported, so the next sync has to find them as new.
        self.contested = contested;
        let listing = self.list(&known, &wanted).map_err(|e| self.kernel_error(e))?;
        let mut draining = self.draining.clone();
        let (_, mut drift) = reconcile(&listing, self.family, &self.shared, wanted, &mut draining);
        drift.merge(self.rules.verify()?);
        Ok(drift)
    }

    fn mark_stale(&mut self) {
        self.node_addresses_stale = true;
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
        let objects = Snapshot::of_kernel(self.family, &mut self.kernel).map_err(|e| self.kernel_error(e))?;
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
        Settings { userspace: UserspaceSettings::default(), drop_invalid: false, ..all }
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

    /// The device records the previous values of the sysctls, so it is created too.
    fn prepare(&self, settings: &Settings) -> Result<Vec<String>, Error> {
        let mut ipvs = Ipvs::open(&Tools::detect_and_log()?, Family::V4, settings.ipvs.scheduler)?;
        ipvs.settings = settings.clone();
        let mut report = Report::default();
        ipvs.prepare_device(&mut report)?;
        Ok(report.warnings)
    }

    /// Rules refer to sets, and a set in use cannot be removed.
    fn locations(&self) -> Vec<Location> {
        let mut locations = rule_leftovers::locations();
        locations.push(leftovers::location());
        locations
    }

    fn clear(&self, location: &Location, how: Clear, settings: &Settings) -> Result<Vec<String>, Error> {
        if *location == leftovers::location() {
            leftovers::clear(how, &settings.ipvs.exclude)
        } else {
            rule_leftovers::clear(location, how)
        }
    }
}

/// The error for a refusal by the kernel in a family.
fn kernel_error(family: Family, error: portway_netlink::Error) -> Error {
    match modules::kernel_error(error) {
        Error::Kernel { source, .. } => Error::Kernel { family, source },
        other => other,
    }
}
