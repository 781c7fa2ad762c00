//! Finds and removes the chains and rules of earlier runs and of kube-proxy in the tables of one family.

use crate::INVALID_COUNTER;
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

/// A counter that kube-proxy creates and Portway does not.
const KUBE_PROXY_COUNTER: &str = "localhost_nps_accepted_pkts";

/// Describes the chains and rules of Portway and of kube-proxy.
pub fn find(kernel: &mut impl Kernel, family: Family) -> Result<Vec<String>, Error> {
    let mut seen = list(kernel, family)?;
    check_opaque(kernel, &seen, family)?;
    seen.shares_firewall |= !localnet::was_turned_on(&seen) && localnet::is_on(kernel, family);
    Ok(describe(&plan(&seen), &seen))
}

/// Fails if a table that the tool cannot list has rules that jump to proxy chains, because these cannot be removed.
fn check_opaque(kernel: &mut impl Kernel, seen: &Seen, family: Family) -> Result<(), Error> {
    // `KUBE-FIREWALL` may belong to the kubelet.
    let is_removable = |chain: &String| crate::is_proxy_chain(chain) && chain != Fixed::Firewall.as_str();
    let mut has_proxy_jump = |table: Table, chain: &str| {
        let jumps = kernel.jumps(table, &Chain::parse(chain));
        jumps.is_none_or(|to| to.iter().any(is_removable))
    };
    let mut opaque = seen.opaque.iter();
    let Some(table) = opaque.find(|table| BUILTIN.iter().any(|chain| has_proxy_jump(**table, chain))) else {
        return Ok(());
    };
    let message = format!(
        "iptables cannot show its table {table}, which has native nftables rules of another program, so its proxy chains are not removed: remove those rules (nft list table {} {table} shows them)",
        if family == Family::V6 { "ip6" } else { "ip" }
    );
    Err(Error::kernel(family, message))
}

/// With more chains than this, the kernel is asked to remove them at once: the tool takes seconds for thousands.
const FEW: usize = 256;

/// Removes them. Returns a description of the removed chains and rules, and of those that could not be removed.
pub fn remove(kernel: &mut impl Kernel, family: Family) -> Result<Vec<String>, Error> {
    let mut removed = Vec::new();
    let count = kernel.remove_proxy_chains(FEW);
    if count > 0 {
        removed.push(format!("{count} chains, and the rules that jump to them"));
    }
    removed.extend(remove_by_tool(kernel, family)?);
    if !removed.is_empty() {
        // A counter cannot be deleted while a rule uses it.
        kernel.delete_counter(INVALID_COUNTER);
        kernel.delete_counter(KUBE_PROXY_COUNTER);
    }
    Ok(removed)
}

