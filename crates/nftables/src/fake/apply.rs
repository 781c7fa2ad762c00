//! Applies a transaction, operation by operation, in the order in which [`crate::commit::Netlink`] sends them.
//!
//! References to a set or chain are not counted continuously, but by a scan of all rules and elements when a set or
//! chain is deleted.

use super::{EBUSY, EEXIST, EINVAL, ENOENT, EOPNOTSUPP, refused, validate};
use crate::diff::Transaction;
use crate::table::{ChainBody, Name, Table, order};
use portway_netlink::Result;
use portway_netlink::nft::object::{SET_CONCAT, SET_DYNAMIC, SET_INTERVAL, SET_MAP, VALUE_VERDICT};
use portway_netlink::nft::{Chain, Data, Element, Expr, Rule, Set, Verdict};

/// Applies `tx` to `table`. After an error the table is partly changed, and the caller discards it.
pub(super) fn apply(table: &mut Option<Table>, tx: &Transaction) -> Result<()> {
    if tx.rebuild && table.take().is_none() {
        return Err(refused(ENOENT, "delete table"));
    }
    if tx.add_table {
        table.get_or_insert_default();
    }
    if tx.is_empty() {
        return Ok(());
    }
    let Some(table) = table else { return Err(refused(ENOENT, "find the table")) };
    tx.add_sets.iter().try_for_each(|s| add_set(table, s))?;
    tx.add_chains.iter().try_for_each(|c| add_chain(table, c))?;
    for name in &tx.flush_chains {
        let chain = table.chains.get_mut(name);
        chain.ok_or_else(|| refused(ENOENT, format!("flush chain {name}")))?.rules.clear();
    }
    for (set, elements) in &tx.delete {
        delete_elements(table, set, elements)?;
    }
    for (chain, rules) in &tx.add_rules {
        rules.iter().try_for_each(|r| add_rule(table, chain, r))?;
    }
    for (set, elements) in &tx.add {
        add_elements(table, set, elements)?;
    }
    tx.delete_sets.iter().try_for_each(|s| delete_set(table, s))?;
    delete_chains(table, &tx.delete_chains)?;
    validate::validate(table)?;
    table.normalize();
    Ok(())
}

/// Adding a set that exists is no error if the definition is the same.
fn add_set(table: &mut Table, set: &Set) -> Result<()> {
    match table.sets.get(&set.name) {
        Some(old) if old != set => Err(refused(EEXIST, format!("add set {}", set.name))),
        Some(_) => Ok(()),
        None => {
            table.sets.insert(set.name.clone(), set.clone());
            Ok(())
        }
    }
}

fn add_chain(table: &mut Table, chain: &Chain) -> Result<()> {
    match table.chains.get(&chain.name) {
        Some(old) if old.hook != chain.hook => Err(refused(EEXIST, format!("add chain {}", chain.name))),
        Some(_) => Ok(()),
        None => {
            let body = ChainBody { hook: chain.hook, rules: Vec::new() };
            table.chains.insert(chain.name.clone(), body);
            Ok(())
        }
    }
}

fn add_rule(table: &mut Table, chain: &Name, rule: &Rule) -> Result<()> {
    let operation = || format!("add rule to chain {chain}");
    for expr in &rule.exprs {
        let errno = match expr {
            Expr::Lookup { set, .. } => set_error(table, set, |_| true),
            Expr::Map { set, .. } => set_error(table, set, |s| s.value.is_some_and(|v| v != VALUE_VERDICT)),
            Expr::VerdictMap { set, .. } => set_error(table, set, |s| s.value == Some(VALUE_VERDICT)),
            Expr::Update { set, .. } => set_error(table, set, |s| s.flags & SET_DYNAMIC != 0),
            Expr::Verdict(verdict) => target_error(table, verdict),
            _ => None,
        };
        if let Some(errno) = errno {
            return Err(refused(errno, operation()));
        }
    }
    let body = table.chains.get_mut(chain).ok_or_else(|| refused(ENOENT, operation()))?;
    body.rules.push(rule.clone());
    Ok(())
}

/// The errno for an expression that uses a set, if the set does not exist or is of another kind.
fn set_error(table: &Table, set: &Name, fits: impl Fn(&Set) -> bool) -> Option<i32> {
    match table.sets.get(set) {
        None => Some(ENOENT),
        Some(set) => (!fits(set)).then_some(EINVAL),
    }
}

/// The errno for a verdict, if its chain does not exist or is a base chain.
fn target_error(table: &Table, verdict: &Verdict) -> Option<i32> {
    let (Verdict::Jump(to) | Verdict::Goto(to)) = verdict else { return None };
    match table.chains.get(to) {
        None => Some(ENOENT),
        Some(body) => body.hook.is_some().then_some(EOPNOTSUPP),
    }
}

/// Adds elements. The existing elements are sorted and the new ones are not, so all are sorted once.
fn add_elements(table: &mut Table, name: &Name, new: &[Element]) -> Result<()> {
    let operation = || format!("add elements to {name}");
    let set = table.sets.get(name).ok_or_else(|| refused(ENOENT, operation()))?.clone();
    for element in new {
        if let Some(errno) = element_error(table, &set, element) {
            return Err(refused(errno, operation()));
        }
    }
    let mut all = table.elements.remove(name).unwrap_or_default();
    all.extend(new.iter().cloned());
    // The sort is stable: of two elements with the same key, the existing one comes first and is kept.
    all.sort_by(|a, b| order(a).cmp(&order(b)));
    if all.windows(2).any(|w| order(&w[0]) == order(&w[1]) && w[0].data != w[1].data) {
        return Err(refused(EEXIST, operation()));
    }
    all.dedup_by(|later, earlier| order(later) == order(earlier));
    if overlaps(&set, &all) {
        return Err(refused(EEXIST, operation()));
    }
    table.elements.insert(name.clone(), all);
    Ok(())
}

