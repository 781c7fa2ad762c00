//! Chains and rules that a mode or kube-proxy left behind in the tables of one family: found, and removed.

use crate::LOCALHOST_COUNTER;
use crate::chains::{Chain, Fixed, Table};
use crate::commit::Kernel;
use crate::commit::Tool;
use crate::desired::{Base, RenderContext, Renderer, ServiceRules};
use crate::diff::Transaction;
use crate::listing::{BUILTIN, Listing, Seen, Wanted, is_builtin};
use crate::localnet::{self, notes};
use crate::script::{Origins, Script};
use crate::variant::{self, Tools, Variant};
use portway_dataplane::{Clear, Error, Location, Settings};
use portway_model::Family;
use std::collections::{BTreeMap, HashMap};

/// Another counter of kube-proxy.
const KUBE_PROXY_COUNTER: &str = "ct_state_invalid_dropped_pkts";

/// The chains and rules of Portway and of kube-proxy, in words.
pub fn find(kernel: &mut impl Kernel, family: Family) -> Result<Vec<String>, Error> {
    let mut seen = list(kernel, family)?;
    is_shown(kernel, &seen, family)?;
    seen.shares_firewall |= !localnet::was_turned_on(&seen) && localnet::is_on(kernel, family);
    Ok(describe(&plan(&seen), &seen))
}

/// An error if a table that the tool cannot show has rules that lead to chains of a proxy: those would stay.
fn is_shown(kernel: &mut impl Kernel, seen: &Seen, family: Family) -> Result<(), Error> {
    // `KUBE-FIREWALL` may be the kubelet's.
    let is_meant = |chain: &String| crate::is_proxy_chain(chain) && chain != Fixed::Firewall.as_str();
    let mut leads = |table: Table, chain: &str| {
        let jumps = kernel.jumps(table, &Chain::parse(chain));
        jumps.is_none_or(|to| to.iter().any(is_meant))
    };
    let mut opaque = seen.opaque.iter();
    let Some(table) = opaque.find(|table| BUILTIN.iter().any(|chain| leads(**table, chain))) else {
        return Ok(());
    };
    let words = format!(
        "iptables cannot show its table {table}, which has native nftables rules of another program, so its proxy chains stay: remove those rules (nft list table {} {table} shows them)",
        if family == Family::V6 { "ip6" } else { "ip" }
    );
    Err(Error::kernel(family, words))
}

/// Removes them. The removed objects come back in words, and those that had to stay.
pub fn remove(kernel: &mut impl Kernel, family: Family) -> Result<Vec<String>, Error> {
    let mut seen = list(kernel, family)?;
    if localnet::was_turned_on(&seen) {
        localnet::turn_off(kernel);
    }
    seen.shares_firewall |= localnet::is_on(kernel, family);
    let tx = plan(&seen);
    if tx.is_empty() {
        return is_shown(kernel, &seen, family).map(|()| Vec::new());
    }
    let (settings, base) = (Settings::default(), Base::default());
    let (plans, left_out) = (HashMap::new(), HashMap::new());
    let renderer = Renderer { base: |_, _, _| Base::default(), service: |_, _, _| ServiceRules::default() };
    let context = RenderContext {
        renderer,
        family,
        settings: &settings,
        base: &base,
        plans: &plans,
        left_out: &left_out,
    };
    let mut origins = Origins::default();
    let look_at_all = kernel.looks_at_all();
    let restored = kernel.restore(&mut |out| {
        let mut script = Script::new(out, &mut origins);
        tx.print(context, look_at_all, &mut script)?;
        Ok(script.finish()?.sections)
    });
    restored.map_err(|e| e.in_family(family))?;
    kernel.uncount(LOCALHOST_COUNTER);
    kernel.uncount(KUBE_PROXY_COUNTER);
    is_shown(kernel, &seen, family)?;
    Ok(describe(&tx, &seen))
}

fn list(kernel: &mut impl Kernel, family: Family) -> Result<Seen, Error> {
    let wanted = Wanted::default();
    let mut listing = Listing::new(&wanted);
    kernel.save(&mut |line| listing.line(line)).map_err(|e| e.in_family(family))?;
    Ok(listing.finish())
}

