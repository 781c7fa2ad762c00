//! The engine: plans in, tables in step, for one family.

use crate::LOCALHOST_COUNTER;
use crate::chains::{Chain, Table};
use crate::commit::{Kernel, Tool};
use crate::desired::{Abilities, Base, Hook, RenderContext, Renderer, ServiceRules};
use crate::diff::Transaction;
use crate::eval::{Ruleset, eval};
use crate::leftovers;
use crate::listing::{Seen, Wanted};
use crate::reconcile::reconcile;
use crate::rules::Rule;
use crate::script::{Origins, Script};
use crate::variant::Tools;
use portway_dataplane::trace::{Host, Packet, Trace};
use portway_dataplane::{
    Committed, Drift, Error, FamilyProgram, Location, PlanChanges, Program, Refused, Report, Settings, State,
    TableRules,
};
use portway_flows::Checks;
use portway_model::{Family, ServiceName, ServicePlan};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A Service that the tool refused is tried again after this time though it did not change: a missing module may have been
/// loaded.
const RETRY_REFUSED: Duration = Duration::from_secs(300);

/// The rules of a mode in the tables of iptables, in one family.
#[derive(Debug)]
pub struct Engine<K = Tool> {
    pub(crate) kernel: K,
    pub(crate) family: Family,
    pub(crate) settings: Settings,
    renderer: Renderer,
    base: Base,
    pub(crate) plans: HashMap<ServiceName, ServicePlan>,
    /// Services that the tool refused, so that the rules of the others are in force, with the last plan that it
    /// accepted, if there was one.
    pub(crate) left_out: HashMap<ServiceName, Option<ServicePlan>>,
    pub(crate) left_out_since: Option<Instant>,
    /// Refused Services that are not reported yet.
    pub(crate) refused: Vec<Refused>,
    /// The plans in force of Services whose new plan is not.
    pub(crate) before: HashMap<ServiceName, ServicePlan>,
    /// This mode turned `route_localnet` on.
    pub(crate) turned_localnet_on: bool,
    /// The tool does not know the match that counts packets.
    pub(crate) cannot_count: bool,
    pub(crate) totals: HashMap<Table, usize>,
    checks: Checks,
}

impl Engine<Tool> {
    /// For one family, with the tools of a variant, in this thread's network namespace.
    pub fn open(tools: &Tools, family: Family, renderer: Renderer) -> Result<Engine, Error> {
        let tool = Tool::open(tools, family).map_err(|e| e.in_family(family))?;
        let mut engine = Engine::with_kernel(tool, family, renderer);
        engine.check()?;
        Ok(engine)
    }

    /// The tool, to read.
    pub fn tool(&self) -> &Tool {
        &self.kernel
    }
}

impl<K: Kernel> Engine<K> {
    /// With a kernel of the caller's choice.
    pub fn with_kernel(kernel: K, family: Family, renderer: Renderer) -> Engine<K> {
        Engine {
            kernel,
            family,
            settings: Settings::default(),
            renderer,
            base: Base::default(),
            plans: HashMap::new(),
            left_out: HashMap::new(),
            left_out_since: None,
            refused: Vec::new(),
            before: HashMap::new(),
            turned_localnet_on: false,
            cannot_count: false,
            totals: HashMap::new(),
            checks: Checks::default(),
        }
    }

    /// The kernel behind it.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Whether Services have chains of their own in the kernel: those of the iptables mode, or of kube-proxy.
    pub fn finds_service_chains(&mut self) -> Result<bool, Error> {
        Ok(!self.list(&Wanted::default())?.ports.is_empty())
    }

    /// Whether the tool works here. Changes nothing.
    pub fn check(&mut self) -> Result<(), Error> {
        self.kernel.save(&mut |_| {}).map_err(|e| e.in_family(self.family))
    }

