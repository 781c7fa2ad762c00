//! The mode itself: plans in, kernel in step.

mod apply;
mod localnet;

use crate::LOCALHOST_COUNTER;
use crate::chains::{Chain, Table};
use crate::commit::{Failure, Kernel, Tool};
use crate::diff::{Transaction, World};
use crate::listing::{Seen, Wanted};
use crate::reconcile::reconcile;
use crate::render::{Abilities, Base, Hook, Part, base};
use crate::rules::Rule;
use crate::script::{Origins, Script};
use crate::variant::{Tools, Variant};
use portway_dataplane::{Dataplane, Drift, Error, Refused, Report, Settings, TableRules};
use portway_flows::Checks;
use portway_model::{Family, ServiceName, ServicePlan};
use portway_netlink::nft::Commit;
use std::collections::HashMap;
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

/// When one that was refused is tried again though it did not change: a missing module may have been loaded.
const TRY_AGAIN: Duration = Duration::from_secs(300);

/// What settings make of the constant part of the rules.
pub type Renderer = fn(Family, &Settings) -> Base;

/// The iptables mode for one family; or, for a mode that needs rules beside what it is made of, those.
#[derive(Debug)]
pub struct Iptables<K = Tool> {
    kernel: K,
    family: Family,
    settings: Settings,
    /// Renders the constant part for another mode.
    beside: Option<Renderer>,
    base: Base,
    plans: HashMap<ServiceName, ServicePlan>,
    /// Services that the tool refused, so that the others' rules are in force: what they were before stands in for
    /// them, or nothing.
    left_out: HashMap<ServiceName, Option<ServicePlan>>,
    /// Those of them that nobody was told of yet.
    refused: Vec<Refused>,
    /// What Services were before the changes that are not in force yet.
    before: HashMap<ServiceName, ServicePlan>,
    left_out_since: Option<Instant>,
    trust: Trust,
    /// Somebody changed our rules, and they have not been repaired since.
    tampered: bool,
    /// It was us who had packets to 127.0.0.1 routed.
    turned_localnet_on: bool,
    /// The tool does not know the match that counts.
    cannot_count: bool,
    totals: HashMap<Table, usize>,
    checks: Checks,
}

impl Iptables<Tool> {
    /// For one family, with the tools of a variant, in this thread's network namespace.
    pub fn open(tools: &Tools, family: Family) -> Result<Iptables, Error> {
        let tool = Tool::open(tools, family).map_err(|e| diagnose(family, e))?;
        Ok(Iptables::with_kernel(tool, family))
    }

    /// The constant rules that another mode needs beside what it is made of. No Service has rules of its own there.
    pub fn beside(tools: &Tools, family: Family, rules: Renderer) -> Result<Iptables, Error> {
        Ok(Iptables { beside: Some(rules), ..Iptables::open(tools, family)? })
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
            beside: None,
            base: Base::default(),
            plans: HashMap::new(),
            left_out: HashMap::new(),
            refused: Vec::new(),
            before: HashMap::new(),
            cannot_count: false,
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

    /// With a kernel of the caller's choice, the constant rules that another mode needs.
    pub fn beside_with_kernel(kernel: K, family: Family, rules: Renderer) -> Iptables<K> {
        Iptables { beside: Some(rules), ..Iptables::with_kernel(kernel, family) }
    }

    /// Whether Services have chains of their own in the kernel: ours of another mode, or kube-proxy's.
    pub fn finds_service_chains(&mut self) -> Result<bool, Error> {
        Ok(!self.list(&Wanted::default())?.ports.is_empty())
    }

    /// Whether the tool works here: asks, and changes nothing.
    pub fn check(&mut self) -> Result<(), Error> {
        self.kernel.save(&mut |_| {}).map_err(|e| diagnose(self.family, e))
    }

    /// Whether a rule of ours is gone from a chain that everybody uses, as far as that can be told without listing all.
    pub fn lacks_hooks(&mut self) -> bool {
        let hooks = self.base.hooks.clone();
        Table::ALL.into_iter().any(|table| {
            let hooks: Vec<&Hook> = hooks.iter().filter(|h| h.table == table).collect();
            let mut chains: Vec<Chain> = hooks.iter().map(|h| h.chain.clone()).collect();
            chains.dedup();
            if chains.is_empty() {
                return false;
            }
            if let Some(lines) = self.kernel.show(table, &chains) {
                let there = |hook: &Hook| {
                    let rule = |line: &String| {
                        line.strip_prefix(&format!("-A {}", hook.chain)).and_then(Rule::parse)
                    };
                    lines.iter().any(|line| rule(line).as_ref() == Some(&hook.rule))
                };
                return !hooks.iter().all(|hook| there(hook));
            }
            // A chain that the tool cannot show: at least where it leads can be read.
            let leads = |hook: &&Hook| Some((hook.chain.clone(), hook.rule.target()?.to_string()));
            let leads: Vec<_> = hooks.iter().filter_map(leads).collect();
            leads
                .iter()
                .any(|(chain, to)| self.kernel.jumps(table, chain).is_some_and(|jumps| !jumps.contains(to)))
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
            if old == new {
                self.plans.extend(new.map(|plan| (name, plan)));
                continue;
            }
            self.checks.change(&name, old.as_ref(), new.as_ref());
            // It is another Service now: maybe one that the tool takes.
            let in_force = self.left_out.remove(&name).unwrap_or(old);
            if self.trust == Trust::Sure {
                let part =
                    |plan: Option<&ServicePlan>| plan.map(|p| self.world().part(p)).unwrap_or_default();
                let (before, now) = (part(in_force.as_ref()), part(new.as_ref()));
                self.count(&before, &now);
                tx.change(&name, before, now);
            }
            if let Some(plan) = in_force
                && self.trust != Trust::Fresh
            {
                self.before.entry(name.clone()).or_insert(plan);
            }
            self.plans.extend(new.map(|plan| (name, plan)));
        }
        tx
    }

    fn count(&mut self, before: &Part, now: &Part) {
        let chains = |part: &Part| part.chains.iter().map(|(_, rules)| rules.len()).sum::<usize>();
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

    /// Takes over settings; true if they are new.
    fn settle(&mut self, settings: &Settings) -> bool {
        if self.trust != Trust::Fresh && *settings == self.settings {
            return false;
        }
        let answers = settings.answers_at_loopback(self.family);
        self.turned_localnet_on |= answers && self.kernel.route_localnet() == Some(false);
        self.settings = settings.clone();
        self.rebuild_base();
        true
    }

    fn rebuild_base(&mut self) {
        if let Some(render) = self.beside {
            self.base = render(self.family, &self.settings);
            return;
        }
        let answers = self.settings.answers_at_loopback(self.family);
        let counting = answers && !self.cannot_count && self.kernel.count(LOCALHOST_COUNTER);
        let abilities = Abilities { counting, turned_localnet_on: self.turned_localnet_on };
        self.base = base(self.family, &self.settings, abilities);
    }
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
        if self.trust == Trust::Tampered
            && let Err(e) = self.repair(&mut report)
        {
            // Nobody tells us of these changes again: they are made with the next repair.
            self.settle(settings);
            self.absorb(changes);
            return Err(e);
        }
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
        self.before.clear();
        report.refused = std::mem::take(&mut self.refused);
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
        if std::mem::take(&mut self.turned_localnet_on) {
            // The rule that remembers it may be gone.
            crate::leftovers::turn_localnet_off(&mut self.kernel);
        }
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
