//! The mode itself: plans in, kernel in step.

use crate::LOCALHOST_COUNTER;
use crate::chains::{Chain, Table};
use crate::commit::{Failure, Kernel, Tool};
use crate::diff::{Transaction, World};
use crate::listing::{Listing, Seen, Wanted};
use crate::reconcile::reconcile;
use crate::render::{Abilities, Base, base};
use crate::script::{Origins, Script, Tally};
use crate::variant::{Tools, Variant};
use portway_dataplane::{Dataplane, Drift, Error, Refused, Report, Settings, TableRules};
use portway_flows::Checks;
use portway_model::{Family, ServiceName, ServicePlan};
use portway_netlink::nft::Commit;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// What was applied, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Nothing yet: the kernel may hold an earlier run's rules, or kube-proxy's.
    Fresh,
    /// The last change was made, and nobody was seen to change anything since.
    Sure,
    /// Somebody changed our rules.
    Tampered,
    /// A change failed: some of what we want is not there.
    Failed,
}

/// How many Services the tool may refuse in one sync before the fault is looked for elsewhere.
const REFUSALS: usize = 16;
/// When one that was refused is tried again though it did not change: a missing module may have been loaded.
const TRY_AGAIN: Duration = Duration::from_secs(300);

/// The iptables mode for one family.
#[derive(Debug)]
pub struct Iptables<K = Tool> {
    kernel: K,
    family: Family,
    settings: Settings,
    base: Base,
    plans: HashMap<ServiceName, ServicePlan>,
    /// Services that the tool refused: their rules are left out, so that the others' are in force.
    left_out: HashSet<ServiceName>,
    left_out_since: Option<Instant>,
    trust: Trust,
    /// Somebody changed our rules, and they have not been repaired since.
    tampered: bool,
    /// It was us who had packets to 127.0.0.1 routed.
    turned_localnet_on: bool,
    totals: HashMap<Table, usize>,
    checks: Checks,
}

impl Iptables<Tool> {
    /// For one family, with the tools of a variant, in this thread's network namespace.
    pub fn open(tools: &Tools, family: Family) -> Result<Iptables, Error> {
        let tool = Tool::open(tools, family).map_err(|e| diagnose(family, e))?;
        Ok(Iptables::with_kernel(tool, family))
    }

    /// Whether a transaction that the kernel announced was ours.
    pub fn made(&self, commit: &Commit) -> bool {
        self.kernel.made(commit)
    }

    /// Whether nobody else changed anything while our tool was at work.
    pub fn was_alone(&self) -> bool {
        self.kernel.was_alone()
    }

    /// The ruleset's generation when we last looked or changed something, where there is one.
    pub fn known_generation(&self) -> Option<u32> {
        self.kernel.known_generation()
    }

    /// The ruleset's generation, where there is one.
    pub fn generation(&mut self) -> Option<u32> {
        self.kernel.generation()
    }

    /// Whether it programs the family with this number.
    pub fn is_family(&self, number: u8) -> bool {
        self.kernel.nft_family().number() == number
    }

    /// Its variant.
    pub fn variant(&self) -> Variant {
        self.kernel.variant()
    }

    /// Whether the tables look different than after our last change, at a glance.
    pub fn looks_different(&mut self) -> bool {
        self.trust != Trust::Fresh && (self.kernel.has_other_sizes() || self.lacks_hooks())
    }
}

impl<K: Kernel> Iptables<K> {
    /// With a kernel of the caller's choice.
    pub fn with_kernel(kernel: K, family: Family) -> Iptables<K> {
        Iptables {
            kernel,
            family,
            settings: Settings::default(),
            base: Base::default(),
            plans: HashMap::new(),
            left_out: HashSet::new(),
            left_out_since: None,
            trust: Trust::Fresh,
            tampered: false,
            turned_localnet_on: false,
            totals: HashMap::new(),
            checks: Checks::default(),
        }
    }

    /// The kernel behind it.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Whether the tool works here: asks, and changes nothing.
    pub fn check(&mut self) -> Result<(), Error> {
        self.kernel.save(&mut |_| {}).map_err(|e| diagnose(self.family, e))
    }

