//! A Service's share of the table.

use super::affinity::{self, Sticky};
use crate::rules::{Names, Words, frontend_key, goto, jump, octets, target_value};
use crate::table::{Name, Table};
use portway_model::{Frontend, FrontendKind, Outcome, PortPlan, ServicePlan, Target, TrafficPolicy};
use portway_netlink::nft::{Data, Element, Family, Key, Verdict};
use std::net::IpAddr;

/// What a Service adds to the table. Endpoints keep the order the plan gives them.
pub fn service(names: &Names, family: Family, plan: &ServicePlan) -> Table {
    let mut part = Table::default();
    for port in &plan.ports {
        Port { names, words: Words { family }, plan, port }.render(&mut part);
    }
    part.normalize();
    part
}

struct Port<'a> {
    names: &'a Names,
    words: Words,
    plan: &'a ServicePlan,
    port: &'a PortPlan,
}

/// A frontend's maps: VIPs and node ports have the same kind of maps, with and without an address in the key.
struct Maps<'a> {
    with_address: bool,
    frontends: &'a Name,
    endpoints: &'a Name,
    short_cuts: &'a Name,
    short_cut_endpoints: &'a Name,
    no_endpoints: &'a Name,
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
        for sticky in affinity::groups(self.plan, self.port) {
            sticky.render(self.words, self.port.protocol, part);
        }
    }

    fn maps(&self, kind: FrontendKind) -> Maps<'_> {
        let n = self.names;
        if kind == FrontendKind::NodePort {
            Maps {
                with_address: false,
                frontends: &n.nodeports,
                endpoints: &n.nodeport_endpoints,
                short_cuts: &n.nodeport_short_cuts,
                short_cut_endpoints: &n.nodeport_short_cut_endpoints,
                no_endpoints: &n.no_nodeport_endpoints,
                short_cut_chain: &n.nodeport_short_cut,
                prefix: "nodeport-",
            }
        } else {
            Maps {
                with_address: true,
                frontends: &n.services,
                endpoints: &n.endpoints,
                short_cuts: &n.short_cuts,
                short_cut_endpoints: &n.short_cut_endpoints,
                no_endpoints: &n.no_endpoints,
                short_cut_chain: &n.short_cut,
                prefix: "",
            }
        }
    }

    fn frontend(&self, part: &mut Table, frontend: &Frontend) {
        let maps = self.maps(frontend.kind);
        let key = frontend_key(frontend.address, self.port.protocol, frontend.port);
        let comment = self.comment();
        let verdict = |verdict| Element::map(key, Data::Verdict(verdict)).comment(&comment);

        if frontend.kind == FrontendKind::ClusterIp
            && let Some(ip) = frontend.address
        {
            part.element(
                &self.names.cluster_ips,
                Element::key(Key::new().field(&octets(ip))).comment(self.plan.name.as_str()),
            );
        }
        if frontend.kind == FrontendKind::LoadBalancer && !self.port.source_ranges.is_empty() {
            part.element(&self.names.firewall, verdict(Verdict::Goto(self.names.check_source.clone())));
            self.source_ranges(part, frontend);
        }
        let short_cut = self.port.short_cut(frontend.kind);
        match self.port.outcome(frontend.kind) {
            Outcome::Reject => {
                part.element(maps.no_endpoints, verdict(Verdict::Goto(self.names.reject.clone())));
            }
            Outcome::Drop => {
                part.element(maps.no_endpoints, verdict(Verdict::Drop));
                if short_cut.is_some() {
                    let chain = self.policy_chain(part, &maps, frontend.kind, &[]);
                    part.element(maps.frontends, verdict(Verdict::Goto(chain)));
                }
            }
            Outcome::Balance(targets) => {
                let chain = self.policy_chain(part, &maps, frontend.kind, targets);
                part.element(maps.frontends, verdict(Verdict::Goto(chain)));
                self.endpoints(part, maps.endpoints, key, targets);
            }
        }
        if let Some(targets) = short_cut {
            let chain = self.short_cut_chain(part, &maps, targets);
            part.element(maps.short_cuts, verdict(Verdict::Goto(chain)));
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

    /// The chain that applies a frontend's policy and then balances over `targets`: one for each policy and number
    /// of endpoints, or the port's own if clients stick.
    fn policy_chain(
        &self,
        part: &mut Table,
        maps: &Maps<'_>,
        kind: FrontendKind,
        targets: &[Target],
    ) -> Name {
        let n = self.names;
        let local = kind != FrontendKind::ClusterIp && self.port.external == TrafficPolicy::Local;
        let (policy, first) = match kind {
            FrontendKind::ClusterIp => ("cluster-ip", jump(&n.mark_unless_pod)),
            _ if local => ("local", jump(maps.short_cut_chain)),
            _ => ("external", jump(&n.mark)),
        };
        let mut rules = vec![first];
        let name: Name = match (self.port.affinity, targets) {
            (_, []) => format!("{}{policy}-0", maps.prefix).into(),
            (None, _) => {
                rules.push(self.words.balance(maps.with_address, maps.endpoints, targets.len()));
                format!("{}{policy}-{}", maps.prefix, targets.len()).into()
            }
            (Some(_), _) => {
                let sticky = Sticky::name(self.plan, self.port, self.port.policy(kind));
                rules.push(goto(&format!("sticky-{sticky}").into()));
                format!("{}{policy}-{sticky}", maps.prefix).into()
            }
        };
        part.chain(&name, rules);
        name
    }

    /// The chain for traffic that begins on this node, to a frontend with policy Local.
    fn short_cut_chain(&self, part: &mut Table, maps: &Maps<'_>, targets: &[Target]) -> Name {
        if self.port.affinity.is_some() {
            return format!("sticky-{}", Sticky::name(self.plan, self.port, TrafficPolicy::Cluster)).into();
        }
        let name: Name = format!("{}short-cut-{}", maps.prefix, targets.len()).into();
        part.chain(
            &name,
            vec![self.words.balance(maps.with_address, maps.short_cut_endpoints, targets.len())],
        );
        name
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
