//! A change of the rules, as a value.
//!
//! A [`Transaction`] names chains, and gives single rules only where single rules change. The rules of whole chains are
//! rendered when it is printed: for the first sync of a large cluster they would fill the memory otherwise.

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
    /// Chains to fill, or fill anew, by the Service they belong to.
    pub write: BTreeMap<ServiceName, BTreeSet<PortChain>>,
    /// Constant chains to fill anew; the shared ones with all Services' rules.
    pub fixed: BTreeSet<(Table, Fixed)>,
    /// Chains to create, which other programs may fill.
    pub create: BTreeSet<(Table, Fixed)>,
    /// Rules to add to shared chains.
    pub insert: Vec<(Shared, Rule, ServiceName)>,
    /// Rules to remove from them.
    pub delete: Vec<(Shared, Rule, ServiceName)>,
    /// Hooks to add to built-in chains.
    pub hook: Vec<Hook>,
    /// Hooks to remove from built-in chains, as the kernel lists them.
    pub unhook: Vec<(Table, Chain, String)>,
    /// Chains to remove.
    pub remove: BTreeMap<Table, Vec<Chain>>,
    /// Chains to empty, because rules of other programs lead to them.
    pub empty: BTreeMap<Table, Vec<Chain>>,
}

/// How many chains make it worth to look at the whole table first.
const MANY: usize = 256;

impl Transaction {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Transaction::default()
    }

    /// Notes the change of a Service's share.
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
        let mut stays = new.shared;
        for (shared, rule) in old.shared {
            match stays.iter().position(|(s, r)| *s == shared && *r == rule) {
                Some(i) => drop(stays.swap_remove(i)),
                None => self.delete.push((shared, rule, name.clone())),
            }
        }
        // Those that were there before are no longer in `stays` exactly as often as they were.
        self.insert.extend(stays.into_iter().map(|(shared, rule)| (shared, rule, name.clone())));
    }

    /// Writes it down for `iptables-restore`. What is refused comes before, and goes after, what is led on, so that no
    /// packet finds neither.
    pub fn print<W: Write>(
        &self,
        context: RenderContext<'_>,
        look_at_all: bool,
        script: &mut Script<'_, W>,
    ) -> Result<()> {
        let refused_first = self.insert.iter().any(|(s, ..)| s.table == Table::Filter);
        if refused_first {
            script.begin(Table::Filter)?;
            self.inserts(Table::Filter, script)?;
            script.commit()?;
        }
        let only = |table| Only { transaction: self, context, table };
        only(Table::Nat).print(look_at_all, script, true)?;
        only(Table::Filter).print(false, script, !refused_first)?;
        only(Table::Mangle).print(false, script, true)
    }

    fn inserts<W: Write>(&self, table: Table, script: &mut Script<'_, W>) -> Result<()> {
        for (shared, rule, service) in self.insert.iter().filter(|(s, ..)| s.table == table) {
            script.origin(Some(service));
            script.insert(shared.chain.as_str(), rule)?;
        }
        Ok(())
    }

    fn deletes<W: Write>(&self, table: Table, script: &mut Script<'_, W>) -> Result<()> {
        let whole = |shared: &Shared| self.fixed.contains(&(shared.table, shared.chain));
        for (shared, rule, service) in self.delete.iter().filter(|(s, ..)| s.table == table && !whole(s)) {
            script.origin(Some(service));
            script.delete(shared.chain.as_str(), rule)?;
        }
        Ok(())
    }
}

/// The part of a transaction that concerns one table.
struct Only<'a> {
    transaction: &'a Transaction,
    context: RenderContext<'a>,
    table: Table,
}

impl Only<'_> {
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

    fn print<W: Write>(&self, look_at_all: bool, script: &mut Script<'_, W>, inserts: bool) -> Result<()> {
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
        let look_at_removals = look_at_all && removals.len() > MANY;
        let look_at_all = look_at_all && own.len() > MANY;
        script.begin(self.table)?;
        if look_at_all {
            script.look_at_all()?;
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
        if look_at_all {
            // After `-S` the tool takes built-in chains for created that were never used.
            script.part()?;
        }
        for (_, chain, rule) in tx.unhook.iter().filter(|(t, ..)| *t == self.table) {
            script.delete(chain, rule)?;
        }
        // The last to be inserted comes first.
        for hook in tx.hook.iter().rev().filter(|h| h.table == self.table) {
            script.insert(&hook.chain, &hook.rule)?;
        }
        if look_at_removals {
            script.part()?;
            script.look_at_all()?;
        }
        script.remove(removals)?;
        script.commit()
    }

    /// The Services' own chains, and their rules in shared chains that are filled anew.
    fn services<W: Write>(&self, script: &mut Script<'_, W>) -> Result<()> {
        let tx = self.transaction;
        let shared = |s: &Shared| s.table == self.table && tx.fixed.contains(&(s.table, s.chain));
        let everybody = Shared::ALL.iter().any(shared);
        let none = BTreeSet::new();
        let mut each = |plan: &ServicePlan| -> Result<()> {
            let write = tx.write.get(&plan.name).filter(|_| self.table == Table::Nat).unwrap_or(&none);
            if write.is_empty() && !everybody {
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
        if everybody {
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
