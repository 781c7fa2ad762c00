//! The constant rules: chains, and jumps from the built-in chains, that exist without any Service.

use portway_dataplane::Settings;
use portway_model::Family;
use portway_xtables::chains::{Chain, Fixed, Table};
use portway_xtables::desired::{Abilities, Base, Hook};
use portway_xtables::fragments::{at_node_addresses, forward};
use portway_xtables::rules::{Action, Match, Rule, States, is, is_not};

/// Renders the constant rules.
pub fn base(family: Family, settings: &Settings, abilities: Abilities) -> Base {
    let mut base = Base::default();
    let mut chain = |table, name, rules| base.chains.push((table, name, rules));
    let mark = settings.masquerade_mark;

    chain(Table::Nat, Fixed::MarkMasq, vec![Rule::to(Action::Mark { value: mark, mask: mark })]);
    chain(Table::Nat, Fixed::Postrouting, postrouting(settings));
    chain(Table::Nat, Fixed::NodePorts, Vec::new());
    chain(Table::Nat, Fixed::Services, at_node_addresses(settings, family, &node_ports()));

    chain(Table::Filter, Fixed::ProxyFirewall, Vec::new());
    chain(Table::Filter, Fixed::NodePorts, Vec::new());
    chain(Table::Filter, Fixed::ExternalServices, Vec::new());
    chain(Table::Filter, Fixed::Forward, forward(settings, abilities));
    let unallocated = Rule::to(Action::Drop).comment("not the address of any Service");
    chain(Table::Filter, Fixed::ClusterIps, vec![unallocated]);
    let cidrs = settings.service_cidrs(family);
    let jump_to_cluster_ips = |range| {
        Rule::jump(Fixed::ClusterIps).destination(range).comment("Service addresses without a Service's port")
    };
    chain(Table::Filter, Fixed::Services, cidrs.into_iter().map(jump_to_cluster_ips).collect());

    chain(Table::Mangle, Fixed::Canary, Vec::new());
    base.hooks = hooks(settings);
    base
}

fn node_ports() -> Rule {
    Rule::jump(Fixed::NodePorts)
        .comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
}

fn postrouting(settings: &Settings) -> Vec<Rule> {
    let mark = settings.masquerade_mark;
    vec![
        Rule::to(Action::Return).when(Match::Mark { value: mark, mask: mark, not: true }),
        Rule::to(Action::Mark { value: mark, mask: 0 }),
        Rule::to(Action::Masquerade).comment("kubernetes service traffic requiring SNAT"),
    ]
}

fn hooks(settings: &Settings) -> Vec<Hook> {
    const PORTALS: &str = "kubernetes service portals";
    const EXTERNAL: &str = "kubernetes externally-visible service portals";
    const FIREWALL: &str = "kubernetes load balancer firewall";
    let mut hooks = Vec::new();
    let mut hook = |table, chain: &str, rule| hooks.push(Hook { table, chain: Chain::parse(chain), rule });
    let to = |chain: Fixed, comment: &str| Rule::jump(chain).comment(comment);
    // The state match precedes the comment, as in the rules of kube-proxy.
    let new =
        |chain: Fixed, comment: &str| Rule::jump(chain).when(Match::State(is(States::NEW))).comment(comment);

    let unless_bypassing = |rule: Rule| match settings.bypass_mark {
        Some(mark) => rule.when(Match::Mark { value: mark, mask: mark, not: true }),
        None => rule,
    };

    hook(Table::Nat, "PREROUTING", to(Fixed::Services, PORTALS));
    hook(Table::Nat, "OUTPUT", unless_bypassing(to(Fixed::Services, PORTALS)));
    hook(Table::Nat, "POSTROUTING", to(Fixed::Postrouting, "kubernetes postrouting rules"));

    // OUTPUT has checked the packets of this node to itself, except those with the bypass mark, which INPUT must not
    // check either.
    let not_loopback = settings.bypass_mark.map(|_| is_not("lo".into()));
    let firewall = Rule { input: not_loopback, ..new(Fixed::ProxyFirewall, FIREWALL) };
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
    hooks
}
