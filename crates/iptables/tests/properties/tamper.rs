//! Changes that another process may make to Portway's rules.

use crate::proxy_rules::{is_any_proxy_chain, is_hook};
use portway_xtables::chains::Table;
use portway_xtables::fake::{Content, Tables};
use proptest::prelude::*;
use proptest::sample::Index;

/// A kind of change. A proxy chain is a chain of Portway or kube-proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A rule of a proxy chain, or a jump to one, is removed.
    RemoveRule,
    /// A foreign rule is added to a proxy chain.
    AddRule,
    /// Two rules of a proxy chain are swapped.
    SwapRules,
    /// A rule of a proxy chain is added a second time.
    RepeatRule,
    /// A rule of a proxy chain is spelled in another way, which does not change its meaning.
    RespellRule,
    /// A proxy chain is flushed.
    FlushChain,
    /// A proxy chain is removed, with all jumps to it.
    RemoveChain,
    /// A chain with the name of a proxy chain is added.
    AddChain,
    /// A foreign jump to a proxy chain is added.
    AddHook,
    /// All proxy chains are removed, with all jumps to them.
    RemoveAll,
    /// A foreign chain, and a foreign rule in a built-in chain, are added. Portway must not change them.
    AddForeign,
}

/// A change, and the choice of the rule or chain that it affects.
#[derive(Clone, Debug)]
pub(crate) struct Tamper {
    kind: Kind,
    /// Selects the rule or chain.
    object: Index,
    /// Selects a position in the chain.
    position: Index,
}

/// Any change.
pub(crate) fn tamper() -> impl Strategy<Value = Tamper> {
    use Kind::*;
    let kind = prop::sample::select(vec![
        RemoveRule,
        RemoveRule,
        AddRule,
        SwapRules,
        RepeatRule,
        RespellRule,
        RespellRule,
        FlushChain,
        RemoveChain,
        AddChain,
        AddHook,
        RemoveAll,
        AddForeign,
    ]);
    (kind, any::<Index>(), any::<Index>()).prop_map(|(kind, object, position)| Tamper {
        kind,
        object,
        position,
    })
}

/// A foreign rule.
const FOREIGN_RULE: &str = " -m comment --comment foreign -j RETURN";
/// Chains of deleted Services, of older versions, and of Portway in the wrong table.
const STALE: [(Table, &str); 5] = [
    (Table::Nat, "KUBE-SVC-AAAAAAAAAAAAAAAA"),
    (Table::Nat, "KUBE-XLB-AAAAAAAAAAAAAAAA"),
    (Table::Filter, "KUBE-SEP-AAAAAAAAAAAAAAAA"),
    (Table::Mangle, "KUBE-SERVICES"),
    (Table::Nat, "KUBE-PROXY-CANARY"),
];

impl Tamper {
    /// Makes the change.
    pub(crate) fn apply(&self, tables: &mut Tables) {
        match self.kind {
            Kind::RemoveRule => {
                if let Some((rules, i)) =
                    self.pick(tables, |chain, rule| is_any_proxy_chain(chain) || is_hook(rule))
                {
                    rules.remove(i);
                }
            }
            Kind::AddRule => self.change_chain(tables, |rules, i| rules.insert(i, FOREIGN_RULE.to_owned())),
            Kind::SwapRules => self.change_chain(tables, |rules, i| {
                if i + 1 < rules.len() {
                    rules.swap(i, i + 1);
                }
            }),
            Kind::RepeatRule => self.change_chain(tables, |rules, i| rules.extend(rules.get(i).cloned())),
            Kind::RespellRule => {
                if let Some((rules, i)) = self.pick(tables, |chain, _| is_any_proxy_chain(chain)) {
                    rules[i] = rules[i].replacen("/32 ", " ", 1).replacen("/128 ", " ", 1);
                }
            }
            Kind::FlushChain => self.change_chain(tables, |rules, _| rules.clear()),
            Kind::RemoveChain => {
                if let Some((table, chain)) = self.any_chain(tables) {
                    remove(tables.0.get_mut(&table), &chain);
                }
            }
            Kind::AddChain => {
                let (table, chain) = self.object.get(&STALE);
                let content = tables.0.entry(*table).or_insert_with(|| Content::new(*table));
                content.chains.insert((*chain).to_owned(), vec![FOREIGN_RULE.to_owned()]);
            }
            Kind::AddHook => self.add_hook(tables),
            Kind::RemoveAll => {
                for content in tables.0.values_mut() {
                    content.chains.values_mut().for_each(|rules| rules.retain(|rule| !is_hook(rule)));
                    content.chains.retain(|chain, _| !is_any_proxy_chain(chain));
                }
            }
            Kind::AddForeign => {
                let Some(content) = tables.0.get_mut(&Table::Filter) else { return };
                content.chains.insert("cali-FORWARD".to_owned(), vec![FOREIGN_RULE.to_owned()]);
                content.chains.entry("FORWARD".to_owned()).or_default().insert(0, FOREIGN_RULE.to_owned());
            }
        }
    }

    /// Selects one of the rules that `wanted` accepts: the rules of its chain, and its index.
    fn pick<'t>(
        &self,
        tables: &'t mut Tables,
        wanted: impl Fn(&str, &str) -> bool,
    ) -> Option<(&'t mut Vec<String>, usize)> {
        let mut positions = Vec::new();
        for (table, chain, rules) in tables.chains() {
            let matching = rules.iter().enumerate().filter(|(_, rule)| wanted(chain, rule));
            positions.extend(matching.map(|(i, _)| (table, chain.to_owned(), i)));
        }
        if positions.is_empty() {
            return None;
        }
        let (table, chain, i) = self.object.get(&positions);
        Some((tables.0.get_mut(table)?.chains.get_mut(chain)?, *i))
    }

    /// Selects a proxy chain.
    fn any_chain(&self, tables: &Tables) -> Option<(Table, String)> {
        let all: Vec<(Table, String)> = tables
            .chains()
            .filter(|(_, c, _)| is_any_proxy_chain(c))
            .map(|(t, c, _)| (t, c.to_owned()))
            .collect();
        (!all.is_empty()).then(|| self.object.get(&all).clone())
    }

    /// Passes the rules of a proxy chain, and a position in it, to `change`.
    fn change_chain(&self, tables: &mut Tables, change: impl FnOnce(&mut Vec<String>, usize)) {
        let Some((table, chain)) = self.any_chain(tables) else { return };
        let Some(rules) = tables.0.get_mut(&table).and_then(|c| c.chains.get_mut(&chain)) else { return };
        let position = self.position.index(rules.len() + 1);
        change(rules, position);
    }

    fn add_hook(&self, tables: &mut Tables) {
        let chains = [(Table::Nat, "PREROUTING"), (Table::Filter, "INPUT"), (Table::Filter, "FORWARD")];
        let (table, chain) = self.object.get(&chains);
        let Some(content) = tables.0.get_mut(table) else { return };
        if content.chains.contains_key("KUBE-SERVICES") {
            let rule = " -m comment --comment foreign -j KUBE-SERVICES".to_owned();
            content.chains.entry((*chain).to_owned()).or_default().push(rule);
        }
    }
}

fn remove(content: Option<&mut Content>, chain: &str) {
    let Some(content) = content else { return };
    content.chains.remove(chain);
    let jump = format!("-j {chain}");
    content.chains.values_mut().for_each(|rules| rules.retain(|rule| !rule.ends_with(&jump)));
}
