//! A table as a value: what we want the kernel to hold, or what it was found to hold.

use portway_netlink::nft::{Chain, Element, Hook, Rule, Set};
use std::collections::BTreeMap;
use std::sync::Arc;

/// TableNames of chains and sets are shared by everything that refers to them.
pub type Name = Arc<str>;

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ChainBody {
    /// Where it hooks in, if it is a base chain.
    pub hook: Option<Hook>,
    /// Its rules in order.
    pub rules: Vec<Rule>,
}

impl ChainBody {
    /// The chain without its rules.
    pub fn chain(&self, name: &Name) -> Chain {
        Chain { name: name.clone(), hook: self.hook }
    }
}

/// A table, or a part of one: one Service's share.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Table {
    /// Chains by name.
    pub chains: BTreeMap<Name, ChainBody>,
    /// Sets and maps by name.
    pub sets: BTreeMap<Name, Set>,
    /// It holds something that is not one of these, or is not in force as a whole: only making it anew helps.
    pub odd: bool,
    /// Elements by set. Those that rules add themselves are not among them.
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

    /// Adds a part. What both have is the same in both.
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

    /// Sorts the elements and drops repetitions, so that two tables can be compared.
    pub fn normalize(&mut self) {
        self.elements.values_mut().for_each(sort);
        self.elements.retain(|_, list| !list.is_empty());
    }

    /// The same for one set.
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

/// What makes an element itself: two with the same are one.
pub(crate) fn order(e: &Element) -> (&[u8], Option<&[u8]>, bool) {
    (e.key.as_slice(), e.key_end.as_ref().map(|k| k.as_slice()), e.interval_end)
}
