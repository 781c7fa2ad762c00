//! A table as a value: the desired table, or the table as listed from the kernel.

use portway_netlink::nft::{Chain, Element, Hook, Rule, Set};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name of a chain or set, shared by all objects that refer to it.
pub type Name = Arc<str>;

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ChainBody {
    /// The hook, if it is a base chain.
    pub hook: Option<Hook>,
    /// The rules in order.
    pub rules: Vec<Rule>,
}

impl ChainBody {
    /// The chain without its rules.
    pub fn chain(&self, name: &Name) -> Chain {
        Chain { name: name.clone(), hook: self.hook }
    }
}

/// A table, or the part of it that one Service adds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Table {
    /// Chains by name.
    pub chains: BTreeMap<Name, ChainBody>,
    /// Sets and maps by name.
    pub sets: BTreeMap<Name, Set>,
    /// The listed table is dormant, or has objects that are not chains, sets, rules or elements: it has to be deleted
    /// and created again.
    pub needs_rebuild: bool,
    /// Elements by set, without the elements of dynamic sets, which rules add.
    pub elements: BTreeMap<Name, Vec<Element>>,
}

impl Table {
    /// Adds a chain without a hook.
    pub fn chain(&mut self, name: &Name, rules: Vec<Rule>) {
        self.chains.insert(name.clone(), ChainBody { hook: None, rules });
    }

    /// Adds an element.
    pub fn element(&mut self, set: &Name, element: Element) {
        match self.elements.get_mut(set) {
            Some(list) => list.push(element),
            None => drop(self.elements.insert(set.clone(), vec![element])),
        }
    }

    /// Adds a part. A chain or set that is in both has the same definition in both.
    pub fn merge(&mut self, part: Table) {
        self.chains.extend(part.chains);
        self.sets.extend(part.sets);
        for (set, mut elements) in part.elements {
            match self.elements.get_mut(&set) {
                Some(list) => list.append(&mut elements),
                None => drop(self.elements.insert(set, elements)),
            }
        }
    }

    /// Sorts the elements and removes duplicates, so that two tables can be compared.
    pub fn normalize(&mut self) {
        self.elements.values_mut().for_each(sort);
        self.elements.retain(|_, list| !list.is_empty());
    }

    /// Normalizes the elements of one set.
    pub(crate) fn normalize_set(&mut self, set: &Name) {
        if let Some(list) = self.elements.get_mut(set) {
            sort(list);
        }
    }
}

fn sort(list: &mut Vec<Element>) {
    list.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
    list.dedup_by(|a, b| order(a) == order(b));
}

/// The identity of an element, by which elements are sorted: a set has at most one element with it.
pub(crate) fn order(e: &Element) -> (&[u8], Option<&[u8]>, bool) {
    (e.key.as_slice(), e.key_end.as_ref().map(|k| k.as_slice()), e.interval_end)
}
