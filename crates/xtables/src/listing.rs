//! Reads the rules in the kernel from the output of `iptables-save`, line by line.
//!
//! Most lines belong to chains of Services, and most of these chains have the wanted rules. Each chain is compared when
//! its last line was read, and only the rules of differing chains are kept. Of other programs' rules, only those that
//! refer to a proxy chain are kept.

use crate::chains::{Chain, Fixed, PortChain, Table};
use crate::desired::{RenderContext, Shared};
use crate::localnet::is_firewall_rule;
use crate::rules::{Match, Rule, is_not};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A chain that a version of kube-proxy creates, and Portway does not.
const OBSOLETE: &str = "KUBE-PROXY-TERMINATING";
/// The prefix of chains that kube-proxy created before version 1.24.
const OBSOLETE_PREFIX: &str = "KUBE-XLB-";
/// Chains of the kubelet: where they exist, the kubelet uses `KUBE-FIREWALL` too.
const KUBELET: [&str; 2] = ["KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"];

/// Digests of the wanted rules, which a listing is compared with.
#[derive(Debug, Default)]
pub struct Wanted {
    /// For each chain of a Service: the digest of its rules, and the Service's index in [`RenderContext::services`].
    pub(crate) ports: HashMap<PortChain, (u64, u32)>,
    /// Digests of the rules in shared chains.
    pub(crate) shared: HashMap<Shared, Vec<u64>>,
    /// The number of rules in each table.
    pub(crate) totals: HashMap<Table, usize>,
}

impl Wanted {
    /// The wanted rules of a context.
    pub fn of(context: RenderContext<'_>) -> Wanted {
        Wanted::gather(context, true)
    }

    /// The same without digests, for a kernel that has no proxy chains.
    pub fn without_digests(context: RenderContext<'_>) -> Wanted {
        Wanted::gather(context, false)
    }