/// Removes the proxy chains, and the rules that jump to them, with the iptables tool.
fn remove_by_tool(kernel: &mut impl Kernel, family: Family) -> Result<Vec<String>, Error> {
    let mut seen = list(kernel, family)?;
    if localnet::was_turned_on(&seen) {
        localnet::turn_off(kernel);
    }
    seen.shares_firewall |= localnet::is_on(kernel, family);
    let tx = plan(&seen);
    if tx.is_empty() {
        return check_opaque(kernel, &seen, family).map(|()| Vec::new());
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
    let list_first = kernel.needs_listing();
    let restored = kernel.restore(&mut |out| {
        let mut script = Script::new(out, &mut origins);
        tx.print(context, list_first, &mut script)?;
        Ok(script.finish()?.sections)
    });
    restored.map_err(|e| e.in_family(family))?;
    check_opaque(kernel, &seen, family)?;
    Ok(describe(&tx, &seen))
}

fn list(kernel: &mut impl Kernel, family: Family) -> Result<Seen, Error> {
    let wanted = Wanted::default();
    let mut listing = Listing::new(&wanted);
    kernel.save(&mut |line| listing.line(line)).map_err(|e| e.in_family(family))?;
    Ok(listing.finish())
}

/// The transaction that removes all chains and rules of Portway and of kube-proxy.
fn plan(seen: &Seen) -> Transaction {
    let mut tx = Transaction::default();
    let kubelets = |table, chain: &Chain| {
        seen.shares_firewall && table == Table::Filter && *chain == Chain::from(Fixed::Firewall)
    };
    for r in seen.references.iter().filter(|r| r.is_hook() && !kubelets(r.table, &r.to)) {
        tx.unhook.push((r.table, r.chain.clone(), r.rule.clone()));
    }
    if seen.shares_firewall {
        // The chain belongs to the kubelet, but Portway added the recording rule in it.
        tx.unhook.extend(notes(seen).map(|n| (Table::Filter, Fixed::Firewall.into(), n.clone())));
    }
    let fixed = seen.fixed.keys().map(|(table, chain)| (*table, Chain::from(*chain)));
    let ports = seen.ports.keys().map(|chain| (Table::Nat, Chain::from(*chain)));
    let mut chains: Vec<(Table, Chain)> = fixed.chain(ports).chain(seen.obsolete.iter().cloned()).collect();
    chains.retain(|(table, chain)| !kubelets(*table, chain));
    chains.sort_by_key(|(table, chain)| (*table, chain.to_string()));
    for (table, chain) in chains {
        match seen.is_referenced(table, &chain) {
            true if seen.has_rules(table, &chain) => tx.empty.entry(table).or_default().push(chain),
            true => {}
            false => tx.remove.entry(table).or_default().push(chain),
        }
    }
    tx
}

/// A line for each table, with the names of the constant chains, and one for each chain that cannot be removed.
fn describe(tx: &Transaction, seen: &Seen) -> Vec<String> {
    let mut lines = BTreeMap::new();
    for (table, chains) in &tx.remove {
        let known: Vec<String> =
            chains.iter().filter(|c| !matches!(c, Chain::Port(_))).map(ToString::to_string).collect();
        let others = chains.len() - known.len();
        let mut line = format!("table {table}: {}", known.join(", "));
        if others > 0 {
            line += &format!(" and {others} chains of Services");
        }
        lines.insert(*table, line);
    }
    for table in Table::ALL {
        let hooks = tx.unhook.iter().filter(|(t, c, _)| *t == table && is_builtin(c)).count();
        if hooks > 0 {
            let line = lines.entry(table).or_insert_with(|| format!("table {table}:"));
            *line += &match hooks {
                1 => ", and a rule that jumps to them".to_owned(),
                _ => format!(", and {hooks} rules that jump to them"),
            };
        }
    }
    let mut lines: Vec<String> = lines.into_values().collect();
    for r in seen.references.iter().filter(|r| !r.is_hook()) {
        lines.push(format!(
            "chain {} in table {} is emptied, but not removed: `-A {}{}` refers to it",
            r.to, r.table, r.chain, r.rule
        ));
    }
    lines
}

/// The location of the tables of one variant and family.
pub fn location(variant: Variant, family: Family) -> Location {
    Location { label: format!("iptables ({variant}) {family}"), id: String::new(), family: Some(family) }
}

/// The locations of all variants and families that have tables on this host.
pub fn locations() -> Vec<Location> {
    let used = |family: Family| {
        let installed = move |v: &Variant| Tools::of(*v).is_some() && variant::is_used(*v, family);
        Variant::ALL.into_iter().filter(installed).map(move |v| location(v, family))
    };
    Family::ALL.into_iter().flat_map(used).collect()
}

/// Describes the chains and rules of Portway and of kube-proxy in one of these locations. Removes them unless `how` is
/// [`Clear::List`].
pub fn clear(wanted: &Location, how: Clear) -> Result<Vec<String>, Error> {
    let is_wanted = |(v, f): &(Variant, Family)| location(*v, *f) == *wanted;
    let all = Variant::ALL.into_iter().flat_map(|v| Family::ALL.map(|f| (v, f)));
    let Some((variant, family)) = all.into_iter().find(is_wanted) else { return Ok(Vec::new()) };
    let Some(tools) = Tools::of(variant) else { return Ok(Vec::new()) };
    let mut tool = Tool::open(&tools, family).map_err(|e| e.in_family(family))?;
    match how {
        Clear::List => find(&mut tool, family),
        Clear::WhenIdle | Clear::Now => remove(&mut tool, family),
    }
}