/// The errno for an element that a set cannot have.
fn element_error(table: &Table, set: &Set, element: &Element) -> Option<i32> {
    let value_fits = match (&element.data, set.value) {
        (None, None) => true,
        (Some(Data::Verdict(verdict)), Some(VALUE_VERDICT)) => {
            if let Some(errno) = target_error(table, verdict) {
                return Some(errno);
            }
            true
        }
        (Some(Data::Value(value)), Some((_, len))) => value.as_slice().len() == len as usize,
        _ => false,
    };
    let key_fits = element.key.as_slice().len() == set.key_len as usize;
    let range_fits = element.key_end.is_none() || set.flags & SET_CONCAT != 0;
    let end_fits = !element.interval_end || set.flags & (SET_INTERVAL | SET_CONCAT) == SET_INTERVAL;
    let map_fits = set.value.is_some() == (set.flags & SET_MAP != 0);
    (!(value_fits && key_fits && range_fits && end_fits && map_fits)).then_some(EINVAL)
}

/// Whether two ranges of a set overlap.
fn overlaps(set: &Set, sorted: &[Element]) -> bool {
    if set.flags & SET_CONCAT != 0 {
        let mut pairs = sorted.iter().enumerate().flat_map(|(i, a)| sorted[..i].iter().map(move |b| (a, b)));
        return pairs.any(|(a, b)| overlap(a, b, &set.fields));
    }
    if set.flags & SET_INTERVAL == 0 {
        return false;
    }
    // Where a range begins at the end of another, the end element is sorted first.
    let mut boundaries: Vec<&Element> = sorted.iter().collect();
    boundaries.sort_by_key(|e| (e.key, !e.interval_end));
    boundaries.windows(2).any(|w| w[0].interval_end == w[1].interval_end)
        || boundaries.first().is_some_and(|e| e.interval_end)
}

/// Whether two ranges of a concatenation overlap in every field.
fn overlap(a: &Element, b: &Element, fields: &[u32]) -> bool {
    let end = |e: &Element| e.key_end.as_deref().copied().unwrap_or(e.key);
    let (a_end, b_end) = (end(a), end(b));
    let mut at = 0;
    fields.iter().all(|len| {
        let part = at..at + *len as usize;
        at = part.end.next_multiple_of(4);
        let of = |key: &portway_netlink::nft::Key| key.as_slice().get(part.clone()).map(<[u8]>::to_vec);
        of(&a.key) <= of(&b_end) && of(&b.key) <= of(&a_end)
    })
}

fn delete_elements(table: &mut Table, name: &Name, removed: &[Element]) -> Result<()> {
    let missing = || refused(ENOENT, format!("delete elements from {name}"));
    if !table.sets.contains_key(name) {
        return Err(missing());
    }
    let list = table.elements.entry(name.clone()).or_default();
    let mut to_delete = std::collections::BTreeSet::new();
    for element in removed {
        let found = list.binary_search_by(|e| order(e).cmp(&order(element))).map_err(|_| missing())?;
        if !to_delete.insert(found) {
            return Err(missing());
        }
    }
    let mut index = 0;
    list.retain(|_| {
        index += 1;
        !to_delete.contains(&(index - 1))
    });
    Ok(())
}

fn delete_set(table: &mut Table, name: &Name) -> Result<()> {
    let uses = |e: &Expr| match e {
        Expr::Lookup { set, .. }
        | Expr::Map { set, .. }
        | Expr::VerdictMap { set, .. }
        | Expr::Update { set, .. } => set == name,
        _ => false,
    };
    let operation = || format!("delete set {name}");
    if table.chains.values().flat_map(|c| &c.rules).flat_map(|r| &r.exprs).any(uses) {
        return Err(refused(EBUSY, operation()));
    }
    table.elements.remove(name);
    table.sets.remove(name).map(drop).ok_or_else(|| refused(ENOENT, operation()))
}

/// Deletes chains with their rules. A chain that a rule or element points to cannot be deleted; deleting a chain
/// removes the references in its rules.
fn delete_chains(table: &mut Table, names: &[Name]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let target = |v: &Verdict| match v {
        Verdict::Jump(to) | Verdict::Goto(to) => Some(to.clone()),
        _ => None,
    };
    let of_rule = |r: &Rule| -> Vec<Name> {
        let verdicts = r.exprs.iter().filter_map(|e| if let Expr::Verdict(v) = e { target(v) } else { None });
        verdicts.collect()
    };
    let of_element = |e: &Element| if let Some(Data::Verdict(v)) = &e.data { target(v) } else { None };
    let mut uses: std::collections::HashMap<Name, usize> = std::collections::HashMap::new();
    let rules = table.chains.values().flat_map(|c| &c.rules).flat_map(of_rule);
    for to in rules.chain(table.elements.values().flatten().filter_map(of_element)) {
        *uses.entry(to).or_default() += 1;
    }
    for name in names {
        let body =
            table.chains.remove(name).ok_or_else(|| refused(ENOENT, format!("delete chain {name}")))?;
        for to in body.rules.iter().flat_map(of_rule) {
            *uses.entry(to).or_default() -= 1;
        }
        if uses.get(name).is_some_and(|n| *n > 0) {
            return Err(refused(EBUSY, format!("delete chain {name}")));
        }
    }
    Ok(())
}
