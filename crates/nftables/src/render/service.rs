//! Renders the objects that one Service adds to the table.

use super::affinity::{self, AffinityGroup};
use crate::rules::{
    ExprBuilder, TableNames, affinity_name, capacity, frontend_key, frontend_set, goto, jump, octets,
    target_value,
};
use crate::table::{Name, Table};
use portway_model::{Frontend, FrontendKind, Outcome, PortPlan, ServicePlan, Target, TrafficPolicy};
use portway_netlink::nft::{Data, Element, Family, Key, Rule, Verdict};
use std::net::IpAddr;

/// The objects that a Service adds to the table. The index of an endpoint is its position in the plan.
pub fn service(names: &TableNames, family: Family, plan: &ServicePlan) -> Table {
    let mut part = Table::default();
    for port in &plan.ports {
        Port { names, exprs: ExprBuilder { family }, plan, port }.render(&mut part);
    }
    part.normalize();
    part
}

struct Port<'a> {
    names: &'a TableNames,
    exprs: ExprBuilder,
    plan: &'a ServicePlan,
    port: &'a PortPlan,
}

/// The maps, sets and chains for one kind of frontend. VIPs have an address in the key, node ports do not.
struct Maps<'a> {
    with_address: bool,
    endpoints: &'a Name,
    short_cut_endpoints: &'a Name,
    sticky: &'a Name,
    sticky_short_cuts: &'a Name,
    refused: &'a Name,
    dropped: &'a Name,
    short_cut_chain: &'a Name,
    prefix: &'static str,
}

