//! The rules in the kernel, read from `iptables-save` line by line.
//!
//! Most lines belong to chains of Services, and most of these are as wanted: they are compared line by line, and only
//! differing chains are kept. Of other programs' rules, only those that lead to a proxy chain are kept.

use crate::chains::{Chain, Fixed, PortChain, Table};
use crate::desired::{RenderContext, Shared};
use crate::localnet::is_firewall_rule;
use crate::rules::{Match, Rule, is_not};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A chain that kube-proxy makes, or made, and we do not.
const FORMER: &str = "KUBE-PROXY-TERMINATING";
/// So were those of this kind, before version 1.24.
const FORMER_PREFIX: &str = "KUBE-XLB-";
/// The kubelet was here, and `KUBE-FIREWALL` is its too.
const KUBELET: [&str; 2] = ["KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"];

/// Digests of the wanted rules, to compare with.
#[derive(Debug, Default)]
pub struct Wanted {
    /// A digest of each Service's chain, and its Service, as an index into [`RenderContext::services`].
    pub(crate) ports: HashMap<PortChain, (u64, u32)>,
    /// Digests of the rules in shared chains.
    pub(crate) shared: HashMap<Shared, Vec<u64>>,
    /// How many rules there are in each table.
    pub(crate) totals: HashMap<Table, usize>,
}

impl Wanted {
    /// What a context wants.
    pub fn of(context: RenderContext<'_>) -> Wanted {
        Wanted::gather(context, true)
    }

    /// The same without digests, for a kernel that has no proxy rules.
    pub fn unseen(context: RenderContext<'_>) -> Wanted {
        Wanted::gather(context, false)
    }

    fn gather(context: RenderContext<'_>, compared: bool) -> Wanted {
        let mut wanted = Wanted::default();
        for (i, plan) in context.services().into_iter().enumerate() {
            let part = context.service_rules(plan);
            for (chain, rules) in part.chains {
                *wanted.totals.entry(Table::Nat).or_default() += rules.len();
                let mut digest = Lines::default();
                if compared {
                    rules.iter().for_each(|r| digest.push(&r.to_string()));
                }
                wanted.ports.insert(chain, (digest.finish(), i as u32));
            }
            for (shared, rule) in part.shared {
                *wanted.totals.entry(shared.table).or_default() += 1;
                if compared {
                    wanted.shared.entry(shared).or_default().push(digest(&rule.to_string()));
                }
            }
        }
        for (table, _, rules) in &context.base.chains {
            *wanted.totals.entry(*table).or_default() += rules.len();
        }
        for hook in &context.base.hooks {
            *wanted.totals.entry(hook.table).or_default() += 1;
        }
        wanted
    }
}

/// A digest of one rule's text.
pub(crate) fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// A digest of a chain's rules in order.
#[derive(Default)]
struct Lines(DefaultHasher);

impl Lines {
    fn push(&mut self, text: &str) {
        text.hash(&mut self.0);
    }

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

/// How the tool would have printed it, if it is a rule that we could have made; as it is if not.
pub(crate) fn canonical(text: &str) -> String {
    Rule::parse(text).map_or_else(|| text.to_owned(), |rule| rule.to_string())
}

/// How a Service's chain compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// As wanted.
    Same,
    /// Not as wanted: its rules, or the first of them.
    Differs(Vec<String>),
    /// No Service has it.
    Stale,
}

/// A rule in another program's chain, or a built-in one, that leads to a proxy chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) table: Table,
    pub(crate) chain: Chain,
    pub(crate) rule: String,
    pub(crate) to: Chain,
}

