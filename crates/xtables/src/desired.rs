//! The rules that a mode wants in the tables, and everything they are rendered from.
//!
//! A mode hands the engine a [`Renderer`]: two functions, one for the constant chains and one for the rules of a
//! Service. The engine calls them whenever it prints or compares, because the rules of a large cluster would fill
//! the memory.

use crate::chains::{Chain, Fixed, PortChain, Table};
use crate::rules::Rule;
use portway_dataplane::Settings;
use portway_model::{Family, ServiceName, ServicePlan};
use std::collections::HashMap;

/// A chain in which every Service may have rules, in any order, before the constant ones at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shared {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub chain: Fixed,
}

impl Shared {
    /// nat: from an address and port to its Service.
    pub const SERVICES: Shared = Shared { table: Table::Nat, chain: Fixed::Services };
    /// nat: from a node port to its Service.
    pub const NODE_PORTS: Shared = Shared { table: Table::Nat, chain: Fixed::NodePorts };
    /// filter: cluster IPs without endpoints.
    pub const REFUSED: Shared = Shared { table: Table::Filter, chain: Fixed::Services };
    /// filter: other addresses without endpoints.
    pub const REFUSED_EXTERNAL: Shared = Shared { table: Table::Filter, chain: Fixed::ExternalServices };
    /// filter: ports for health checks.
    pub const HEALTH_CHECKS: Shared = Shared { table: Table::Filter, chain: Fixed::NodePorts };
    /// filter: load-balancer IPs with source ranges.
    pub const GUARDED: Shared = Shared { table: Table::Filter, chain: Fixed::ProxyFirewall };
    /// filter: cluster IPs at ports that their Service does not have.
    pub const CLUSTER_IPS: Shared = Shared { table: Table::Filter, chain: Fixed::ClusterIps };

    /// All of them.
    pub const ALL: [Shared; 7] = [
        Shared::SERVICES,
        Shared::NODE_PORTS,
        Shared::REFUSED,
        Shared::REFUSED_EXTERNAL,
        Shared::HEALTH_CHECKS,
        Shared::GUARDED,
        Shared::CLUSTER_IPS,
    ];
}

/// The rules of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRules {
    /// Chains of its own, all in nat, each after those it jumps to.
    pub chains: Vec<(PortChain, Vec<Rule>)>,
    /// Its rules in shared chains.
    pub shared: Vec<(Shared, Rule)>,
}

/// A rule in a built-in chain, or in `KUBE-FIREWALL`, that leads to a chain of the mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The table.
    pub table: Table,
    /// The chain: a built-in one, or `KUBE-FIREWALL`, which the kubelet uses too.
    pub chain: Chain,
    /// The rule.
    pub rule: Rule,
}

/// The constant rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Chains of the mode, with their rules; of a shared chain, the rules at its end.
    pub chains: Vec<(Table, Fixed, Vec<Rule>)>,
    /// The rules that lead to them. In each chain, the first comes first.
    pub hooks: Vec<Hook>,
}

impl Base {
    /// The rules at the end of a shared chain.
    pub fn tail(&self, shared: Shared) -> &[Rule] {
        let found =
            self.chains.iter().find(|(table, chain, _)| (*table, *chain) == (shared.table, shared.chain));
        found.map_or(&[], |(_, _, rules)| rules)
    }
}

/// The facts about the host that the constant rules depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The kernel has named counters (nfacct).
    pub counting: bool,
    /// This mode turned `route_localnet` on.
    pub turned_localnet_on: bool,
}

/// How a mode renders its rules.
#[derive(Clone, Copy, Debug)]
pub struct Renderer {
    /// The constant rules.
    pub base: fn(Family, &Settings, Abilities) -> Base,
    /// The rules of a Service.
    pub service: fn(Family, &Settings, &ServicePlan) -> ServiceRules,
}

/// Everything that rules are rendered from.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    /// The mode's functions.
    pub renderer: Renderer,
    /// The family.
    pub family: Family,
    /// The settings.
    pub settings: &'a Settings,
    /// The constant rules that they give.
    pub base: &'a Base,
    /// The Services.
    pub plans: &'a HashMap<ServiceName, ServicePlan>,
    /// Services that the tool refused, with the last plan that it accepted, if there was one.
    pub left_out: &'a HashMap<ServiceName, Option<ServicePlan>>,
}

impl<'a> RenderContext<'a> {
    /// The plan that is programmed for a Service.
    pub fn plan(&self, name: &ServiceName) -> Option<&'a ServicePlan> {
        match self.left_out.get(name) {
            Some(stand_in) => stand_in.as_ref(),
            None => self.plans.get(name),
        }
    }

    /// The rules of a plan.
    pub fn service_rules(&self, plan: &ServicePlan) -> ServiceRules {
        (self.renderer.service)(self.family, self.settings, plan)
    }

    /// The plans that are programmed, sorted by name.
    pub fn services(&self) -> Vec<&'a ServicePlan> {
        let mut plans: Vec<&ServicePlan> = if self.left_out.is_empty() {
            self.plans.values().collect()
        } else {
            self.plans.keys().filter_map(|name| self.plan(name)).collect()
        };
        plans.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        plans
    }
}