/// The transaction that removes everything.
fn plan(seen: &Seen) -> Transaction {
    let mut tx = Transaction::default();
    let kubelets = |table, chain: &Chain| {
        seen.shares_firewall && table == Table::Filter && *chain == Chain::from(Fixed::Firewall)
    };
    for r in seen.references.iter().filter(|r| r.is_hook() && !kubelets(r.table, &r.to)) {
        tx.unhook.push((r.table, r.chain.clone(), r.rule.clone()));
    }
    if seen.shares_firewall {
        // The chain is the kubelet's; the record in it is Portway's.
        tx.unhook.extend(notes(seen).map(|n| (Table::Filter, Fixed::Firewall.into(), n.clone())));
    }
    let fixed = seen.fixed.keys().map(|(table, chain)| (*table, Chain::from(*chain)));
    let ports = seen.ports.keys().map(|chain| (Table::Nat, Chain::from(*chain)));
    let mut chains: Vec<(Table, Chain)> = fixed.chain(ports).chain(seen.former.iter().cloned()).collect();
    chains.retain(|(table, chain)| !kubelets(*table, chain));
    chains.sort_by_key(|(table, chain)| (*table, chain.to_string()));
    for (table, chain) in chains {
        match seen.is_held(table, &chain) {
            true if seen.is_filled(table, &chain) => tx.empty.entry(table).or_default().push(chain),
            true => {}
            false => tx.remove.entry(table).or_default().push(chain),
        }
    }
    tx
}

/// A line for each table, with the chains that people know by name.
fn describe(tx: &Transaction, seen: &Seen) -> Vec<String> {
    let mut lines = BTreeMap::new();
    for (table, chains) in &tx.remove {
        let known: Vec<String> =
            chains.iter().filter(|c| !matches!(c, Chain::Port(_))).map(ToString::to_string).collect();
        let others = chains.len() - known.len();
        let mut words = format!("table {table}: {}", known.join(", "));
        if others > 0 {
            words += &format!(" and {others} chains of Services");
        }
        lines.insert(*table, words);
    }
    for table in Table::ALL {
        let hooks = tx.unhook.iter().filter(|(t, c, _)| *t == table && is_builtin(c)).count();
        if hooks > 0 {
            let line = lines.entry(table).or_insert_with(|| format!("table {table}:"));
            *line += &match hooks {
                1 => ", and a rule that leads to them".to_owned(),
                _ => format!(", and {hooks} rules that lead to them"),
            };
        }
    }
    let mut lines: Vec<String> = lines.into_values().collect();
    for r in seen.references.iter().filter(|r| !r.is_hook()) {
        lines.push(format!(
            "chain {} in table {} is emptied, but stays: `-A {}{}` leads to it",
            r.to, r.table, r.chain, r.rule
        ));
    }
    lines
}

/// The tables of one variant and family, as a place that modes keep rules in.
pub fn location(variant: Variant, family: Family) -> Location {
    Location { label: format!("iptables ({variant}) {family}"), id: String::new(), family: Some(family) }
}

/// All variants and families that the host has tables of.
pub fn locations() -> Vec<Location> {
    let used = |family: Family| {
        let installed = move |v: &Variant| Tools::of(*v).is_some() && variant::is_used(*v, family);
        Variant::ALL.into_iter().filter(installed).map(move |v| location(v, family))
    };
    Family::ALL.into_iter().flat_map(used).collect()
}

/// The rules of modes and of kube-proxy in one of these places, in words; removed afterwards unless `how` says to look.
pub fn clear(place: &Location, how: Clear) -> Result<Vec<String>, Error> {
    let is_meant = |(v, f): &(Variant, Family)| location(*v, *f) == *place;
    let all = Variant::ALL.into_iter().flat_map(|v| Family::ALL.map(|f| (v, f)));
    let Some((variant, family)) = all.into_iter().find(is_meant) else { return Ok(Vec::new()) };
    let Some(tools) = Tools::of(variant) else { return Ok(Vec::new()) };
    let mut tool = Tool::open(&tools, family).map_err(|e| e.in_family(family))?;
    match how {
        Clear::Look => find(&mut tool, family),
        Clear::WhenIdle | Clear::Now => remove(&mut tool, family),
    }
}