impl Reference {
    /// Whether it is a hook of a mode or of kube-proxy: in a built-in chain, to an entry chain, with no other condition than
    /// a comment, a state, or [`bypassing`](portway_dataplane::Settings::bypass_mark).
    pub(crate) fn is_hook(&self) -> bool {
        let plain = |rule: &Rule| {
            let said =
                |m: &Match| matches!(m, Match::Comment(_) | Match::State(_) | Match::Mark { not: true, .. });
            let anywhere = rule.input.is_none() || rule.input == Some(is_not("lo".into()));
            let anything = rule.source.is_none() && rule.destination.is_none() && anywhere;
            anything && rule.protocol.is_none() && rule.matches.iter().all(said)
        };
        let entrance = !matches!(self.to, Chain::Port(_) | Chain::Fixed(Fixed::MarkMasq));
        is_builtin(&self.chain) && entrance && Rule::parse(&self.rule).is_some_and(|rule| plain(&rule))
    }
}

/// The chains and rules of Portway and of kube-proxy in the kernel.
#[derive(Debug, Default)]
pub struct Seen {
    /// The tables that are there.
    pub(crate) tables: BTreeSet<Table>,
    /// Tables that the tool cannot show, because they hold native nftables objects.
    pub(crate) opaque: BTreeSet<Table>,
    /// Chains of Services, in nat.
    pub(crate) ports: HashMap<PortChain, Compared>,
    /// Constant chains, with their rules.
    pub(crate) fixed: HashMap<(Table, Fixed), Vec<String>>,
    /// Chains that are kube-proxy's but not this mode's.
    pub(crate) former: Vec<(Table, Chain)>,
    /// Unwanted chains with rules.
    pub(crate) filled: HashSet<(Table, Chain)>,
    /// Rules in other chains that lead to proxy chains.
    pub(crate) references: Vec<Reference>,
    /// `KUBE-FIREWALL` is shared: the kubelet keeps chains here too, or another program has rules in it.
    pub(crate) shares_firewall: bool,
}

impl Seen {
    /// Whether there is no chain of Portway or of kube-proxy.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.former.is_empty() && self.fixed.is_empty()
    }

    /// Whether a rule of another program leads to a proxy chain, which then can only be emptied.
    pub(crate) fn is_held(&self, table: Table, chain: &Chain) -> bool {
        self.references.iter().any(|r| (r.table, &r.to) == (table, chain) && !r.is_hook())
    }

    /// Whether an unwanted chain has rules.
    pub(crate) fn is_filled(&self, table: Table, chain: &Chain) -> bool {
        match chain {
            Chain::Fixed(fixed) => self.fixed.get(&(table, *fixed)).is_some_and(|rules| !rules.is_empty()),
            _ => self.filled.contains(&(table, chain.clone())),
        }
    }
}

/// Chains that iptables brings along.
pub(crate) const BUILTIN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Whether it is one of them.
pub(crate) fn is_builtin(chain: &Chain) -> bool {
    matches!(chain, Chain::Other(name) if BUILTIN.contains(&&**name))
}

fn is_former(table: Table, chain: &Chain) -> bool {
    match chain {
        Chain::Fixed(_) => false,
        Chain::Port(_) => table != Table::Nat,
        Chain::Other(name) => **name == *FORMER || name.starts_with(FORMER_PREFIX),
    }
}

/// Takes in `iptables-save`, line by line.
#[derive(Debug)]
pub struct Listing<'w> {
    wanted: &'w Wanted,
    seen: Seen,
    table: Option<Table>,
    /// The chain of a Service that is being read.
    open: Option<(PortChain, Vec<String>)>,
}