    /// Whether a rule of ours is gone from a chain that everybody uses, as far as that can be told without the tool.
    pub fn lacks_hooks(&mut self) -> bool {
        let hooks: Vec<(Table, Chain, Chain)> = self
            .base
            .hooks
            .iter()
            .filter_map(|h| Some((h.table, h.chain.clone(), h.rule.target()?.clone())))
            .collect();
        hooks.into_iter().any(|(table, chain, to)| {
            let to = to.to_string();
            self.kernel.jumps(table, &chain).is_some_and(|jumps| !jumps.contains(&to))
        })
    }

    fn world(&self) -> World<'_> {
        World {
            family: self.family,
            settings: &self.settings,
            base: &self.base,
            plans: &self.plans,
            left_out: &self.left_out,
        }
    }

    /// All rules as they should be, as the tool would read them.
    pub fn wanted(&self) -> String {
        let wanted = Wanted::of(self.world());
        let (tx, _) = reconcile(&Seen::default(), &wanted, self.world());
        self.text(&tx)
    }

    /// A transaction as text.
    fn text(&self, tx: &Transaction) -> String {
        let mut text = Vec::new();
        let mut origins = Origins::default();
        let mut script = Script::new(&mut text, &mut origins);
        // Writing into memory does not fail.
        tx.print(self.world(), false, &mut script).ok();
        String::from_utf8(text).unwrap_or_default()
    }

    /// Takes over plans, and tells what has to change if all was as we knew it.
    fn absorb(&mut self, changes: Vec<(ServiceName, Option<ServicePlan>)>) -> Transaction {
        let mut tx = Transaction::default();
        for (name, new) in changes {
            let old = self.plans.remove(&name);
            let left_out = self.left_out.contains(&name);
            if old == new {
                self.plans.extend(new.map(|plan| (name, plan)));
                continue;
            }
            self.checks.change(&name, old.as_ref(), new.as_ref());
            // It is another Service now: maybe one that the tool takes.
            self.left_out.remove(&name);
            if self.trust == Trust::Sure {
                let part =
                    |plan: Option<&ServicePlan>| plan.map(|p| self.world().part(p)).unwrap_or_default();
                let (before, now) = (part(old.as_ref().filter(|_| !left_out)), part(new.as_ref()));
                self.count(&before, &now);
                tx.change(&name, before, now);
            }
            self.plans.extend(new.map(|plan| (name, plan)));
        }
        tx
    }

    fn count(&mut self, before: &crate::render::Part, now: &crate::render::Part) {
        let chains =
            |part: &crate::render::Part| part.chains.iter().map(|(_, rules)| rules.len()).sum::<usize>();
        let nat = self.totals.entry(Table::Nat).or_default();
        *nat = (*nat + chains(now)).saturating_sub(chains(before));
        for (shared, _) in &now.shared {
            *self.totals.entry(shared.table).or_default() += 1;
        }
        for (shared, _) in &before.shared {
            let total = self.totals.entry(shared.table).or_default();
            *total = total.saturating_sub(1);
        }
    }

    /// Lists the kernel, and makes it hold what is wanted. Services that the tool refuses are left out, one by one.
    fn reconcile(&mut self, report: &mut Report) -> Result<Drift, Error> {
        let mut first = None;
        loop {
            let wanted = Wanted::of(self.world());
            let seen = self.list(&wanted)?;
            self.unroute_localnet(&seen);
            let (tx, drift) = reconcile(&seen, &wanted, self.world());
            let tx = self.without_opaque_hooks(&seen, tx);
            drop(seen);
            self.totals = wanted.totals;
            let drift = first.get_or_insert(drift).clone();
            match self.commit(&tx, report) {
                Ok(()) => return Ok(drift),
                Err(failed) => self.leave_out(failed, report)?,
            }
        }
    }

    fn list(&mut self, wanted: &Wanted) -> Result<Seen, Error> {
        let mut listing = Listing::new(wanted);
        self.kernel.save(&mut |line| listing.line(line)).map_err(|e| self.refused(e))?;
        Ok(listing.finish())
    }

    /// In a table that the tool cannot show, our rules in everybody's chains are found in another way, lest they be
    /// added again and again.
    fn without_opaque_hooks(&mut self, seen: &Seen, mut tx: Transaction) -> Transaction {
        if !seen.opaque.is_empty() {
            tx.hook.retain(|hook| {
                let Some(to) = hook.rule.target().filter(|_| seen.opaque.contains(&hook.table)) else {
                    return true;
                };
                let to = to.to_string();
                !self.kernel.jumps(hook.table, &hook.chain).is_some_and(|jumps| jumps.contains(&to))
            });
        }
        tx
    }

    /// Writes a transaction. If a line is refused, whose it was comes back.
    fn commit(&mut self, tx: &Transaction, report: &mut Report) -> Result<(), Failed> {
        if !tx.is_empty() {
            let mut origins = Origins::default();
            let mut tally = Tally::default();
            let world = World {
                family: self.family,
                settings: &self.settings,
                base: &self.base,
                plans: &self.plans,
                left_out: &self.left_out,
            };
            let look_at_all = self.kernel.looks_at_all();
            let restored = self.kernel.restore(&mut |out| {
                let mut script = Script::new(out, &mut origins);
                tx.print(world, look_at_all, &mut script)?;
                tally = script.finish()?;
                Ok(tally.sections)
            });
            if let Err(failure) = restored {
                self.trust = Trust::Failed;
                return Err(self.blame(failure, &origins, tx, look_at_all));
            }
            for (table, written) in Table::ALL.into_iter().zip(tally.rules) {
                let entry = report.tables.iter_mut().find(|t| t.table == table.as_str());
                match entry {
                    Some(entry) => entry.written += written,
                    None => report.tables.push(TableRules { table: table.as_str(), total: 0, written }),
                }
            }
            report.added += tally.rules.iter().sum::<usize>();
            report.removed += tx.delete.len() + tx.remove.values().map(Vec::len).sum::<usize>();
        }
        self.trust = Trust::Sure;
        Ok(())
    }

    /// Finds the Service behind a refused line.
    fn blame(&self, failure: Failure, origins: &Origins, tx: &Transaction, look_at_all: bool) -> Failed {
        let Failure::Refused { line: Some(number), .. } = &failure else {
            return Failed { failure, service: None, line: None };
        };
        let number = *number;
        let mut pick = Pick { number, at: 1, line: Vec::new() };
        let mut again = Origins::default();
        tx.print(self.world(), look_at_all, &mut Script::new(&mut pick, &mut again)).ok();
        let line = String::from_utf8_lossy(&pick.line).into_owned();
        Failed { failure, service: origins.of(number).cloned(), line: Some(line) }
    }

    /// Leaves a Service out whose rules were refused; anything else is an error.
    fn leave_out(&mut self, failed: Failed, report: &mut Report) -> Result<(), Error> {
        let Failed { failure, service, line } = failed;
        let words = match &line {
            Some(line) => format!("{failure}: `{line}`"),
            None => failure.to_string(),
        };
        match service {
            Some(service) if report.refused.len() < REFUSALS => {
                self.left_out.insert(service.clone());
                self.left_out_since.get_or_insert_with(Instant::now);
                report.refused.push(Refused { service, reason: words });
                Ok(())
            }
            _ if line.is_some() => Err(Error::Kernel { family: self.family, source: words.into() }),
            _ => Err(diagnose(self.family, failure)),
        }
    }

    fn refused(&mut self, failure: Failure) -> Error {
        diagnose(self.family, failure)
    }

    /// Takes over settings; true if they are new.
    fn settle(&mut self, settings: &Settings) -> bool {
        if self.trust != Trust::Fresh && *settings == self.settings {
            return false;
        }
        let answers = settings.answers_at_loopback(self.family);
        let counting = answers && self.kernel.count(LOCALHOST_COUNTER);
        self.turned_localnet_on |= answers && self.kernel.route_localnet() == Some(false);
        let abilities = Abilities { counting, turned_localnet_on: self.turned_localnet_on };
        self.base = base(self.family, settings, abilities);
        self.settings = settings.clone();
        true
    }

    /// Has packets to 127.0.0.1 routed, once the rule is there that keeps strangers from using that.
    fn route_localnet(&mut self, report: &mut Report) {
        let wanted = self.settings.answers_at_loopback(self.family);
        if wanted
            && self.kernel.route_localnet() == Some(false)
            && let Err(e) = self.kernel.set_route_localnet(true)
        {
            report.afterthoughts.push(format!(
                "node ports do not answer at 127.0.0.1, because route_localnet could not be set: {e}"
            ));
        }
    }

    /// Undoes that, before the rule goes.
    fn unroute_localnet(&mut self, seen: &Seen) {
        self.turned_localnet_on |= crate::leftovers::turned_localnet_on(seen);
        if self.turned_localnet_on && !self.settings.answers_at_loopback(self.family) {
            crate::leftovers::turn_localnet_off(&mut self.kernel);
            self.turned_localnet_on = false;
        }
    }

    /// Makes the changes, or repairs everything if that is what it takes.
    fn apply(&mut self, tx: &Transaction, report: &mut Report) -> Result<(), Error> {
        if self.trust == Trust::Sure {
            match self.commit(tx, report) {
                Ok(()) => return Ok(()),
                // The others have to wait anyway, and would only fail again.
                Err(Failed {
                    failure: failure @ (Failure::Locked { .. } | Failure::Missing { .. }), ..
                }) => {
                    return Err(diagnose(self.family, failure));
                }
                Err(failed) => {
                    report.partial_failures += 1;
                    tracing::info!(family = %self.family, "a partial change failed, so everything is compared: {}", failed.failure);
                    if failed.service.is_some() {
                        self.leave_out(failed, report)?;
                    }
                }
            }
        }
        let tampered = std::mem::take(&mut self.tampered);
        let fresh = self.trust == Trust::Fresh;
        report.full = true;
        match self.reconcile(report) {
            Ok(drift) if tampered && !fresh => report.drift = drift,
            Ok(_) => {}
            Err(e) => {
                self.tampered = tampered;
                if !fresh {
                    self.trust = Trust::Failed;
                }
                return Err(e);
            }
        }
        Ok(())
    }
}

