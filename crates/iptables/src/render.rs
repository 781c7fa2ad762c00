//! From settings and plans to rules.
//!
//! [`base`] are the constant rules; [`service`] are the rules of a Service: chains of its own, and single rules in the
//! chains that all share.

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

/// How packets from pods are recognised.
#[derive(Clone, Debug)]
enum Pods {
    Range(IpNet),
    Interface(Arc<str>),
}

impl Pods {
    fn of(settings: &Settings, family: Family) -> Option<Pods> {
        match &settings.local {
            LocalTraffic::Unknown => None,
            // A node has one range in each family.
            LocalTraffic::Cidrs(ranges) => {
                ranges.iter().find(|r| Family::of(r.addr()) == family).map(|r| Pods::Range(*r))
            }
            LocalTraffic::Interface(name) => Some(Pods::Interface(name.as_str().into())),
            LocalTraffic::InterfacePrefix(prefix) => Some(Pods::Interface(format!("{prefix}+").into())),
        }
    }

    /// The rule for packets from pods, or for all others.
    fn restrict(&self, mut rule: Rule, not: bool) -> Rule {
        match self {
            Pods::Range(range) => rule.source = Some(Is { value: *range, not }),
            Pods::Interface(name) => rule.input = Some(Is { value: name.clone(), not }),
        }
        rule
    }
}
