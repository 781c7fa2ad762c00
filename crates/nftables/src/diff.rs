//! Computes the transaction that turns one table into another.

use crate::table::{ChainBody, Name, Table, order};
use portway_dataplane::Drift;
use portway_netlink::nft::object::SET_DYNAMIC;
use portway_netlink::nft::{Chain, Element, Rule, Set};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Changes that are committed together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Delete the table first, because an object in it cannot be changed in place.
    pub rebuild: bool,
    /// Create the table.
    pub add_table: bool,
    /// Sets to create.
    pub add_sets: Vec<Set>,
    /// Chains to create.
    pub add_chains: Vec<Chain>,
    /// Chains to flush before rules are added; their new rules, if any, are in `add_rules`.
    pub flush_chains: BTreeSet<Name>,
    /// Elements to delete, by set.
    pub delete: BTreeMap<Name, Vec<Element>>,
    /// Rules to append, by chain.
    pub add_rules: BTreeMap<Name, Vec<Rule>>,
    /// Elements to add, by set.
    pub add: BTreeMap<Name, Vec<Element>>,
    /// Sets to delete.
    pub delete_sets: Vec<Name>,
    /// Chains to delete.
    pub delete_chains: Vec<Name>,
}

impl Transaction {
    /// Whether it has no changes.
    pub fn is_empty(&self) -> bool {
        *self == Transaction::default()
    }

    /// The numbers of added and of deleted objects.
    pub fn size(&self) -> (usize, usize) {
        let elements = |m: &BTreeMap<Name, Vec<Element>>| m.values().map(Vec::len).sum::<usize>();
        let rules: usize = self.add_rules.values().map(Vec::len).sum();
        (
            self.add_sets.len() + self.add_chains.len() + rules + elements(&self.add),
            self.delete_sets.len() + self.delete_chains.len() + elements(&self.delete),
        )
    }

    fn add_chain(&mut self, name: &Name, body: ChainBody) {
        self.add_chains.push(body.chain(name));
        self.add_rules.insert(name.clone(), body.rules);
    }

    /// Replaces a chain's rules.
    pub(crate) fn replace_rules(&mut self, name: &Name, rules: Vec<Rule>) {
        self.flush_chains.insert(name.clone());
        self.add_rules.insert(name.clone(), rules);
    }

    fn delete_chain(&mut self, name: &Name) {
        self.flush_chains.insert(name.clone());
        self.delete_chains.push(name.clone());
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rebuild {
            writeln!(f, "delete table")?;
        }
        if self.add_table {
            writeln!(f, "add table")?;
        }
        self.add_sets.iter().try_for_each(|s| writeln!(f, "add set {}", s.name))?;
        self.add_chains.iter().try_for_each(|c| writeln!(f, "add chain {}", c.name))?;
        self.flush_chains.iter().try_for_each(|c| writeln!(f, "flush chain {c}"))?;
        for (set, elements) in &self.delete {
            elements.iter().try_for_each(|e| writeln!(f, "delete element {set} {:?}", e.key))?;
        }
        for (chain, rules) in &self.add_rules {
            rules.iter().try_for_each(|r| writeln!(f, "add rule {chain} {r}"))?;
        }
        for (set, elements) in &self.add {
            elements.iter().try_for_each(|e| writeln!(f, "add element {set} {:?} : {:?}", e.key, e.data))?;
        }
        self.delete_sets.iter().try_for_each(|s| writeln!(f, "delete set {s}"))?;
        self.delete_chains.iter().try_for_each(|c| writeln!(f, "delete chain {c}"))
    }
}