    fn gather(context: RenderContext<'_>, digests: bool) -> Wanted {
        let mut wanted = Wanted::default();
        for (i, plan) in context.services().into_iter().enumerate() {
            let part = context.service_rules(plan);
            for (chain, rules) in part.chains {
                *wanted.totals.entry(Table::Nat).or_default() += rules.len();
                let mut digest = Lines::default();
                if digests {
                    rules.iter().for_each(|r| digest.push(&r.to_string()));
                }
                wanted.ports.insert(chain, (digest.finish(), i as u32));
            }
            for (shared, rule) in part.shared {
                *wanted.totals.entry(shared.table).or_default() += 1;
                if digests {
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

/// The digest of a rule's text.
pub(crate) fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The digest of a chain's rules, in order.
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

/// The spelling in which [`Rule`] prints, if the rule can be parsed; otherwise the text itself.
pub(crate) fn canonical(text: &str) -> String {
    Rule::parse(text).map_or_else(|| text.to_owned(), |rule| rule.to_string())
}

/// The result of the comparison of a Service's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// It has the wanted rules.
    Same,
    /// It has these rules instead.
    Differs(Vec<String>),
    /// No Service has this chain.
    Stale,
}

/// A rule in a built-in chain, in `KUBE-FIREWALL` or in another program's chain that jumps or goes to a proxy chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) table: Table,
    pub(crate) chain: Chain,
    pub(crate) rule: String,
    pub(crate) to: Chain,
}

impl Reference {
    /// Whether it is a hook of a mode or of kube-proxy: in a built-in chain, to a proxy chain other than those of
    /// Services and `KUBE-MARK-MASQ`, with no other conditions than a comment, a state, `! -i lo`, or the absence of a
    /// mark ([`bypass_mark`](portway_dataplane::Settings::bypass_mark)).
    pub(crate) fn is_hook(&self) -> bool {
        let plain = |rule: &Rule| {
            let allowed =
                |m: &Match| matches!(m, Match::Comment(_) | Match::State(_) | Match::Mark { not: true, .. });
            let any_input = rule.input.is_none() || rule.input == Some(is_not("lo".into()));
            let any_address = rule.source.is_none() && rule.destination.is_none();
            any_address && any_input && rule.protocol.is_none() && rule.matches.iter().all(allowed)
        };
        let to_entry_chain = !matches!(self.to, Chain::Port(_) | Chain::Fixed(Fixed::MarkMasq));
        is_builtin(&self.chain) && to_entry_chain && Rule::parse(&self.rule).is_some_and(|rule| plain(&rule))
    }
}

/// The chains and rules of Portway and of kube-proxy in the kernel.
#[derive(Debug, Default)]
pub struct Seen {
    /// The tables that exist.
    pub(crate) tables: BTreeSet<Table>,
    /// Tables that the tool cannot list, because they have native nftables objects.
    pub(crate) opaque: BTreeSet<Table>,
    /// Chains of Services, in nat.
    pub(crate) ports: HashMap<PortChain, Compared>,
    /// Constant chains and their rules.
    pub(crate) fixed: HashMap<(Table, Fixed), Vec<String>>,
    /// Chains of other versions of kube-proxy, and chains of Services in other tables than nat.
    pub(crate) obsolete: Vec<(Table, Chain)>,
    /// Obsolete chains, and chains that no Service has, that have rules.
    pub(crate) nonempty: HashSet<(Table, Chain)>,
    /// Rules in other chains that refer to proxy chains.
    pub(crate) references: Vec<Reference>,
    /// `KUBE-FIREWALL` is shared: the kubelet has chains in these tables, or another program has rules in it.
    pub(crate) shares_firewall: bool,
}

impl Seen {
    /// Whether the kernel has no chain of Portway or of kube-proxy.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.obsolete.is_empty() && self.fixed.is_empty()
    }

    /// Whether a rule of another program refers to a proxy chain, which then can be emptied but not removed.
    pub(crate) fn is_referenced(&self, table: Table, chain: &Chain) -> bool {
        self.references.iter().any(|r| (r.table, &r.to) == (table, chain) && !r.is_hook())
    }

    /// Whether an unwanted chain has rules.
    pub(crate) fn has_rules(&self, table: Table, chain: &Chain) -> bool {
        match chain {
            Chain::Fixed(fixed) => self.fixed.get(&(table, *fixed)).is_some_and(|rules| !rules.is_empty()),
            _ => self.nonempty.contains(&(table, chain.clone())),
        }
    }
}

/// The built-in chains of iptables.
pub(crate) const BUILTIN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Whether a chain is built in.
pub(crate) fn is_builtin(chain: &Chain) -> bool {
    matches!(chain, Chain::Other(name) if BUILTIN.contains(&&**name))
}

fn is_obsolete(table: Table, chain: &Chain) -> bool {
    match chain {
        Chain::Fixed(_) => false,
        Chain::Port(_) => table != Table::Nat,
        Chain::Other(name) => **name == *OBSOLETE || name.starts_with(OBSOLETE_PREFIX),
    }
}

/// Reads the output of `iptables-save`, line by line.
#[derive(Debug)]
pub struct Listing<'w> {
    wanted: &'w Wanted,
    seen: Seen,
    table: Option<Table>,
    /// The chain of a Service that is being read.
    open: Option<(PortChain, Vec<String>)>,
}

impl<'w> Listing<'w> {
    /// A listing that is compared with the wanted rules.
    pub fn new(wanted: &'w Wanted) -> Listing<'w> {
        Listing { wanted, seen: Seen::default(), table: None, open: None }
    }

    /// The listed rules.
    pub fn finish(mut self) -> Seen {
        self.close();
        let firewall = self.seen.fixed.get(&(Table::Filter, Fixed::Firewall)).into_iter().flatten();
        let is_portways = |line: &String| Rule::parse(line).is_some_and(|rule| is_firewall_rule(&rule));
        self.seen.shares_firewall |= firewall.into_iter().any(|line| !is_portways(line));
        self.seen
    }

    /// Reads one line, without its line break.
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
            _ if is_obsolete(table, &chain) => self.seen.obsolete.push((table, chain)),
            Chain::Fixed(fixed) => drop(self.seen.fixed.entry((table, fixed)).or_default()),
            // The result for an empty chain, which is replaced if rules follow.
            Chain::Port(port) => drop(self.seen.ports.insert(port, self.compare(port, &[]))),
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
            _ if is_obsolete(table, &chain) => drop(self.seen.nonempty.insert((table, chain))),
            Chain::Port(port) => self.open = Some((*port, vec![rule.to_owned()])),
            Chain::Fixed(fixed) => {
                self.seen.fixed.entry((table, *fixed)).or_default().push(rule.to_owned());
                if *fixed == Fixed::Firewall {
                    // The chain may be another program's.
                    self.reference(table, chain, rule);
                }
            }
            Chain::Other(_) => self.reference(table, chain, rule),
        }
    }

    fn reference(&mut self, table: Table, chain: Chain, rule: &str) {
        let Some(to) = target(rule).map(Chain::parse) else { return };
        if !matches!(to, Chain::Other(_)) || is_obsolete(table, &to) {
            self.seen.references.push(Reference { table, chain, rule: rule.to_owned(), to });
        }
    }

    /// Compares the chain of a Service whose last rule was read.
    fn close(&mut self) {
        if let Some((chain, lines)) = self.open.take() {
            let compared = self.compare(chain, &lines);
            if compared == Compared::Stale {
                self.seen.nonempty.insert((Table::Nat, chain.into()));
            }
            self.seen.ports.insert(chain, compared);
        }
    }

    fn compare(&self, chain: PortChain, lines: &[String]) -> Compared {
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

/// The target of `-j` or `-g`.
pub(crate) fn target(rule: &str) -> Option<&str> {
    let ends = [" -j ", " -g "].iter().filter_map(|option| Some(rule.rfind(option)? + option.len()));
    rule[ends.max()?..].split(' ').next()
}

/// The table, if this is the line that the nf_tables variant prints for a table that it cannot list.
fn incompatible(line: &str) -> Option<Table> {
    let rest = line.strip_prefix("# Table `")?;
    let (name, rest) = rest.split_once('\'')?;
    Table::parse(name).filter(|_| rest.contains("incompatible"))
}
