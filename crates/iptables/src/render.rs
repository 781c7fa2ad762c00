//! Renders settings and plans to rules.
//!
//! [`base`] renders the constant rules, [`service`] the rules of one Service: its own chains, and its rules in the
//! chains that all Services share.

mod base;
mod service;
#[cfg(test)]
mod tests;

pub use base::base;
pub use service::service;

use ipnet::IpNet;
use portway_dataplane::{LocalTraffic, Settings};
use portway_model::Family;
use portway_xtables::rules::{Is, Rule};
use std::sync::Arc;

/// The match for packets from pods: their source range, or the interface that received them.
#[derive(Clone, Debug)]
enum Pods {
    Range(IpNet),
    Interface(Arc<str>),
}

impl Pods {
    fn of(settings: &Settings, family: Family) -> Option<Pods> {
        match &settings.local {
            LocalTraffic::Unknown => None,
            // There is at most one range for each family.
            LocalTraffic::Cidrs(ranges) => {
                ranges.iter().find(|r| Family::of(r.addr()) == family).map(|r| Pods::Range(*r))
            }
            LocalTraffic::Interface(name) => Some(Pods::Interface(name.as_str().into())),
            LocalTraffic::InterfacePrefix(prefix) => Some(Pods::Interface(format!("{prefix}+").into())),
        }
    }

    /// Restricts the rule to packets from pods or, with `not`, to all other packets.
    fn restrict(&self, mut rule: Rule, not: bool) -> Rule {
        match self {
            Pods::Range(range) => rule.source = Some(Is { value: *range, not }),
            Pods::Interface(name) => rule.input = Some(Is { value: name.clone(), not }),
        }
        rule
    }
}
