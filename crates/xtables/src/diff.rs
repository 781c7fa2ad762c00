//! The transaction: a change of the rules as a value.
//!
//! A [`Transaction`] has the names of the chains to write, and rules only where single rules change. The rules of whole
//! chains are rendered while it is printed, because those of the first sync of a large cluster need too much memory to
//! be kept.

use crate::chains::{Chain, Fixed, PortChain, Table};
use crate::desired::{Hook, RenderContext, ServiceRules, Shared};
use crate::rules::Rule;
use crate::script::Script;
use portway_model::{ServiceName, ServicePlan};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Result, Write};

/// The changes of one sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Chains to create or rewrite, by Service.
    pub write: BTreeMap<ServiceName, BTreeSet<PortChain>>,
    /// Constant chains to rewrite; shared chains with the rules of all Services.
    pub fixed: BTreeSet<(Table, Fixed)>,
    /// Chains to create without rules: other programs may have rules in them too.
    pub create: BTreeSet<(Table, Fixed)>,
    /// Rules to add to shared chains.
    pub insert: Vec<(Shared, Rule, ServiceName)>,
    /// Rules to delete from shared chains.
    pub delete: Vec<(Shared, Rule, ServiceName)>,
    /// Hooks to add to built-in chains and to `KUBE-FIREWALL`.
    pub hook: Vec<Hook>,
    /// Rules to delete from built-in chains and from `KUBE-FIREWALL`, as the kernel lists them.
    pub unhook: Vec<(Table, Chain, String)>,
    /// Chains to remove.
    pub remove: BTreeMap<Table, Vec<Chain>>,
    /// Chains to empty instead, because rules of other programs refer to them.
    pub empty: BTreeMap<Table, Vec<Chain>>,
}

/// With more chains than this, a script lists the whole table first.
const LISTING_THRESHOLD: usize = 256;

impl Transaction {
    /// Whether it has no changes.
    pub fn is_empty(&self) -> bool {
        *self == Transaction::default()
    }

    /// Adds the change of the rules of one Service.
    pub fn change(&mut self, name: &ServiceName, old: ServiceRules, new: ServiceRules) {
        let mut before: HashMap<PortChain, Vec<Rule>> = old.chains.into_iter().collect();
        for (chain, rules) in new.chains {
            if before.remove(&chain).is_none_or(|b| b != rules) {
                self.write.entry(name.clone()).or_default().insert(chain);
            }
        }
        let gone: BTreeSet<PortChain> = before.into_keys().collect();
        if !gone.is_empty() {
            self.remove.entry(Table::Nat).or_default().extend(gone.into_iter().map(Chain::from));
        }
        let mut added = new.shared;
        for (shared, rule) in old.shared {
            match added.iter().position(|(s, r)| *s == shared && *r == rule) {
                // A rule that a Service has several times is matched once per occurrence.
                Some(i) => drop(added.swap_remove(i)),
                None => self.delete.push((shared, rule, name.clone())),
            }
        }
        self.insert.extend(added.into_iter().map(|(shared, rule)| (shared, rule, name.clone())));
    }

    /// Prints the transaction for `iptables-restore`. Rules in filter that reject or drop are inserted before the
    /// rules in nat that translate are deleted, and deleted after those are added, so that at any time one of them
    /// applies to a packet to a frontend.
    pub fn print<W: Write>(
        &self,
        context: RenderContext<'_>,
        list_first: bool,
        script: &mut Script<'_, W>,
    ) -> Result<()> {
        let filter_first = self.insert.iter().any(|(s, ..)| s.table == Table::Filter);
        if filter_first {
            script.begin(Table::Filter)?;
            self.inserts(Table::Filter, script)?;
            script.commit()?;
        }
        let part = |table| TablePart { transaction: self, context, table };
        part(Table::Nat).print(list_first, script, true)?;
        part(Table::Filter).print(false, script, !filter_first)?;
        part(Table::Mangle).print(false, script, true)
    }

    fn inserts<W: Write>(&self, table: Table, script: &mut Script<'_, W>) -> Result<()> {
        for (shared, rule, service) in self.insert.iter().filter(|(s, ..)| s.table == table) {
            script.origin(Some(service));
            script.insert(shared.chain.as_str(), rule)?;
        }
        Ok(())
    }

    fn deletes<W: Write>(&self, table: Table, script: &mut Script<'_, W>) -> Result<()> {
        let rewritten = |shared: &Shared| self.fixed.contains(&(shared.table, shared.chain));
        for (shared, rule, service) in self.delete.iter().filter(|(s, ..)| s.table == table && !rewritten(s))
        {
            script.origin(Some(service));
            script.delete(shared.chain.as_str(), rule)?;
        }
        Ok(())
    }
}

