//! Node ports at 127.0.0.1 need `route_localnet`, with which hosts on the same link could reach this node's loopback
//! addresses (CVE-2020-8558). A rule in `KUBE-FIREWALL` drops such packets: it is added before the sysctl is turned
//! on, and removed after it is turned off.

use crate::chains::{Fixed, Table};
use crate::commit::Kernel;
use crate::engine::Engine;
use crate::fragments::loopback;
use crate::listing::Seen;
use crate::rules::{Action, Match, Rule, States, is_not};
use portway_dataplane::Report;
use portway_model::Family;

/// The comment of a rule without effect, which records for a later cleanup that the sysctl was off.
const TURNED_ON: &str = "route_localnet was off before, and goes off with this chain";

/// Drops packets from other hosts to the loopback addresses.
pub fn drop_martians(family: Family) -> Rule {
    Rule { source: Some(is_not(loopback(family))), ..Rule::to(Action::Drop) }
        .destination(loopback(family))
        .comment("block incoming localnet connections")
        .when(Match::State(is_not(States::RELATED.or(States::ESTABLISHED).or(States::DNAT))))
}

/// The rule that records that the sysctl was off.
pub fn turned_on_note() -> Rule {
    Rule::default().comment(TURNED_ON)
}

/// Whether a rule in `KUBE-FIREWALL` is one of these two.
pub(crate) fn is_firewall_rule(rule: &Rule) -> bool {
    *rule == turned_on_note() || Family::ALL.iter().any(|family| *rule == drop_martians(*family))
}

/// Whether the kernel has the rule that records that a mode turned the sysctl on.
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

impl<K: Kernel> Engine<K> {
    /// Turns the sysctl on. Called after the rule that drops martians was added.
    pub(crate) fn turn_localnet_on(&mut self, report: &mut Report) {
        let wanted = self.settings.answers_at_loopback(self.family);
        if wanted
            && self.kernel.route_localnet() == Some(false)
            && let Err(e) = self.kernel.set_route_localnet(true)
        {
            report.warnings.push(format!(
                "node ports do not answer at 127.0.0.1, because the sysctl route_localnet could not be set: {e}"
            ));
        }
    }

    /// Turns the sysctl off if the settings no longer need it. Called before the rule is removed.
    pub(crate) fn turn_localnet_off(&mut self, seen: &Seen) {
        if !self.turned_localnet_on && was_turned_on(seen) {
            // An earlier run turned it on. Its recording rule becomes part of the wanted rules.
            self.turned_localnet_on = true;
            self.rebuild_base();
        }
        if self.turned_localnet_on && !self.settings.answers_at_loopback(self.family) {
            turn_off(&mut self.kernel);
            self.turned_localnet_on = false;
        }
    }
}