/// The transaction that turns `have` (the listed table; `None` if it does not exist) into `want`, and the differences
/// between them. Both are normalized.
pub fn diff(have: Option<&Table>, mut want: Table) -> (Transaction, Drift) {
    let Some(have) = have else {
        let drift = Drift { missing: 1, examples: vec!["the table".into()], ..Drift::default() };
        return (create(want, false), drift);
    };
    let mut drift = Drift::default();
    if have.needs_rebuild {
        drift.foreign += 1;
        drift.note("a table flag or an object that Portway does not use");
        return (create(want, true), drift);
    }
    let changed_set = want.sets.iter().find(|(n, s)| have.sets.get(*n).is_some_and(|h| h != *s));
    let changed_hook =
        want.chains.iter().find(|(n, c)| have.chains.get(*n).is_some_and(|h| h.hook != c.hook));
    if let Some(name) = changed_set.map(|(n, _)| n).or(changed_hook.map(|(n, _)| n)) {
        drift.altered += 1;
        drift.note(format_args!("definition of {name}"));
        return (create(want, true), drift);
    }
    let mut tx = Transaction::default();
    for (name, set) in &want.sets {
        if !have.sets.contains_key(name) {
            drift.missing += 1;
            drift.note(format_args!("set {name}"));
            tx.add_sets.push(set.clone());
        }
    }
    for (name, body) in std::mem::take(&mut want.chains) {
        match have.chains.get(&name) {
            None => {
                drift.missing += 1;
                drift.note(format_args!("chain {name}"));
                tx.add_chain(&name, body);
            }
            Some(found) if found.rules != body.rules => {
                drift.altered += 1;
                drift.note(format_args!("rules of chain {name}"));
                tx.replace_rules(&name, body.rules);
            }
            Some(_) => {}
        }
        want.chains.insert(name, ChainBody::default());
    }
    for name in have.chains.keys().filter(|n| !want.chains.contains_key(*n)) {
        drift.foreign += 1;
        drift.note(format_args!("chain {name}"));
        tx.delete_chain(name);
    }
    for name in have.sets.keys().filter(|n| !want.sets.contains_key(*n)) {
        drift.foreign += 1;
        drift.note(format_args!("set {name}"));
        tx.delete_sets.push(name.clone());
    }
    let none = Vec::new();
    for (name, set) in want.sets.iter().filter(|(_, s)| s.flags & SET_DYNAMIC == 0) {
        let found = have.elements.get(name).unwrap_or(&none);
        let wanted = want.elements.remove(name).unwrap_or_default();
        let before = tx.size();
        diff_elements(name, found, &wanted, &mut tx);
        let after = tx.size();
        let (added, removed) = (after.0 - before.0, after.1 - before.1);
        let altered = added.min(removed);
        drift.missing += added - altered;
        drift.foreign += removed - altered;
        drift.altered += altered;
        if added + removed > 0 {
            drift.note(format_args!("{} elements of {}", added.max(removed), set.name));
        }
    }
    (tx, drift)
}

/// The transaction that creates the table, after deleting it if `rebuild`.
fn create(want: Table, rebuild: bool) -> Transaction {
    let mut tx = Transaction { rebuild, add_table: true, ..Transaction::default() };
    tx.add_sets = want.sets.into_values().collect();
    for (name, body) in want.chains {
        tx.add_chain(&name, body);
    }
    tx.add = want.elements;
    tx
}

/// Compares two sorted lists of elements, and adds the elements to delete and to add to `tx`.
fn diff_elements(set: &Name, have: &[Element], want: &[Element], tx: &mut Transaction) {
    let (mut gone, mut new) = (Vec::new(), Vec::new());
    let (mut h, mut w) = (have.iter().peekable(), want.iter().peekable());
    loop {
        let ordering = match (h.peek(), w.peek()) {
            (None, None) => break,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(a), Some(b)) => order(a).cmp(&order(b)),
        };
        match ordering {
            std::cmp::Ordering::Less => gone.extend(h.next().cloned()),
            std::cmp::Ordering::Greater => new.extend(w.next().cloned()),
            std::cmp::Ordering::Equal => {
                if let (Some(a), Some(b)) = (h.next(), w.next())
                    && a != b
                {
                    gone.push(a.clone());
                    new.push(b.clone());
                }
            }
        }
    }
    if !gone.is_empty() {
        tx.delete.entry(set.clone()).or_default().append(&mut gone);
    }
    if !new.is_empty() {
        tx.add.entry(set.clone()).or_default().append(&mut new);
    }
}

/// The number of Services that use each object. An object that no Service uses is deleted.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    chains: BTreeMap<Name, u32>,
    sets: BTreeMap<Name, u32>,
    shared: BTreeMap<SharedKey, u32>,
}

impl Uses {
    /// Counts the objects that one Service uses; `shared` as for [`Draft::change`].
    pub(crate) fn count(&mut self, shared: &Name, part: &Table) {
        for name in part.chains.keys() {
            *self.chains.entry(name.clone()).or_default() += 1;
        }
        for name in part.sets.keys() {
            *self.sets.entry(name.clone()).or_default() += 1;
        }
        for element in part.elements.get(shared).into_iter().flatten() {
            *self.shared.entry((shared.clone(), element.key)).or_default() += 1;
        }
    }

    /// The sets that Services use.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Name> {
        self.sets.keys()
    }
}

/// A set and the key of an element that several Services may use.
type SharedKey = (Name, portway_netlink::nft::Key);

/// A transaction under construction, Service by Service. The flags record whether the object existed before.
#[derive(Debug, Default)]
pub struct Draft {
    tx: Transaction,
    chains: BTreeMap<Name, (bool, ChainBody)>,
    replaced: BTreeMap<Name, Vec<Rule>>,
    sets: BTreeMap<Name, (bool, Set)>,
    shared: BTreeMap<SharedKey, bool>,
}

