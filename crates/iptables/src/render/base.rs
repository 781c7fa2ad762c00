//! What is there whatever the Services are.

use super::{Shared, at_node_addresses, loopback};
use crate::LOCALHOST_COUNTER;
use crate::chains::{Chain, Fixed, Table};
use crate::rules::{Action, Match, Rule, States, is, is_not};
use portway_dataplane::Settings;
use portway_model::Family;

/// A rule of ours in a chain that everybody uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The table.
    pub table: Table,
    /// The chain: one that iptables brings along, or `KUBE-FIREWALL`, which the kubelet uses too.
    pub chain: Chain,
    /// The rule.
    pub rule: Rule,
}

/// The constant part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Chains that are ours alone, with their rules; of a shared chain, those at its end.
    pub chains: Vec<(Table, Fixed, Vec<Rule>)>,
    /// Where packets come to them. In each chain, the first comes first.
    pub hooks: Vec<Hook>,
}

/// What else the constant part depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The kernel can count for us.
    pub counting: bool,
    /// It was us who had packets to 127.0.0.1 routed.
    pub turned_localnet_on: bool,
}

/// A rule that does nothing but remember, for whoever cleans up.
pub const TURNED_LOCALNET_ON: &str = "route_localnet was off before, and goes off with this chain";

/// What settings make of the constant part.
pub fn base(family: Family, settings: &Settings, abilities: Abilities) -> Base {
    let mut base = Base::default();
    let mut chain = |table, name, rules| base.chains.push((table, name, rules));
    let mark = settings.masquerade_mark;

    chain(Table::Nat, Fixed::MarkMasq, vec![Rule::to(Action::Mark { value: mark, mask: mark })]);
    chain(Table::Nat, Fixed::Postrouting, postrouting(family, settings, abilities.counting));
    chain(Table::Nat, Fixed::NodePorts, Vec::new());
    chain(Table::Nat, Fixed::Services, at_node_addresses(settings, family, &node_ports()));

    chain(Table::Filter, Fixed::ProxyFirewall, Vec::new());
    chain(Table::Filter, Fixed::NodePorts, Vec::new());
    chain(Table::Filter, Fixed::ExternalServices, Vec::new());
    chain(Table::Filter, Fixed::Forward, forward(settings));
    let unallocated = Rule::to(Action::Drop).comment("not the address of any Service");
    chain(Table::Filter, Fixed::ClusterIps, vec![unallocated]);
    let cidrs = settings.service_cidrs(family);
    let of_range = |range| {
        Rule::jump(Fixed::ClusterIps).destination(range).comment("Service addresses without a Service's port")
    };
    chain(Table::Filter, Fixed::Services, cidrs.into_iter().map(of_range).collect());

    chain(Table::Mangle, Fixed::Canary, Vec::new());
    base.hooks = hooks(family, settings, abilities);
    base
}

impl Base {
    /// The rules at the end of a shared chain.
    pub fn tail(&self, shared: Shared) -> &[Rule] {
        let found =
            self.chains.iter().find(|(table, chain, _)| (*table, *chain) == (shared.table, shared.chain));
        found.map_or(&[], |(_, _, rules)| rules)
    }
}

fn node_ports() -> Rule {
    Rule::jump(Fixed::NodePorts)
        .comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
}

fn postrouting(family: Family, settings: &Settings, counting: bool) -> Vec<Rule> {
    let mark = settings.masquerade_mark;
    let mut rules = vec![
        Rule::to(Action::Return).when(Match::Mark { value: mark, mask: mark, not: true }),
        Rule::to(Action::Mark { value: mark, mask: 0 }),
    ];
    // Whatever came to 127.0.0.1 and is masqueraded came to a node port there.
    if counting && settings.answers_at_loopback(family) {
        rules.push(
            Rule::default()
                .comment("kubernetes node port traffic from localhost")
                .when(Match::OriginalDestination(loopback(family)))
                .when(Match::Count(LOCALHOST_COUNTER.into())),
        );
    }
    rules.push(Rule::to(Action::Masquerade).comment("kubernetes service traffic requiring SNAT"));
    rules
}

