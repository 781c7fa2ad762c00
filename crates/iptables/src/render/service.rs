//! The rules of a Service.

use super::Pods;
use ipnet::IpNet;
use portway_dataplane::Settings;
use portway_model::{
    Family, Frontend, FrontendKind, Outcome, PortPlan, Protocol, ServicePlan, Target, TrafficPolicy,
};
use portway_xtables::chains::{Fixed, PortChain, Role};
use portway_xtables::desired::{ServiceRules, Shared};
use portway_xtables::fragments::{at_node_addresses, refusal};
use portway_xtables::rules::{Action, Match, Probability, Recent, Rule};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// What a Service adds, chains in the order in which they can be made.
pub fn service(family: Family, settings: &Settings, plan: &ServicePlan) -> ServiceRules {
    let mut part = ServiceRules::default();
    let pods = Pods::of(settings, family);
    for port in &plan.ports {
        Port::new(family, settings, pods.as_ref(), plan, port).render(&mut part);
    }
    if let Some(port) = plan.health_check {
        let words = format!("{} health check node port", plan.name);
        part.shared.push((
            Shared::HEALTH_CHECKS,
            Rule::to(Action::Accept).comment_then_port(words, Protocol::Tcp, port),
        ));
    }
    if !settings.service_cidrs(family).is_empty() {
        part.shared.extend(cluster_ips(plan).flat_map(|ip| no_such_port(family, plan, ip)));
    }
    part
}

fn cluster_ips(plan: &ServicePlan) -> impl Iterator<Item = IpAddr> {
    let of_port = |port: &PortPlan| {
        let own = port.frontends.iter().filter(|f| f.kind == FrontendKind::ClusterIp);
        own.filter_map(|f| f.address).collect::<Vec<_>>()
    };
    plan.ports.iter().flat_map(of_port).collect::<BTreeSet<_>>().into_iter()
}

fn no_such_port(family: Family, plan: &ServicePlan, ip: IpAddr) -> Vec<(Shared, Rule)> {
    let words: Arc<str> = format!("{} has no such port", plan.name).into();
    let refuse = |protocol: Option<Protocol>| {
        let rule = Rule::to(refusal(family, protocol)).destination(IpNet::from(ip)).comment(words.clone());
        (Shared::CLUSTER_IPS, Rule { protocol, ..rule })
    };
    let tcp = refuse(Some(Protocol::Tcp));
    match family {
        Family::V4 => vec![refuse(None)],
        // In any order, so neither may stand for the other.
        Family::V6 => vec![tcp, refuse(Some(Protocol::Udp)), refuse(Some(Protocol::Sctp))],
    }
}

struct Port<'a> {
    family: Family,
    settings: &'a Settings,
    pods: Option<&'a Pods>,
    plan: &'a PortPlan,
    /// `namespace/name:port`
    name: Arc<str>,
}

