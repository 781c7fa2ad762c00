//! What this mode, or kube-proxy, leaves behind in one family's tables, and its removal.

use crate::LOCALHOST_COUNTER;
use crate::chains::{Chain, Fixed, Table};
use crate::commit::Kernel;
use crate::diff::{Transaction, World};
use crate::listing::{BUILTIN, Listing, Seen, Wanted, is_builtin};
use crate::mode::diagnose;
use crate::render::{Base, TURNED_LOCALNET_ON};
use crate::rules::{Match, Rule};
use crate::script::{Origins, Script};
use portway_dataplane::{Error, Settings};
use portway_model::Family;
use std::collections::{BTreeMap, HashMap};

/// What kube-proxy counts besides.
const KUBE_PROXY_COUNTER: &str = "ct_state_invalid_dropped_pkts";

/// What is there of ours or of kube-proxy's, in words.
pub fn find(kernel: &mut impl Kernel, family: Family) -> Result<Vec<String>, Error> {
    let mut seen = list(kernel, family)?;
    is_shown(kernel, &seen, family)?;
    seen.shares_firewall |= !turned_localnet_on(&seen) && routes_localnet(kernel, family);
    Ok(describe(&plan(&seen), &seen))
}

/// A table that the tool cannot show may hold anything. It is nobody's fault if nothing in it leads to a chain of ours.
fn is_shown(kernel: &mut impl Kernel, seen: &Seen, family: Family) -> Result<(), Error> {
    // That one may be the kubelet's.
    let ours = |chain: &String| crate::is_ours(chain) && chain != Fixed::Firewall.as_str();
    let mut leads = |table: Table, chain: &str| {
        let jumps = kernel.jumps(table, &Chain::parse(chain));
        jumps.is_none_or(|to| to.iter().any(ours))
    };
    let mut opaque = seen.opaque.iter();
    let Some(table) = opaque.find(|table| BUILTIN.iter().any(|chain| leads(**table, chain))) else {
        return Ok(());
    };
    let words = format!(
        "iptables cannot show its table {table}, in which somebody has native nftables rules, so what is in it stays: remove those (nft list table {} {table} shows them)",
        if family == Family::V6 { "ip6" } else { "ip" }
    );
    Err(Error::Kernel { family, source: words.into() })
}

/// Removes it; what was removed, and what had to stay, comes back in words.
pub fn remove(kernel: &mut impl Kernel, family: Family) -> Result<Vec<String>, Error> {
    let mut seen = list(kernel, family)?;
    if turned_localnet_on(&seen) {
        turn_localnet_off(kernel);
    }
    seen.shares_firewall |= routes_localnet(kernel, family);
    let tx = plan(&seen);
    if tx.is_empty() {
        return is_shown(kernel, &seen, family).map(|()| Vec::new());
    }
    let (settings, base) = (Settings::default(), Base::default());
    let (plans, left_out) = (HashMap::new(), HashMap::new());
    let world = World { family, settings: &settings, base: &base, plans: &plans, left_out: &left_out };
    let mut origins = Origins::default();
    let look_at_all = kernel.looks_at_all();
    let restored = kernel.restore(&mut |out| {
        let mut script = Script::new(out, &mut origins);
        tx.print(world, look_at_all, &mut script)?;
        Ok(script.finish()?.sections)
    });
    restored.map_err(|e| diagnose(family, e))?;
    kernel.uncount(LOCALHOST_COUNTER);
    kernel.uncount(KUBE_PROXY_COUNTER);
    is_shown(kernel, &seen, family)?;
    Ok(describe(&tx, &seen))
}

fn list(kernel: &mut impl Kernel, family: Family) -> Result<Seen, Error> {
    let wanted = Wanted::default();
    let mut listing = Listing::new(&wanted);
    kernel.save(&mut |line| listing.line(line)).map_err(|e| diagnose(family, e))?;
    Ok(listing.finish())
}

/// Whether it was us who had packets to 127.0.0.1 routed.
pub(crate) fn turned_localnet_on(seen: &Seen) -> bool {
    notes(seen).next().is_some()
}

/// The rules that say so.
pub(crate) fn notes(seen: &Seen) -> impl Iterator<Item = &String> {
    let lines = seen.fixed.get(&(Table::Filter, Fixed::Firewall)).into_iter().flatten();
    lines.filter(|line| {
        let rule = Rule::parse(line).unwrap_or_default();
        rule.matches.iter().any(|m| matches!(m, Match::Comment(words) if **words == *TURNED_LOCALNET_ON))
    })
}

/// Whether packets to 127.0.0.1 are routed, whoever wants it: then the rule stays that keeps strangers from using it.
pub(crate) fn routes_localnet(kernel: &mut impl Kernel, family: Family) -> bool {
    family == Family::V4 && kernel.route_localnet() == Some(true)
}

/// Turns it off again.
pub(crate) fn turn_localnet_off(kernel: &mut impl Kernel) {
    if let Err(error) = kernel.set_route_localnet(false) {
        tracing::warn!(%error, "the sysctl net.ipv4.conf.all.route_localnet stays on, which lets neighbours reach this node's 127.0.0.1: turn it off");
    }
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
        // The chain is the kubelet's, but the note in it is ours.
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
                1 => ", and a rule that leads there".to_owned(),
                _ => format!(", and {hooks} rules that lead there"),
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