/// What is let through, and what is not, of what only passes by.
pub fn forward(settings: &Settings) -> Vec<Rule> {
    let mark = settings.masquerade_mark;
    let mut rules = Vec::new();
    if settings.drop_invalid {
        rules.push(Rule::to(Action::Drop).when(Match::State(is(States::INVALID))));
    }
    rules.push(Rule::to(Action::Accept).comment("kubernetes forwarding rules").when(Match::Mark {
        value: mark,
        mask: mark,
        not: false,
    }));
    rules.push(
        Rule::to(Action::Accept)
            .comment("kubernetes forwarding conntrack rule")
            .when(Match::State(is(States::RELATED.or(States::ESTABLISHED)))),
    );
    rules
}

fn hooks(family: Family, settings: &Settings, abilities: Abilities) -> Vec<Hook> {
    const PORTALS: &str = "kubernetes service portals";
    const EXTERNAL: &str = "kubernetes externally-visible service portals";
    const FIREWALL: &str = "kubernetes load balancer firewall";
    let mut hooks = Vec::new();
    let mut hook = |table, chain: &str, rule| hooks.push(Hook { table, chain: Chain::parse(chain), rule });
    let to = |chain: Fixed, words: &str| Rule::jump(chain).comment(words);
    // The tool prints the state before the comment, and so did kube-proxy.
    let new =
        |chain: Fixed, words: &str| Rule::jump(chain).when(Match::State(is(States::NEW))).comment(words);

    let unless_bypassing = |rule: Rule| match settings.bypass_mark {
        Some(mark) => rule.when(Match::Mark { value: mark, mask: mark, not: true }),
        None => rule,
    };

    hook(Table::Nat, "PREROUTING", to(Fixed::Services, PORTALS));
    hook(Table::Nat, "OUTPUT", unless_bypassing(to(Fixed::Services, PORTALS)));
    hook(Table::Nat, "POSTROUTING", to(Fixed::Postrouting, "kubernetes postrouting rules"));

    // What this node sends itself was looked at when it left.
    let from_elsewhere = settings.bypass_mark.map(|_| is_not("lo".into()));
    let firewall = Rule { input: from_elsewhere, ..new(Fixed::ProxyFirewall, FIREWALL) };
    hook(Table::Filter, "INPUT", firewall);
    hook(Table::Filter, "INPUT", to(Fixed::NodePorts, "kubernetes health check service ports"));
    hook(Table::Filter, "INPUT", new(Fixed::ExternalServices, EXTERNAL));
    hook(Table::Filter, "FORWARD", new(Fixed::ProxyFirewall, FIREWALL));
    hook(Table::Filter, "FORWARD", to(Fixed::Forward, "kubernetes forwarding rules"));
    hook(Table::Filter, "FORWARD", new(Fixed::Services, PORTALS));
    hook(Table::Filter, "FORWARD", new(Fixed::ExternalServices, EXTERNAL));
    hook(Table::Filter, "OUTPUT", unless_bypassing(new(Fixed::ProxyFirewall, FIREWALL)));
    hook(Table::Filter, "OUTPUT", new(Fixed::Services, PORTALS));
    hook(Table::Filter, "OUTPUT", new(Fixed::ExternalServices, EXTERNAL));

    if settings.answers_at_loopback(family) {
        hook(Table::Filter, "INPUT", Rule::jump(Fixed::Firewall));
        hook(Table::Filter, "OUTPUT", Rule::jump(Fixed::Firewall));
        hook(Table::Filter, Fixed::Firewall.as_str(), martian(family));
        if abilities.turned_localnet_on {
            hook(Table::Filter, Fixed::Firewall.as_str(), turned_localnet_on());
        }
    }
    hooks
}

/// Drops what comes from elsewhere to the loopback addresses, which routing may let in (CVE-2020-8558).
fn martian(family: Family) -> Rule {
    Rule { source: Some(is_not(loopback(family))), ..Rule::to(Action::Drop) }
        .destination(loopback(family))
        .comment("block incoming localnet connections")
        .when(Match::State(is_not(States::RELATED.or(States::ESTABLISHED).or(States::DNAT))))
}

fn turned_localnet_on() -> Rule {
    Rule::default().comment(TURNED_LOCALNET_ON)
}

/// Whether a rule in `KUBE-FIREWALL` is one that we make.
pub(crate) fn is_firewalls(rule: &Rule) -> bool {
    *rule == turned_localnet_on() || Family::ALL.iter().any(|family| *rule == martian(*family))
}