impl Draft {
    /// Replaces the part of one Service. `shared` is the set in which several Services may have the same element.
    pub fn change(&mut self, uses: &mut Uses, shared: &Name, old: &Table, new: &Table) {
        for (name, body) in &new.chains {
            match old.chains.get(name) {
                Some(before) if before.rules != body.rules => {
                    self.replaced.insert(name.clone(), body.rules.clone());
                }
                Some(_) => {}
                None => {
                    let count = uses.chains.entry(name.clone()).or_default();
                    self.chains.entry(name.clone()).or_insert((*count > 0, ChainBody::default())).1 =
                        body.clone();
                    *count += 1;
                }
            }
        }
        for name in old.chains.keys().filter(|n| !new.chains.contains_key(*n)) {
            self.chains.entry(name.clone()).or_insert_with(|| (true, ChainBody::default()));
            release(&mut uses.chains, name);
        }
        for (name, set) in new.sets.iter().filter(|(n, _)| !old.sets.contains_key(*n)) {
            let count = uses.sets.entry(name.clone()).or_default();
            self.sets.entry(name.clone()).or_insert((*count > 0, set.clone())).1 = set.clone();
            *count += 1;
        }
        for (name, set) in old.sets.iter().filter(|(n, _)| !new.sets.contains_key(*n)) {
            self.sets.entry(name.clone()).or_insert((true, set.clone()));
            release(&mut uses.sets, name);
        }
        let none = Vec::new();
        let names: BTreeSet<&Name> = old.elements.keys().chain(new.elements.keys()).collect();
        for name in names {
            let have = old.elements.get(name).unwrap_or(&none);
            let want = new.elements.get(name).unwrap_or(&none);
            if name == shared {
                self.change_shared(uses, name, have, want);
            } else {
                diff_elements(name, have, want, &mut self.tx);
            }
        }
    }

    fn change_shared(&mut self, uses: &mut Uses, set: &Name, old: &[Element], new: &[Element]) {
        for element in new.iter().filter(|e| !old.contains(e)) {
            let key = (set.clone(), element.key);
            let count = uses.shared.entry(key.clone()).or_default();
            self.shared.entry(key).or_insert(*count > 0);
            *count += 1;
        }
        for element in old.iter().filter(|e| !new.contains(e)) {
            let key = (set.clone(), element.key);
            self.shared.entry(key.clone()).or_insert(true);
            release(&mut uses.shared, &key);
        }
    }

    /// The transaction, after all Services were added. An object that one Service no longer uses and another begins to
    /// use is not changed.
    pub fn finish(self, uses: &Uses) -> Transaction {
        let mut tx = self.tx;
        for (name, (existed, body)) in self.chains {
            match (existed, uses.chains.contains_key(&name)) {
                (false, true) => tx.add_chain(&name, body),
                (true, false) => tx.delete_chain(&name),
                _ => {}
            }
        }
        for (name, rules) in self.replaced {
            if uses.chains.contains_key(&name) {
                tx.replace_rules(&name, rules);
            }
        }
        for (name, (existed, set)) in self.sets {
            match (existed, uses.sets.contains_key(&name)) {
                (false, true) => tx.add_sets.push(set),
                (true, false) => tx.delete_sets.push(name),
                _ => {}
            }
        }
        // Deleting a set deletes its elements.
        tx.delete.retain(|set, _| !tx.delete_sets.contains(set));
        for ((set, key), existed) in self.shared {
            match (existed, uses.shared.contains_key(&(set.clone(), key))) {
                (false, true) => tx.add.entry(set).or_default().push(Element::key(key)),
                (true, false) => tx.delete.entry(set).or_default().push(Element::key(key)),
                _ => {}
            }
        }
        tx
    }
}

fn release<K: Ord>(uses: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = uses.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            uses.remove(key);
        }
    }
}

/// Adds the changes from one constant part to another to `tx`, after a change of settings.
pub fn diff_base(old: &Table, new: &Table, tx: &mut Transaction) {
    for (name, body) in
        new.chains.iter().filter(|(n, b)| old.chains.get(*n).map(|o| &o.rules) != Some(&b.rules))
    {
        tx.replace_rules(name, body.rules.clone());
    }
    let none = Vec::new();
    let names: BTreeSet<&Name> = old.elements.keys().chain(new.elements.keys()).collect();
    for name in names {
        let (have, want) = (old.elements.get(name).unwrap_or(&none), new.elements.get(name).unwrap_or(&none));
        diff_elements(name, have, want, tx);
    }
}