    /// Whether a hook is missing from its built-in chain, as far as that can be told without listing everything.
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
                let is_there = |hook: &Hook| {
                    let rule = |line: &String| {
                        line.strip_prefix(&format!("-A {}", hook.chain)).and_then(Rule::parse)
                    };
                    lines.iter().any(|line| rule(line).as_ref() == Some(&hook.rule))
                };
                return !hooks.iter().all(|hook| is_there(hook));
            }
            // A chain that the tool cannot show: the kernel still lists the chains that its rules jump to.
            let jump = |hook: &&Hook| Some((hook.chain.clone(), hook.rule.target()?.to_string()));
            let jumps: Vec<_> = hooks.iter().filter_map(jump).collect();
            jumps
                .iter()
                .any(|(chain, to)| self.kernel.jumps(table, chain).is_some_and(|jumps| !jumps.contains(to)))
        })
    }

    /// All rules as they should be, as the tool would read them.
    pub fn wanted(&self) -> String {
        let context = self.context();
        let (tx, _) = reconcile(&Seen::default(), &Wanted::of(context), context);
        let mut text = Vec::new();
        let mut origins = Origins::default();
        // Writing into memory does not fail.
        tx.print(context, false, &mut Script::new(&mut text, &mut origins)).ok();
        String::from_utf8(text).unwrap_or_default()
    }

    pub(crate) fn context(&self) -> RenderContext<'_> {
        RenderContext {
            renderer: self.renderer,
            family: self.family,
            settings: &self.settings,
            base: &self.base,
            plans: &self.plans,
            left_out: &self.left_out,
        }
    }

    /// The kernel, and everything that a script for it is rendered from.
    pub(crate) fn kernel_and_context(&mut self) -> (&mut K, RenderContext<'_>) {
        let context = RenderContext {
            renderer: self.renderer,
            family: self.family,
            settings: &self.settings,
            base: &self.base,
            plans: &self.plans,
            left_out: &self.left_out,
        };
        (&mut self.kernel, context)
    }

    /// Takes over plans. The transaction is complete only if the kernel is in sync.
    fn stage_changes(&mut self, changes: PlanChanges, state: State) -> Transaction {
        let mut tx = Transaction::default();
        for (name, new) in changes {
            let old = self.plans.remove(&name);
            if old == new {
                self.plans.extend(new.map(|plan| (name, plan)));
                continue;
            }
            self.checks.change(&name, old.as_ref(), new.as_ref());
            // A changed Service is tried again: the tool may accept it now.
            let in_force = self.left_out.remove(&name).unwrap_or(old);
            if state == State::InSync {
                let rules = |plan: Option<&ServicePlan>| {
                    plan.map(|p| self.context().service_rules(p)).unwrap_or_default()
                };
                let (before, now) = (rules(in_force.as_ref()), rules(new.as_ref()));
                self.count(&before, &now);
                tx.change(&name, before, now);
            }
            if let Some(plan) = in_force
                && state != State::Fresh
            {
                self.before.entry(name.clone()).or_insert(plan);
            }
            self.plans.extend(new.map(|plan| (name, plan)));
        }
        tx
    }

    fn count(&mut self, before: &ServiceRules, now: &ServiceRules) {
        let chains = |rules: &ServiceRules| rules.chains.iter().map(|(_, rules)| rules.len()).sum::<usize>();
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
    fn apply_settings(&mut self, settings: &Settings, state: State) -> bool {
        if state != State::Fresh && *settings == self.settings {
            return false;
        }
        let answers = settings.answers_at_loopback(self.family);
        self.turned_localnet_on |= answers && self.kernel.route_localnet() == Some(false);
        self.settings = settings.clone();
        self.rebuild_base();
        true
    }

    pub(crate) fn rebuild_base(&mut self) {
        let answers = self.settings.answers_at_loopback(self.family);
        let counting = answers && !self.cannot_count && self.kernel.count(LOCALHOST_COUNTER);
        let abilities = Abilities { counting, turned_localnet_on: self.turned_localnet_on };
        self.base = (self.renderer.base)(self.family, &self.settings, abilities);
    }

    /// Whether refused Services are due for another attempt.
    fn retry_refused(&mut self) -> bool {
        if self.left_out_since.is_none_or(|since| since.elapsed() <= RETRY_REFUSED) {
            return false;
        }
        self.left_out_since = None;
        !std::mem::take(&mut self.left_out).is_empty()
    }
}

impl<K: Kernel> Program for Engine<K> {
    type Transaction = Transaction;

    fn family(&self) -> Family {
        self.family
    }

    fn stage(
        &mut self,
        settings: &Settings,
        changes: PlanChanges,
        state: State,
        _: &mut Report,
    ) -> Result<Option<Transaction>, Error> {
        // Settings are part of every Service's rules.
        let all = self.apply_settings(settings, state) | self.retry_refused();
        let state = if all && state == State::InSync { State::Stale } else { state };
        let tx = self.stage_changes(changes, state);
        Ok((state == State::InSync).then_some(tx))
    }

    fn commit(&mut self, transaction: &Transaction, report: &mut Report) -> Result<Committed, Error> {
        self.commit_or_compare(transaction, report)
    }

    fn reconcile(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error> {
        self.reconcile_all(fresh, report)
    }

    fn finish(&mut self, report: &mut Report) -> Result<(), Error> {
        self.before.clear();
        report.refused = std::mem::take(&mut self.refused);
        if report.full {
            self.turn_localnet_on(report);
        }
        for table in [Table::Nat, Table::Filter] {
            let total = self.totals.get(&table).copied().unwrap_or(0);
            match report.tables.iter_mut().find(|t| t.table == table.as_str()) {
                Some(entry) => entry.total = total,
                None => report.tables.push(TableRules { table: table.as_str(), total, written: 0 }),
            }
        }
        self.checks.delete_stale(&mut self.kernel, &self.plans, &self.settings.node_ports, report);
        Ok(())
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        let wanted = Wanted::of(self.context());
        let seen = self.list(&wanted)?;
        Ok(reconcile(&seen, &wanted, self.context()).1)
    }
}

impl FamilyProgram for Engine<Tool> {
    const FAILURE_METRIC: &'static str = "sync_proxy_rules_iptables_restore_failures_total";

    fn locations(&self) -> Vec<Location> {
        vec![leftovers::location(self.kernel.variant(), self.family)]
    }

    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error> {
        Ok(eval(&Ruleset::parse(&self.wanted()), self.family, packet, host))
    }
}