impl<'w> Listing<'w> {
    /// Compares with this.
    pub fn new(wanted: &'w Wanted) -> Listing<'w> {
        Listing { wanted, seen: Seen::default(), table: None, open: None }
    }

    /// The result.
    pub fn finish(mut self) -> Seen {
        self.close();
        let firewall = self.seen.fixed.get(&(Table::Filter, Fixed::Firewall)).into_iter().flatten();
        let ours = |line: &String| Rule::parse(line).is_some_and(|rule| is_firewall_rule(&rule));
        self.seen.shares_firewall |= firewall.into_iter().any(|line| !ours(line));
        self.seen
    }

    /// Takes in one line, without its end.
    pub fn line(&mut self, line: &str) {
        if let Some(table) = line.strip_prefix('*') {
            self.table = Table::parse(table);
            self.seen.tables.extend(self.table);
        } else if line == "COMMIT" {
            self.close();
            self.table = None;
        } else if let Some(table) = incompatible(line) {
            self.seen.tables.insert(table);
            self.seen.opaque.insert(table);
        } else if let Some(table) = self.table {
            if let Some(rest) = line.strip_prefix(':') {
                self.chain(table, rest.split(' ').next().unwrap_or_default());
            } else if let Some(rest) = line.strip_prefix("-A ") {
                let (chain, rule) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
                self.rule(table, chain, rule);
            }
        }
    }

    fn chain(&mut self, table: Table, name: &str) {
        let chain = Chain::parse(name);
        self.seen.shares_firewall |= KUBELET.contains(&name);
        match chain {
            _ if is_former(table, &chain) => self.seen.former.push((table, chain)),
            Chain::Fixed(fixed) => drop(self.seen.fixed.entry((table, fixed)).or_default()),
            // Should no rule follow, it is empty.
            Chain::Port(port) => drop(self.seen.ports.insert(port, self.judge(port, &[]))),
            Chain::Other(_) => {}
        }
    }

    fn rule(&mut self, table: Table, name: &str, rule: &str) {
        if let Some((open, lines)) = &mut self.open
            && PortChain::parse(name) == Some(*open)
        {
            lines.push(rule.to_owned());
            return;
        }
        self.close();
        let chain = Chain::parse(name);
        match &chain {
            _ if is_former(table, &chain) => drop(self.seen.filled.insert((table, chain))),
            Chain::Port(port) => self.open = Some((*port, vec![rule.to_owned()])),
            Chain::Fixed(fixed) => {
                self.seen.fixed.entry((table, *fixed)).or_default().push(rule.to_owned());
                if *fixed == Fixed::Firewall {
                    // It stays if others have rules in it.
                    self.reference(table, chain, rule);
                }
            }
            Chain::Other(_) => self.reference(table, chain, rule),
        }
    }

    fn reference(&mut self, table: Table, chain: Chain, rule: &str) {
        let Some(to) = target(rule).map(Chain::parse) else { return };
        if !matches!(to, Chain::Other(_)) || is_former(table, &to) {
            self.seen.references.push(Reference { table, chain, rule: rule.to_owned(), to });
        }
    }

    /// A chain's rules are complete.
    fn close(&mut self) {
        if let Some((chain, lines)) = self.open.take() {
            let compared = self.judge(chain, &lines);
            if compared == Compared::Stale {
                self.seen.filled.insert((Table::Nat, chain.into()));
            }
            self.seen.ports.insert(chain, compared);
        }
    }

    fn judge(&self, chain: PortChain, lines: &[String]) -> Compared {
        let Some((wanted, _)) = self.wanted.ports.get(&chain) else { return Compared::Stale };
        let of = |lines: &mut dyn Iterator<Item = &str>| {
            let mut digest = Lines::default();
            lines.for_each(|l| digest.push(l));
            digest.finish()
        };
        if of(&mut lines.iter().map(String::as_str)) == *wanted {
            return Compared::Same;
        }
        let canonical: Vec<String> = lines.iter().map(|l| canonical(l)).collect();
        if of(&mut canonical.iter().map(String::as_str)) == *wanted {
            return Compared::Same;
        }
        Compared::Differs(canonical)
    }
}

/// What a rule jumps or goes to.
pub(crate) fn target(rule: &str) -> Option<&str> {
    let ends = [" -j ", " -g "].iter().filter_map(|option| Some(rule.rfind(option)? + option.len()));
    rule[ends.max()?..].split(' ').next()
}

/// The table that the nf_tables variant says it cannot show.
fn incompatible(line: &str) -> Option<Table> {
    let rest = line.strip_prefix("# Table `")?;
    let (name, rest) = rest.split_once('\'')?;
    Table::parse(name).filter(|_| rest.contains("incompatible"))
}
