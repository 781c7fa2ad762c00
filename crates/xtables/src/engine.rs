//! The engine for one family: keeps the tables equal to the rules that a mode renders from settings and plans.

use crate::INVALID_COUNTER;
use crate::chains::{Chain, Table};
use crate::commit::{Kernel, Tool};
use crate::counter::InvalidCounter;
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
    Committed, CounterSource, Drift, Error, FamilyProgram, Location, PlanChanges, Program, Refused, Report,
    Settings, State, TableRules,
};
use portway_flows::Checks;
use portway_model::{Family, ServiceName, ServicePlan};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After this time, a Service whose rules the tool refused is tried again, even if it did not change: a missing kernel
/// module may have been loaded.
const RETRY_REFUSED: Duration = Duration::from_secs(300);

/// With more endpoints than this, rules for single endpoints have no comments, as in kube-proxy: in the legacy variant a
/// comment takes 288 bytes, more than half of such a rule, and all of them are copied with every change.
const MANY_ENDPOINTS: usize = 1000;

/// The rules of a mode in the tables of iptables, in one family.
#[derive(Debug)]
pub struct Engine<K = Tool> {
    pub(crate) kernel: K,
    pub(crate) family: Family,
    pub(crate) settings: Settings,
    renderer: Renderer,
    base: Base,
    pub(crate) plans: HashMap<ServiceName, ServicePlan>,
    /// Services whose rules the tool refused, with the last plan that it accepted, if there is one. That plan is
    /// programmed instead, or none.
    pub(crate) left_out: HashMap<ServiceName, Option<ServicePlan>>,
    pub(crate) left_out_since: Option<Instant>,
    /// Refusals that are not reported yet.
    pub(crate) refused: Vec<Refused>,
    /// The programmed plans of Services whose new plan is not programmed yet.
    pub(crate) programmed: HashMap<ServiceName, ServicePlan>,
    /// The tool refused the match that counts packets (nfacct).
    pub(crate) cannot_count: bool,
    /// The number of rules in each table.
    pub(crate) totals: HashMap<Table, usize>,
    /// The number of endpoints in `plans`.
    endpoints: usize,
    checks: Checks,
}

impl Engine<Tool> {
    /// Opens the engine for one family, with the tools of a variant, in this thread's network namespace.
    pub fn open(tools: &Tools, family: Family, renderer: Renderer) -> Result<Engine, Error> {
        let tool = Tool::open(tools, family).map_err(|e| e.in_family(family))?;
        let mut engine = Engine::with_kernel(tool, family, renderer);
        engine.check()?;
        Ok(engine)
    }

    /// Whether a built-in chain in which the mode has rules is empty, as far as the kernel says so without a listing.
    pub fn lost_hooks(&mut self) -> bool {
        Table::ALL.into_iter().any(|table| {
            let hooks = self.base.hooks.iter().filter(|hook| hook.table == table);
            let chains: Vec<Chain> = hooks.map(|hook| hook.chain.clone()).collect();
            self.kernel.has_empty_chain(table, &chains)
        })
    }

    /// The tool that the engine runs.
    pub fn tool(&self) -> &Tool {
        &self.kernel
    }
}

impl<K: Kernel> Engine<K> {
    /// Opens the engine on the given kernel.
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
            programmed: HashMap::new(),
            cannot_count: false,
            totals: HashMap::new(),
            endpoints: 0,
            checks: Checks::default(),
        }
    }

    /// The kernel that the engine writes to.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Whether the kernel has chains of single Services, from the iptables mode or from kube-proxy.
    pub fn has_service_chains(&mut self) -> Result<bool, Error> {
        Ok(!self.list(&Wanted::default())?.ports.is_empty())
    }

    /// Fails if the tool cannot list the rules. Changes nothing.
    pub fn check(&mut self) -> Result<(), Error> {
        self.kernel.save(&mut |_| {}).map_err(|e| e.in_family(self.family))
    }

    /// Whether a hook is missing from its built-in chain, as far as that can be found out without listing all rules.
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
                let is_listed = |hook: &Hook| {
                    let rule = |line: &String| {
                        line.strip_prefix(&format!("-A {}", hook.chain)).and_then(Rule::parse)
                    };
                    lines.iter().any(|line| rule(line).as_ref() == Some(&hook.rule))
                };
                return !hooks.iter().all(|hook| is_listed(hook));
            }
            // The tool cannot list the chain. The kernel may still list the chains that its rules jump to.
            let jump = |hook: &&Hook| Some((hook.chain.clone(), hook.rule.target()?.to_string()));
            let jumps: Vec<_> = hooks.iter().filter_map(jump).collect();
            jumps
                .iter()
                .any(|(chain, to)| self.kernel.jumps(table, chain).is_some_and(|jumps| !jumps.contains(to)))
        })
    }

    /// All wanted rules, as a script for the tool.
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

    /// The kernel, and the context that a script for it is rendered from.
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

    /// Stores the changed plans. The transaction has their changes only if the state is in sync; otherwise it is empty.
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
            let programmed = self.left_out.remove(&name).unwrap_or(old);
            if state == State::InSync {
                let rules = |plan: Option<&ServicePlan>| {
                    plan.map(|p| self.context().service_rules(p)).unwrap_or_default()
                };
                let (before, now) = (rules(programmed.as_ref()), rules(new.as_ref()));
                self.count(&before, &now);
                tx.change(&name, before, now);
            }
            if let Some(plan) = programmed
                && state != State::Fresh
            {
                self.programmed.entry(name.clone()).or_insert(plan);
            }
            self.plans.extend(new.map(|plan| (name, plan)));
        }
        tx
    }

    /// Updates the number of rules in each table.
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

    /// Stores the settings. True if they changed, or this is the first sync.
    fn apply_settings(&mut self, settings: &Settings, state: State) -> bool {
        if state != State::Fresh && *settings == self.settings {
            return false;
        }
        self.settings = settings.clone();
        self.rebuild_base();
        true
    }

    /// Whether there are many endpoints after these changes. Once there are, a tenth of them has to go before rules have
    /// comments again: that changes the rules of every Service.
    fn has_many_endpoints(&mut self, changes: &PlanChanges) -> bool {
        let count =
            |plan: &ServicePlan| plan.ports.iter().map(|p| p.cluster.len().max(p.local.len())).sum::<usize>();
        for (name, new) in changes {
            self.endpoints += new.as_ref().map_or(0, count);
            self.endpoints = self.endpoints.saturating_sub(self.plans.get(name).map_or(0, count));
        }
        let limit = if self.settings.terse { MANY_ENDPOINTS - MANY_ENDPOINTS / 10 } else { MANY_ENDPOINTS };
        self.endpoints > limit
    }

    pub(crate) fn rebuild_base(&mut self) {
        let counting =
            self.settings.drop_invalid && !self.cannot_count && self.kernel.create_counter(INVALID_COUNTER);
        let abilities = Abilities { counting };
        self.base = (self.renderer.base)(self.family, &self.settings, abilities);
    }

    /// Whether refused Services are due for another attempt. Clears the refusals if so.
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
        let terse = self.has_many_endpoints(&changes);
        // The rules of every Service depend on the settings.
        let all = self.apply_settings(&Settings { terse, ..settings.clone() }, state) | self.retry_refused();
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
        self.programmed.clear();
        report.refused = std::mem::take(&mut self.refused);
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

    fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        Some(Arc::new(InvalidCounter))
    }

    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error> {
        Ok(eval(&Ruleset::parse(&self.wanted()), self.family, packet, host))
    }
}
