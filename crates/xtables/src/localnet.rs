//! The sysctl `route_localnet`, which kube-proxy turns on for node ports at 127.0.0.1, and a rule in `KUBE-FIREWALL`.
//!
//! With the sysctl on, hosts on the same link could reach this node's loopback addresses (CVE-2020-8558); the rule drops
//! such packets. Portway does not need the sysctl: its relay listens at 127.0.0.1. While the sysctl is on, the rule stays,
//! no matter which program added it. An earlier release of Portway turned it on and recorded that in the same chain; then
//! it is turned off, and the rules are removed.

use crate::chains::{Fixed, Table};
use crate::commit::Kernel;
use crate::fragments::loopback;
use crate::listing::Seen;
use crate::rules::{Action, Match, Rule, States, is_not};
use portway_model::Family;

/// The comment of a rule without effect, which records for a later cleanup that the sysctl was off.
const TURNED_ON: &str = "route_localnet was off before, and goes off with this chain";

/// Drops packets from other hosts to the loopback addresses.
fn drop_martians(family: Family) -> Rule {
    Rule { source: Some(is_not(loopback(family))), ..Rule::to(Action::Drop) }
        .destination(loopback(family))
        .comment("block incoming localnet connections")
        .when(Match::State(is_not(States::RELATED.or(States::ESTABLISHED).or(States::DNAT))))
}

/// The rule with which an earlier release recorded that the sysctl was off.
fn turned_on_note() -> Rule {
    Rule::default().comment(TURNED_ON)
}

/// Whether a rule in `KUBE-FIREWALL` is one of these two.
pub(crate) fn is_firewall_rule(rule: &Rule) -> bool {
    *rule == turned_on_note() || Family::ALL.iter().any(|family| *rule == drop_martians(*family))
}

/// Whether the kernel has the rule that records that an earlier release turned the sysctl on.
pub(crate) fn was_turned_on(seen: &Seen) -> bool {
    notes(seen).next().is_some()
}

/// The recording rules, as the kernel lists them.
pub(crate) fn notes(seen: &Seen) -> impl Iterator<Item = &String> {
    let lines = seen.fixed.get(&(Table::Filter, Fixed::Firewall)).into_iter().flatten();
    lines.filter(|line| {
        let rule = Rule::parse(line).unwrap_or_default();
        rule.matches.iter().any(|m| matches!(m, Match::Comment(text) if **text == *TURNED_ON))
    })
}

/// Whether the sysctl is on, no matter which program turned it on. Then the rule that drops martians is kept.
pub(crate) fn is_on(kernel: &mut impl Kernel, family: Family) -> bool {
    family == Family::V4 && kernel.route_localnet() == Some(true)
}

/// Turns the sysctl off.
pub(crate) fn turn_off(kernel: &mut impl Kernel) {
    if let Err(error) = kernel.set_route_localnet(false) {
        tracing::warn!(%error, "the sysctl net.ipv4.conf.all.route_localnet could not be turned off; hosts on the same link can reach this node's 127.0.0.1: turn it off");
    }
}
