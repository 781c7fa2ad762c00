//! Compares the rules in the kernel with the wanted ones.

use crate::chains::{Chain, Fixed, PortChain, Table};
use crate::desired::{RenderContext, Shared};
use crate::diff::Transaction;
use crate::listing::{Compared, Seen, Wanted, canonical, digest};
use crate::rules::Rule;
use portway_dataplane::Drift;
use std::collections::HashMap;

/// The transaction that changes the kernel's rules to the wanted ones, and the differences between them.
pub fn reconcile(seen: &Seen, wanted: &Wanted, context: RenderContext<'_>) -> (Transaction, Drift) {
    let mut difference =
        Difference { seen, wanted, context, tx: Transaction::default(), drift: Drift::default() };
    difference.ports();
    difference.fixed();
    difference.hooks();
    difference.obsolete();
    (difference.tx, difference.drift)
}

struct Difference<'a> {
    seen: &'a Seen,
    wanted: &'a Wanted,
    context: RenderContext<'a>,
    tx: Transaction,
    drift: Drift,
}

impl Difference<'_> {
    /// The chains of Services.
    fn ports(&mut self) {
        let services = self.context.services();
        let opaque = self.seen.opaque.contains(&Table::Nat);
        let mut wanted: Vec<(&PortChain, &(u64, u32))> = self.wanted.ports.iter().collect();
        wanted.sort_unstable_by_key(|(chain, (_, service))| (*service, **chain));
        for (chain, (_, service)) in wanted {
            let name = &services[*service as usize].name;
            match self.seen.ports.get(chain) {
                Some(Compared::Same) => continue,
                None if opaque => {}
                None => {
                    self.drift.missing += 1;
                    self.drift.note(format_args!("chain {chain} of {name} is missing"));
                }
                Some(Compared::Differs(lines)) => {
                    self.drift.altered += 1;
                    let details = self.details(*chain, *service as usize, lines);
                    self.drift.note(format_args!("chain {chain} of {name} was changed: {details}"));
                }
                Some(Compared::Stale) => {}
            }
            self.tx.write.entry(name.clone()).or_default().insert(*chain);
        }
        let mut stale: Vec<Chain> = self
            .seen
            .ports
            .keys()
            .filter(|c| !self.wanted.ports.contains_key(*c))
            .map(|c| Chain::from(*c))
            .collect();
        stale.sort_by_key(ToString::to_string);
        stale.into_iter().for_each(|chain| self.unwanted(Table::Nat, chain));
    }

    /// Removes an unwanted chain, or empties it if rules of other programs refer to it.
    fn unwanted(&mut self, table: Table, chain: Chain) {
        let chains = match self.seen.is_referenced(table, &chain) {
            true if self.seen.has_rules(table, &chain) => &mut self.tx.empty,
            true => return,
            false => &mut self.tx.remove,
        };
        self.drift.foreign += 1;
        self.drift.note(format_args!("chain {chain} in table {table} belongs to no Service"));
        chains.entry(table).or_default().push(chain);
    }

    /// Describes the first missing or unwanted rule of a chain.
    fn details(&self, chain: PortChain, service: usize, lines: &[String]) -> String {
        if self.drift.examples.len() >= 8 {
            return String::new();
        }
        let part = self.context.service_rules(self.context.services()[service]);
        let rules =
            part.chains.into_iter().find(|(c, _)| *c == chain).map_or_else(Vec::new, |(_, rules)| rules);
        let wanted: Vec<String> = rules.iter().map(Rule::to_string).collect();
        if let Some(missing) = wanted.iter().find(|w| !lines.contains(w)) {
            return format!("without `-A {chain}{missing}`");
        }
        match lines.iter().find(|l| !wanted.contains(l)) {
            Some(extra) => format!("with `-A {chain}{extra}`"),
            None => "its rules are in another order".to_owned(),
        }
    }

    /// The constant chains. A chain that differs is rewritten with all of its rules.
    fn fixed(&mut self) {
        for (table, chain, tail) in &self.context.base.chains {
            let Some(lines) = self.seen.fixed.get(&(*table, *chain)) else {
                self.tx.fixed.insert((*table, *chain));
                if !self.seen.opaque.contains(table) {
                    self.drift.missing += 1;
                    self.drift.note(format_args!("chain {} in table {table} is missing", chain.as_str()));
                }
                continue;
            };
            let shared = Shared { table: *table, chain: *chain };
            let wanted = self.wanted.shared.get(&shared).map_or(&[][..], Vec::as_slice);
            if self.compare(shared, lines, wanted, tail) {
                self.tx.fixed.insert((*table, *chain));
            }
        }
    }

    /// Whether a constant chain differs. The rules of Services may have any order; the constant rules must be at the
    /// end.
    fn compare(&mut self, at: Shared, lines: &[String], wanted: &[u64], tail: &[Rule]) -> bool {
        let name = at.chain.as_str();
        let lines: Vec<String> = lines.iter().map(|l| canonical(l)).collect();
        let (head, end) = lines.split_at(lines.len().saturating_sub(tail.len()));
        let mut missing: HashMap<u64, usize> = HashMap::new();
        wanted.iter().for_each(|w| *missing.entry(*w).or_default() += 1);
        let mut differs = false;
        for line in head {
            match missing.get_mut(&digest(line)) {
                Some(n) if *n > 0 => *n -= 1,
                _ => {
                    differs = true;
                    self.drift.foreign += 1;
                    self.drift.note(format_args!("`-A {name}{line}` does not belong there"));
                }
            }
        }
        missing.retain(|_, n| *n > 0);
        if !missing.is_empty() {
            differs = true;
            self.drift.missing += missing.len();
            self.name_missing(at, &missing);
        }
        for rule in tail.iter().map(Rule::to_string).filter(|rule| !end.contains(rule)) {
            differs = true;
            self.drift.missing += 1;
            self.drift.note(format_args!("`-A {name}{rule}` is missing at the end"));
        }
        let in_order = end.len() == tail.len() && end.iter().zip(tail).all(|(l, t)| *l == t.to_string());
        if !in_order && !differs {
            self.drift.altered += 1;
            self.drift.note(format_args!("the rules at the end of {name} are in another order"));
        }
        differs || !in_order
    }

    /// Reports missing rules. Those in filter, which reject or drop, are also inserted before the chains are rewritten.
    fn name_missing(&mut self, at: Shared, missing: &HashMap<u64, usize>) {
        for plan in self.context.services() {
            for (shared, rule) in self.context.service_rules(plan).shared {
                let text = rule.to_string();
                if shared == at && missing.contains_key(&digest(&text)) {
                    self.drift.note(format_args!("`-A {}{text}` is missing", at.chain.as_str()));
                    if at.table == Table::Filter {
                        self.tx.insert.push((at, rule, plan.name.clone()));
                    }
                }
            }
            if self.drift.examples.len() >= 8 && at.table != Table::Filter {
                return;
            }
        }
    }

    /// The hooks in built-in chains.
    fn hooks(&mut self) {
        let firewall = (Table::Filter, Fixed::Firewall);
        let hooks = &self.context.base.hooks;
        let wants_firewall = hooks.iter().any(|h| h.chain == Chain::from(Fixed::Firewall));
        if wants_firewall && !self.seen.fixed.contains_key(&firewall) {
            self.tx.create.insert(firewall);
        }
        for hook in hooks {
            let exists = match &hook.chain {
                Chain::Fixed(fixed) => {
                    let lines = self.seen.fixed.get(&(hook.table, *fixed)).map_or(&[][..], Vec::as_slice);
                    lines.iter().any(|l| Rule::parse(l).as_ref() == Some(&hook.rule))
                }
                chain => self.seen.references.iter().any(|r| {
                    (r.table, &r.chain) == (hook.table, chain)
                        && Rule::parse(&r.rule).as_ref() == Some(&hook.rule)
                }),
            };
            if !exists {
                self.drift.missing += 1;
                self.drift.note(format_args!("`-A {}{}` is missing", hook.chain, hook.rule));
                self.tx.hook.push(hook.clone());
            }
        }
        for r in self.seen.references.iter().filter(|r| r.is_hook()) {
            let rule = Rule::parse(&r.rule);
            let is_same = |h: &&crate::desired::Hook| {
                (h.table, &h.chain) == (r.table, &r.chain) && Some(&h.rule) == rule.as_ref()
            };
            let is_kubelets =
                r.to == Chain::from(Fixed::Firewall) && (wants_firewall || self.seen.shares_firewall);
            if !is_kubelets && !hooks.iter().any(|h| is_same(&h)) {
                self.drift.foreign += 1;
                self.drift.note(format_args!(
                    "`-A {}{}` jumps to a proxy chain and is not a hook of this mode",
                    r.chain, r.rule
                ));
                self.tx.unhook.push((r.table, r.chain.clone(), r.rule.clone()));
            }
        }
        if !wants_firewall && self.seen.shares_firewall {
            // The chain is kept, because the kubelet uses it. Portway's recording rule in it is deleted.
            let notes = crate::localnet::notes(self.seen);
            self.tx.unhook.extend(notes.map(|n| (Table::Filter, Fixed::Firewall.into(), n.clone())));
        }
        if !wants_firewall && !self.seen.shares_firewall && self.seen.fixed.contains_key(&firewall) {
            self.unwanted(firewall.0, firewall.1.into());
        }
    }

    /// Proxy chains that this mode does not have, or not in this table. `KUBE-FIREWALL`, which the kubelet may use
    /// too, is handled in [`Difference::hooks`].
    fn obsolete(&mut self) {
        let wanted = |at: &(Table, Fixed)| self.context.base.chains.iter().any(|(t, c, _)| (*t, *c) == *at);
        let misplaced = self.seen.fixed.keys().filter(|at| at.1 != Fixed::Firewall && !wanted(at));
        let misplaced = misplaced.map(|(table, chain)| (*table, Chain::from(*chain)));
        let mut all: Vec<(Table, Chain)> = self.seen.obsolete.iter().cloned().chain(misplaced).collect();
        all.sort_by_key(|(table, chain)| (*table, chain.to_string()));
        all.into_iter().for_each(|(table, chain)| self.unwanted(table, chain));
    }
}