impl Port<'_> {
    fn render(&self, part: &mut Table) {
        for frontend in &self.port.frontends {
            self.frontend(part, frontend);
        }
        for ip in &self.port.here {
            let pair = octets(*ip);
            part.element(&self.names.hairpin, Element::key(Key::new().field(&pair).field(&pair)));
        }
        for group in affinity::groups(self.plan, self.port) {
            group.render(self.exprs, self.port.protocol, part);
        }
    }

    fn maps(&self, kind: FrontendKind) -> Maps<'_> {
        let n = self.names;
        if kind == FrontendKind::NodePort {
            Maps {
                with_address: false,
                endpoints: &n.nodeport_endpoints,
                short_cut_endpoints: &n.nodeport_short_cut_endpoints,
                sticky: &n.sticky_nodeports,
                sticky_short_cuts: &n.sticky_nodeport_short_cuts,
                refused: &n.refused_nodeports,
                dropped: &n.dropped_nodeports,
                short_cut_chain: &n.nodeport_short_cut,
                prefix: "nodeport-",
            }
        } else {
            Maps {
                with_address: true,
                endpoints: &n.endpoints,
                short_cut_endpoints: &n.short_cut_endpoints,
                sticky: &n.sticky_services,
                sticky_short_cuts: &n.sticky_short_cuts,
                refused: &n.refused,
                dropped: &n.dropped,
                short_cut_chain: &n.short_cut,
                prefix: "",
            }
        }
    }

    fn frontend(&self, part: &mut Table, frontend: &Frontend) {
        let maps = self.maps(frontend.kind);
        let key = frontend_key(frontend.address, self.port.protocol, frontend.port);
        let member = || Element::key(key).comment(&self.comment());

        if frontend.kind == FrontendKind::ClusterIp
            && let Some(ip) = frontend.address
        {
            let element = Element::key(Key::new().field(&octets(ip))).comment(self.plan.name.as_str());
            part.element(&self.names.cluster_ips, element);
        }
        if frontend.kind == FrontendKind::LoadBalancer && !self.port.source_ranges.is_empty() {
            part.element(&self.names.guarded, member());
            self.source_ranges(part, frontend);
        }
        let short_cut = self.port.short_cut(frontend.kind);
        match self.port.outcome(frontend.kind) {
            Outcome::Reject => part.element(maps.refused, member()),
            Outcome::Drop => {
                part.element(maps.dropped, member());
                if short_cut.is_some() {
                    self.add_frontend(part, &maps, frontend.kind, key, &[]);
                }
            }
            Outcome::Balance(targets) => {
                self.add_frontend(part, &maps, frontend.kind, key, targets);
                self.endpoints(part, maps.endpoints, key, targets);
            }
        }
        if let Some(targets) = short_cut {
            self.add_local_shortcut(part, &maps, key, targets);
            self.endpoints(part, maps.short_cut_endpoints, key, targets);
        }
    }

    fn comment(&self) -> String {
        match &*self.port.name {
            "" => self.plan.name.to_string(),
            name => format!("{}:{name}", self.plan.name),
        }
    }

    fn endpoints(&self, part: &mut Table, map: &Name, key: Key, targets: &[Target]) {
        if self.port.affinity.is_some() {
            return;
        }
        for (i, target) in targets.iter().enumerate() {
            let key = key.field(&(i as u32).to_ne_bytes());
            part.element(map, Element::map(key, Data::Value(target_value(*target))));
        }
    }

    /// Sends a frontend to the chain that applies its traffic policy and then balances over `targets`. With session
    /// affinity that is a chain of the Service port, otherwise the one for the policy and capacity.
    fn add_frontend(
        &self,
        part: &mut Table,
        maps: &Maps<'_>,
        kind: FrontendKind,
        key: Key,
        targets: &[Target],
    ) {
        let n = self.names;
        let local = kind != FrontendKind::ClusterIp && self.port.external == TrafficPolicy::Local;
        let (policy, first) = match kind {
            FrontendKind::ClusterIp => ("cluster-ip", jump(&n.mark_unless_pod)),
            _ if local => ("local", jump(maps.short_cut_chain)),
            _ => ("external", jump(&n.mark)),
        };
        let prefix = maps.prefix;
        if self.port.affinity.is_some() && !targets.is_empty() {
            let id = AffinityGroup::id(self.plan, self.port, self.port.policy(kind));
            let chain: Name = format!("{prefix}{policy}-{id}").into();
            part.chain(&chain, vec![first, goto(&affinity_name("sticky", &id))]);
            return self.add_to_verdict_map(part, maps.sticky, key, chain);
        }
        let mut rules = vec![first];
        let mut number = 0;
        if !targets.is_empty() {
            number = capacity(targets.len());
            rules.extend(self.exprs.balance(maps.with_address, maps.endpoints, targets.len()));
        }
        self.add_to_dispatch_set(part, maps, format!("{prefix}{policy}-{number}").into(), key, rules);
    }

    /// Sends connections from this node and its pods, to a frontend with policy Local, to any endpoint.
    fn add_local_shortcut(&self, part: &mut Table, maps: &Maps<'_>, key: Key, targets: &[Target]) {
        if self.port.affinity.is_some() {
            let id = AffinityGroup::id(self.plan, self.port, TrafficPolicy::Cluster);
            return self.add_to_verdict_map(part, maps.sticky_short_cuts, key, affinity_name("sticky", &id));
        }
        let name: Name = format!("{}short-cut-{}", maps.prefix, capacity(targets.len())).into();
        let rules = self.exprs.balance(maps.with_address, maps.short_cut_endpoints, targets.len());
        self.add_to_dispatch_set(part, maps, name, key, rules);
    }

    fn add_to_verdict_map(&self, part: &mut Table, map: &Name, key: Key, chain: Name) {
        let element = Element::map(key, Data::Verdict(Verdict::Goto(chain)));
        part.element(map, element.comment(&self.comment()));
    }

    /// Adds a frontend to the set of a policy chain. The set and the chain have the same name.
    fn add_to_dispatch_set(&self, part: &mut Table, maps: &Maps<'_>, name: Name, key: Key, rules: Vec<Rule>) {
        part.sets.insert(name.clone(), frontend_set(&name, self.exprs.family, maps.with_address));
        part.element(&name, Element::key(key).comment(&self.comment()));
        part.chain(&name, rules);
    }

    fn source_ranges(&self, part: &mut Table, frontend: &Frontend) {
        let Some(vip) = frontend.address else { return };
        let service = |source: IpAddr| {
            Key::new()
                .field(&octets(source))
                .field(&octets(vip))
                .field(&[self.port.protocol.number()])
                .field(&frontend.port.to_be_bytes())
        };
        let mut add = |from, to| {
            let element = Element { key_end: Some(Box::new(service(to))), ..Element::key(service(from)) };
            part.element(&self.names.source_ranges, element);
        };
        for range in &self.port.source_ranges {
            add(range.network(), range.broadcast());
        }
        if self.port.admits_node && !self.port.source_ranges.iter().any(|r| r.contains(&vip)) {
            add(vip, vip);
        }
    }
}
