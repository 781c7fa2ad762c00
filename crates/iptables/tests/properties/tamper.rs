//! Changes that another process may make to our rules.

use crate::ours::{is_hook, is_proxys};
use portway_xtables::chains::Table;
use portway_xtables::fake::{Content, Tables};
use proptest::prelude::*;
use proptest::sample::Index;

/// A kind of change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// One of our rules goes, wherever it is.
    RemoveRule,
    /// A foreign rule is added to one of our chains.
    AddRule,
    /// Two of our rules change places.
    Swap,
    /// One of our rules comes twice.
    Repeat,
    /// One of our rules is spelled in another way, which changes nothing.
    Respell,
    /// One of our chains is flushed.
    Flush,
    /// One of our chains is removed, with all jumps to it.
    RemoveChain,
    /// A chain is added whose name looks like ours.
    AddChain,
    /// A foreign jump to one of our chains is added.
    AddHook,
    /// All our rules and chains are removed.
    RemoveAll,
    /// A foreign chain and a foreign rule are added.
    Mind,
}

/// A change, and the rule or chain that it is made to.
#[derive(Clone, Debug)]
pub(crate) struct Tamper {
    what: What,
    at: Index,
    of: Index,
}

/// Any change.
pub(crate) fn tamper() -> impl Strategy<Value = Tamper> {
    use What::*;
    let what = prop::sample::select(vec![
        RemoveRule,
        RemoveRule,
        AddRule,
        Swap,
        Repeat,
        Respell,
        Respell,
        Flush,
        RemoveChain,
        AddChain,
        AddHook,
        RemoveAll,
        Mind,
    ]);
    (what, any::<Index>(), any::<Index>()).prop_map(|(what, at, of)| Tamper { what, at, of })
}

/// A foreign rule.
const STRANGE: &str = " -m comment --comment strange -j RETURN";
/// Chains of older versions, of Services that are gone, and of ours in a table where they have no place.
const STALE: [(Table, &str); 5] = [
    (Table::Nat, "KUBE-SVC-AAAAAAAAAAAAAAAA"),
    (Table::Nat, "KUBE-XLB-AAAAAAAAAAAAAAAA"),
    (Table::Filter, "KUBE-SEP-AAAAAAAAAAAAAAAA"),
    (Table::Mangle, "KUBE-SERVICES"),
    (Table::Nat, "KUBE-PROXY-CANARY"),
];

impl Tamper {
    /// Has it done.
    pub(crate) fn apply(&self, tables: &mut Tables) {
        match self.what {
            What::RemoveRule => {
                if let Some((rules, i)) = self.pick(tables, |chain, rule| is_proxys(chain) || is_hook(rule)) {
                    rules.remove(i);
                }
            }
            What::AddRule => self.chain(tables, |rules, i| rules.insert(i, STRANGE.to_owned())),
            What::Swap => self.chain(tables, |rules, i| {
                if i + 1 < rules.len() {
                    rules.swap(i, i + 1);
                }
            }),
            What::Repeat => self.chain(tables, |rules, i| rules.extend(rules.get(i).cloned())),
            What::Respell => {
                if let Some((rules, i)) = self.pick(tables, |chain, _| is_proxys(chain)) {
                    rules[i] = rules[i].replacen("/32 ", " ", 1).replacen("/128 ", " ", 1);
                }
            }
            What::Flush => self.chain(tables, |rules, _| rules.clear()),
            What::RemoveChain => {
                if let Some((table, chain)) = self.any_chain(tables) {
                    remove(tables.0.get_mut(&table), &chain);
                }
            }
            What::AddChain => {
                let (table, chain) = self.at.get(&STALE);
                let content = tables.0.entry(*table).or_insert_with(|| Content::new(*table));
                content.chains.insert((*chain).to_owned(), vec![STRANGE.to_owned()]);
            }
            What::AddHook => self.add_hook(tables),
            What::RemoveAll => {
                for content in tables.0.values_mut() {
                    content.chains.values_mut().for_each(|rules| rules.retain(|rule| !is_hook(rule)));
                    content.chains.retain(|chain, _| !is_proxys(chain));
                }
            }
            What::Mind => {
                let Some(content) = tables.0.get_mut(&Table::Filter) else { return };
                content.chains.insert("cali-FORWARD".to_owned(), vec![STRANGE.to_owned()]);
                content.chains.entry("FORWARD".to_owned()).or_default().insert(0, STRANGE.to_owned());
            }
        }
    }

    /// A rule somewhere.
    fn pick<'t>(
        &self,
        tables: &'t mut Tables,
        wanted: impl Fn(&str, &str) -> bool,
    ) -> Option<(&'t mut Vec<String>, usize)> {
        let mut places = Vec::new();
        for (table, chain, rules) in tables.chains() {
            let fit = rules.iter().enumerate().filter(|(_, rule)| wanted(chain, rule));
            places.extend(fit.map(|(i, _)| (table, chain.to_owned(), i)));
        }
        if places.is_empty() {
            return None;
        }
        let (table, chain, i) = self.at.get(&places);
        Some((tables.0.get_mut(table)?.chains.get_mut(chain)?, *i))
    }

    fn any_chain(&self, tables: &Tables) -> Option<(Table, String)> {
        let all: Vec<(Table, String)> =
            tables.chains().filter(|(_, c, _)| is_proxys(c)).map(|(t, c, _)| (t, c.to_owned())).collect();
        (!all.is_empty()).then(|| self.at.get(&all).clone())
    }

    /// Changes a chain of ours at some place in it.
    fn chain(&self, tables: &mut Tables, change: impl FnOnce(&mut Vec<String>, usize)) {
        let Some((table, chain)) = self.any_chain(tables) else { return };
        let Some(rules) = tables.0.get_mut(&table).and_then(|c| c.chains.get_mut(&chain)) else { return };
        let at = self.of.index(rules.len() + 1);
        change(rules, at);
    }

    fn add_hook(&self, tables: &mut Tables) {
        let places = [(Table::Nat, "PREROUTING"), (Table::Filter, "INPUT"), (Table::Filter, "FORWARD")];
        let (table, chain) = self.at.get(&places);
        let Some(content) = tables.0.get_mut(table) else { return };
        if content.chains.contains_key("KUBE-SERVICES") {
            let rule = " -m comment --comment strange -j KUBE-SERVICES".to_owned();
            content.chains.entry((*chain).to_owned()).or_default().push(rule);
        }
    }
}

fn remove(content: Option<&mut Content>, chain: &str) {
    let Some(content) = content else { return };
    content.chains.remove(chain);
    let leads = format!("-j {chain}");
    content.chains.values_mut().for_each(|rules| rules.retain(|rule| !rule.ends_with(&leads)));
}