impl<'a> Port<'a> {
    fn new(
        family: Family,
        settings: &'a Settings,
        pods: Option<&'a Pods>,
        service: &ServicePlan,
        plan: &'a PortPlan,
    ) -> Port<'a> {
        let name: Arc<str> = match &*plan.name {
            "" => service.name.as_str().into(),
            port => format!("{}:{port}", service.name).into(),
        };
        Port { family, settings, pods, plan, name }
    }

    fn chain(&self, role: Role) -> PortChain {
        PortChain::of_port(role, &self.name, self.plan.protocol)
    }

    fn endpoint(&self, target: Target) -> PortChain {
        PortChain::of_endpoint(&self.name, self.plan.protocol, target)
    }

    fn render(&self, part: &mut ServiceRules) {
        let kinds = || self.plan.frontends.iter().map(|f| f.kind);
        let balanced = |policy| {
            let leads =
                |k| self.plan.policy(k) == policy && matches!(self.plan.outcome(k), Outcome::Balance(_));
            kinds().any(leads)
        };
        let external = kinds().any(|k| k != FrontendKind::ClusterIp && self.leads_on(k));
        let cluster = balanced(TrafficPolicy::Cluster) || kinds().any(|k| self.plan.short_cut(k).is_some());
        let local = balanced(TrafficPolicy::Local);

        let mut targets: BTreeSet<Target> = BTreeSet::new();
        targets.extend(self.plan.cluster.iter().filter(|_| cluster));
        targets.extend(self.plan.local.iter().filter(|_| local));
        part.chains.extend(targets.into_iter().map(|t| (self.endpoint(t), self.lead_to(t))));
        if cluster {
            let rules = self.balance(TrafficPolicy::Cluster, &self.plan.cluster);
            part.chains.push((self.chain(Role::Cluster), rules));
        }
        if local {
            part.chains.push((self.chain(Role::Local), self.balance(TrafficPolicy::Local, &self.plan.local)));
        }
        if external {
            part.chains.push((self.chain(Role::External), self.external(local)));
        }
        if external && self.is_guarded() {
            part.chains.push((self.chain(Role::Guard), self.guard()));
        }
        for frontend in &self.plan.frontends {
            self.frontend(part, frontend);
        }
    }

    /// Whether some traffic to such frontends is led to an endpoint.
    fn leads_on(&self, kind: FrontendKind) -> bool {
        matches!(self.plan.outcome(kind), Outcome::Balance(_)) || self.plan.short_cut(kind).is_some()
    }

    fn is_guarded(&self) -> bool {
        !self.plan.source_ranges.is_empty()
            && self.plan.frontends.iter().any(|f| f.kind == FrontendKind::LoadBalancer)
    }

    /// `KUBE-SEP-`: a pod that reaches itself gets another source, so that it does not answer to itself.
    fn lead_to(&self, target: Target) -> Vec<Rule> {
        let protocol = self.plan.protocol;
        let hairpin = Rule::jump(Fixed::MarkMasq).source(IpNet::from(target.ip)).comment(self.name.clone());
        let mut dnat = Rule::to(Action::Dnat(target)).protocol(protocol).comment(self.name.clone());
        if self.plan.affinity.is_some() {
            dnat = dnat.when(self.recent(target, None));
        }
        vec![hairpin, dnat.when(Match::Port { protocol, destination: None })]
    }

    fn recent(&self, target: Target, within: Option<u32>) -> Match {
        let v6 = self.family == Family::V6;
        Match::Recent(Recent { list: self.endpoint(target).into(), within, v6 })
    }

    /// `KUBE-SVC-` or `KUBE-SVL-`: marks what comes to a cluster IP from elsewhere, then picks an endpoint, the one that
    /// the client had before if clients stick.
    fn balance(&self, policy: TrafficPolicy, targets: &[Target]) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.plan.internal == policy {
            rules.extend(self.plan.frontends.iter().filter_map(|f| self.mark_unless_pod(f)));
        }
        if let Some(seconds) = self.plan.affinity {
            rules.extend(targets.iter().map(|t| {
                Rule::jump(self.endpoint(*t)).comment(self.name.clone()).when(self.recent(*t, Some(seconds)))
            }));
        }
        for (i, target) in targets.iter().enumerate() {
            let rule = Rule::jump(self.endpoint(*target)).comment(self.name.clone());
            let left = targets.len() - i;
            rules.push(if left > 1 { rule.when(Match::Random(Probability::one_in(left))) } else { rule });
        }
        rules
    }

    fn mark_unless_pod(&self, frontend: &Frontend) -> Option<Rule> {
        let ip = frontend.address.filter(|_| frontend.kind == FrontendKind::ClusterIp)?;
        let rule = Rule::jump(Fixed::MarkMasq).destination(IpNet::from(ip)).comment_then_port(
            format!("{} cluster IP", self.name),
            self.plan.protocol,
            frontend.port,
        );
        if self.settings.masquerade_all {
            return Some(rule);
        }
        self.pods.map(|pods| pods.restrict(rule, true))
    }

    /// `KUBE-EXT-`: what comes from outside is masqueraded, or kept on this node; what begins here may go anywhere.
    fn external(&self, local: bool) -> Vec<Rule> {
        let name = &self.name;
        if self.plan.external == TrafficPolicy::Cluster {
            let words = format!("masquerade traffic for {name} external destinations");
            return vec![Rule::jump(Fixed::MarkMasq).comment(words), Rule::jump(self.chain(Role::Cluster))];
        }
        let mut rules = Vec::new();
        if !self.plan.cluster.is_empty() {
            let cluster = self.chain(Role::Cluster);
            if let Some(pods) = self.pods {
                let words = format!("pod traffic for {name} external destinations");
                rules.push(pods.restrict(Rule::jump(cluster).comment(words), false));
            }
            let own = |rule: Rule, what: &str| {
                rule.comment(format!("{what} LOCAL traffic for {name} external destinations"))
                    .when(Match::SourceIsLocal)
            };
            rules.push(own(Rule::jump(Fixed::MarkMasq), "masquerade"));
            rules.push(own(Rule::jump(cluster), "route"));
        }
        if local {
            rules.push(Rule::jump(self.chain(Role::Local)));
        }
        rules
    }

    /// `KUBE-FW-`: only some sources go on; the rest is dropped in filter, where nat cannot.
    fn guard(&self) -> Vec<Rule> {
        let words = format!("{} loadbalancer IP", self.name);
        let admit = |range| Rule::jump(self.chain(Role::External)).source(range).comment(words.clone());
        let mut rules: Vec<Rule> = self.plan.source_ranges.iter().map(|r| admit(*r)).collect();
        if self.plan.admits_node {
            let vips = self.plan.frontends.iter().filter(|f| f.kind == FrontendKind::LoadBalancer);
            let vips = vips.filter_map(|f| f.address);
            let outside = vips.filter(|ip| !self.plan.source_ranges.iter().any(|r| r.contains(ip)));
            rules.extend(outside.map(|ip| admit(IpNet::from(ip))));
        }
        let words = format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.name);
        rules.push(Rule::default().comment(words));
        rules
    }

    /// Leads a frontend to its chain, or refuses it, or both: with policy Local and no endpoint here, only what begins
    /// here is led on.
    fn frontend(&self, part: &mut ServiceRules, frontend: &Frontend) {
        let guarded = frontend.kind == FrontendKind::LoadBalancer && self.is_guarded();
        if self.leads_on(frontend.kind) {
            let chain = match (frontend.kind, self.plan.internal) {
                (FrontendKind::ClusterIp, TrafficPolicy::Cluster) => Role::Cluster,
                (FrontendKind::ClusterIp, TrafficPolicy::Local) => Role::Local,
                _ if guarded => Role::Guard,
                _ => Role::External,
            };
            self.lead(part, frontend, self.chain(chain));
            if guarded && let Some(ip) = frontend.address {
                let words = format!("{} traffic not accepted by {}", self.name, self.chain(Role::Guard));
                let rule = Rule::to(Action::Drop).destination(IpNet::from(ip));
                let rule = rule.comment_then_port(words, self.plan.protocol, frontend.port);
                part.shared.push((Shared::GUARDED, rule));
            }
        }
        match self.plan.outcome(frontend.kind) {
            Outcome::Balance(_) => {}
            Outcome::Reject => {
                let refuse = refusal(self.family, Some(self.plan.protocol));
                self.refuse(part, frontend, refuse, "has no endpoints");
            }
            Outcome::Drop => self.refuse(part, frontend, Action::Drop, "has no local endpoints"),
        }
    }

    fn lead(&self, part: &mut ServiceRules, frontend: &Frontend, chain: PortChain) {
        let (protocol, port) = (self.plan.protocol, frontend.port);
        let what = match frontend.kind {
            FrontendKind::ClusterIp => " cluster IP",
            FrontendKind::LoadBalancer => " loadbalancer IP",
            FrontendKind::ExternalIp => " external IP",
            FrontendKind::NodePort => "",
        };
        let rule = Rule::jump(chain).comment_then_port(format!("{}{what}", self.name), protocol, port);
        part.shared.push(match frontend.address {
            Some(ip) => (Shared::SERVICES, rule.destination(IpNet::from(ip))),
            None => (Shared::NODE_PORTS, rule),
        });
    }

    fn refuse(&self, part: &mut ServiceRules, frontend: &Frontend, action: Action, why: &str) {
        let rule = Rule::to(action).comment(format!("{} {why}", self.name));
        let (protocol, port) = (self.plan.protocol, frontend.port);
        match frontend.address {
            Some(ip) => {
                let external = frontend.kind != FrontendKind::ClusterIp;
                let shared = if external { Shared::REFUSED_EXTERNAL } else { Shared::REFUSED };
                part.shared.push((shared, rule.destination(IpNet::from(ip)).port(protocol, port)));
            }
            None => {
                let at_node = at_node_addresses(self.settings, self.family, &rule);
                let rules = at_node.into_iter().map(|r| (Shared::REFUSED_EXTERNAL, r.port(protocol, port)));
                part.shared.extend(rules);
            }
        }
    }
}
