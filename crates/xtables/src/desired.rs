//! The rules that a mode wants in the tables, and the data they are rendered from.
//!
//! A mode gives the engine a [`Renderer`]: one function for the constant chains, and one for the rules of a Service.
//! The engine calls them each time it prints or compares rules, because the rules of a large cluster need too much
//! memory to be kept.

use crate::chains::{Chain, Fixed, PortChain, Table};
use crate::rules::Rule;
use portway_dataplane::Settings;
use portway_model::{Family, ServiceName, ServicePlan};
use std::collections::HashMap;

/// A chain in which every Service may have rules, in any order, followed by constant rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shared {
    /// The table.
    pub table: Table,
    /// The chain.
    pub chain: Fixed,
}

impl Shared {
    /// nat: jumps from an address and port to the chain of its Service.
    pub const SERVICES: Shared = Shared { table: Table::Nat, chain: Fixed::Services };
    /// nat: jumps from a node port to the chain of its Service.
    pub const NODE_PORTS: Shared = Shared { table: Table::Nat, chain: Fixed::NodePorts };
    /// filter: rejects or drops packets to cluster IPs without endpoints.
    pub const REFUSED: Shared = Shared { table: Table::Filter, chain: Fixed::Services };
    /// filter: rejects or drops packets to other addresses and node ports without endpoints.
    pub const REFUSED_EXTERNAL: Shared = Shared { table: Table::Filter, chain: Fixed::ExternalServices };
    /// filter: accepts packets to health check node ports.
    pub const HEALTH_CHECKS: Shared = Shared { table: Table::Filter, chain: Fixed::NodePorts };
    /// filter: drops packets to load-balancer IPs from outside their source ranges.
    pub const GUARDED: Shared = Shared { table: Table::Filter, chain: Fixed::ProxyFirewall };
    /// filter: rejects packets to cluster IPs at ports that their Service does not have.
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
    /// The chains of the Service, all in nat, each after the chains that it jumps to.
    pub chains: Vec<(PortChain, Vec<Rule>)>,
    /// The rules in shared chains.
    pub shared: Vec<(Shared, Rule)>,
}

/// A rule of the mode in a built-in chain, which jumps to a chain of the mode, or in `KUBE-FIREWALL`.
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
    /// The constant chains and their rules; for a shared chain, the constant rules at its end.
    pub chains: Vec<(Table, Fixed, Vec<Rule>)>,
    /// The hooks, in the order that they have in each chain.
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

/// Facts about the host that the constant rules depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The kernel has named counters (nfacct).
    pub counting: bool,
}

/// The functions with which a mode renders its rules.
#[derive(Clone, Copy, Debug)]
pub struct Renderer {
    /// The constant rules.
    pub base: fn(Family, &Settings, Abilities) -> Base,
    /// The rules of a Service.
    pub service: fn(Family, &Settings, &ServicePlan) -> ServiceRules,
}

/// The data that rules are rendered from.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    /// The mode's functions.
    pub renderer: Renderer,
    /// The family.
    pub family: Family,
    /// The settings.
    pub settings: &'a Settings,
    /// The constant rules for these settings.
    pub base: &'a Base,
    /// The Services.
    pub plans: &'a HashMap<ServiceName, ServicePlan>,
    /// Services whose rules the tool refused, with the last plan that it accepted, if there is one.
    pub left_out: &'a HashMap<ServiceName, Option<ServicePlan>>,
}

impl<'a> RenderContext<'a> {
    /// The plan that is programmed for a Service.
    pub fn plan(&self, name: &ServiceName) -> Option<&'a ServicePlan> {
        match self.left_out.get(name) {
            Some(last_accepted) => last_accepted.as_ref(),
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