/// A transaction that failed, and whose fault that is.
struct Failed {
    failure: Failure,
    service: Option<ServiceName>,
    line: Option<String>,
}

impl<K: Kernel> Dataplane for Iptables<K> {
    fn family(&self) -> Family {
        self.family
    }

    fn sync(
        &mut self,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Result<Report, Error> {
        let mut report = Report::default();
        if self.settle(settings) && self.trust == Trust::Sure {
            // What settings touch is in every Service's rules.
            self.trust = Trust::Failed;
        }
        if self.left_out_since.is_some_and(|since| since.elapsed() > TRY_AGAIN) {
            self.left_out_since = None;
            if !std::mem::take(&mut self.left_out).is_empty() && self.trust == Trust::Sure {
                self.trust = Trust::Failed;
            }
        }
        let tx = self.absorb(changes);
        self.apply(&tx, &mut report)?;
        if report.full {
            self.route_localnet(&mut report);
        }
        for table in [Table::Nat, Table::Filter] {
            let total = self.totals.get(&table).copied().unwrap_or(0);
            match report.tables.iter_mut().find(|t| t.table == table.as_str()) {
                Some(entry) => entry.total = total,
                None => report.tables.push(TableRules { table: table.as_str(), total, written: 0 }),
            }
        }
        self.checks.settle(&mut self.kernel, &self.plans, &self.settings.node_ports, &mut report);
        Ok(report)
    }

    fn distrust(&mut self) {
        if self.trust != Trust::Fresh {
            self.tampered = true;
        }
        if self.trust == Trust::Sure {
            self.trust = Trust::Tampered;
        }
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        let wanted = Wanted::of(self.world());
        let seen = self.list(&wanted)?;
        Ok(reconcile(&seen, &wanted, self.world()).1)
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.trust = Trust::Fresh;
        crate::leftovers::remove(&mut self.kernel, self.family).map(drop)
    }
}

/// What it means that there is no tool.
pub fn missing(failure: Failure) -> Error {
    diagnose(Family::V4, failure)
}

/// Turns the tool's failure into words about what can be done.
pub(crate) fn diagnose(family: Family, failure: Failure) -> Error {
    if failure.is_permission() {
        let operation = "change iptables rules".to_owned();
        return Error::Permission { operation, source: failure.into() };
    }
    if let Failure::Missing { program } = &failure {
        return Error::Unsupported {
            feature: program.clone(),
            hint: "the iptables mode works through it: install the package iptables, or use --proxy-mode=nftables".to_owned(),
        };
    }
    Error::Kernel { family, source: failure.into() }
}

/// Keeps one line of a script.
struct Pick {
    number: usize,
    at: usize,
    line: Vec<u8>,
}

impl std::io::Write for Pick {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            if *byte == b'\n' {
                self.at += 1;
            } else if self.at == self.number {
                self.line.push(*byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