/// The part of a transaction for one table.
struct TablePart<'a> {
    transaction: &'a Transaction,
    context: RenderContext<'a>,
    table: Table,
}

impl TablePart<'_> {
    fn is_empty(&self, inserts: bool) -> bool {
        let (tx, table) = (self.transaction, self.table);
        let nat = table == Table::Nat;
        !(tx.fixed.iter().chain(&tx.create).any(|(t, _)| *t == table)
            || tx.hook.iter().any(|h| h.table == table)
            || tx.unhook.iter().any(|(t, ..)| *t == table)
            || inserts && tx.insert.iter().any(|(s, ..)| s.table == table)
            || tx.delete.iter().any(|(s, ..)| s.table == table)
            || tx.remove.contains_key(&table)
            || tx.empty.contains_key(&table)
            || nat && !tx.write.is_empty())
    }

    fn print<W: Write>(&self, list_first: bool, script: &mut Script<'_, W>, inserts: bool) -> Result<()> {
        if self.is_empty(inserts) {
            return Ok(());
        }
        let tx = self.transaction;
        let mut own: Vec<PortChain> = Vec::new();
        if self.table == Table::Nat {
            own.extend(tx.write.values().flatten().copied());
            own.sort_unstable();
        }
        let removals: Vec<&Chain> = tx.remove.get(&self.table).into_iter().flatten().collect();
        let list_before_removals = list_first && removals.len() > LISTING_THRESHOLD;
        let list_first = list_first && own.len() > LISTING_THRESHOLD;
        script.begin(self.table)?;
        if list_first {
            script.list_table()?;
        }
        let fixed = || {
            tx.fixed
                .iter()
                .chain(&tx.create)
                .filter(|(table, _)| *table == self.table)
                .map(|(_, chain)| *chain)
        };
        fixed().try_for_each(|chain| script.declare(chain.as_str()))?;
        own.iter().try_for_each(|chain| script.declare(chain))?;
        tx.empty.get(&self.table).into_iter().flatten().try_for_each(|chain| script.declare(chain))?;
        drop(own);
        self.services(script)?;
        script.origin(None);
        self.fixed_rules(script)?;
        if inserts {
            tx.inserts(self.table, script)?;
        }
        tx.deletes(self.table, script)?;
        script.origin(None);
        if list_first {
            // After `-S` the tool assumes that all built-in chains exist, even in a table that was never used.
            script.split()?;
        }
        for (_, chain, rule) in tx.unhook.iter().filter(|(t, ..)| *t == self.table) {
            script.delete(chain, rule)?;
        }
        // Each hook is inserted at the beginning, so the first one is inserted last.
        for hook in tx.hook.iter().rev().filter(|h| h.table == self.table) {
            script.insert(&hook.chain, &hook.rule)?;
        }
        if list_before_removals {
            script.split()?;
            script.list_table()?;
        }
        script.remove(removals)?;
        script.commit()
    }

    /// The chains of Services, and the rules of Services in shared chains that are rewritten.
    fn services<W: Write>(&self, script: &mut Script<'_, W>) -> Result<()> {
        let tx = self.transaction;
        let shared = |s: &Shared| s.table == self.table && tx.fixed.contains(&(s.table, s.chain));
        let all_services = Shared::ALL.iter().any(shared);
        let none = BTreeSet::new();
        let mut each = |plan: &ServicePlan| -> Result<()> {
            let write = tx.write.get(&plan.name).filter(|_| self.table == Table::Nat).unwrap_or(&none);
            if write.is_empty() && !all_services {
                return Ok(());
            }
            let part = self.context.service_rules(plan);
            script.origin(Some(&plan.name));
            for (chain, rules) in part.chains.iter().filter(|(chain, _)| write.contains(chain)) {
                rules.iter().try_for_each(|rule| script.append(chain, rule))?;
            }
            let rules = part.shared.iter().filter(|(s, _)| shared(s));
            rules.into_iter().try_for_each(|(s, rule)| script.append(s.chain.as_str(), rule))
        };
        if all_services {
            return self.context.services().into_iter().try_for_each(each);
        }
        tx.write.keys().filter_map(|name| self.context.plan(name)).try_for_each(&mut each)
    }

    fn fixed_rules<W: Write>(&self, script: &mut Script<'_, W>) -> Result<()> {
        for (table, chain, rules) in &self.context.base.chains {
            if *table == self.table && self.transaction.fixed.contains(&(*table, *chain)) {
                rules.iter().try_for_each(|rule| script.append(chain.as_str(), rule))?;
            }
        }
        Ok(())
    }
}
