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

/// Renders the rules of a Service. Each chain comes after the chains that it jumps to.
pub fn service(family: Family, settings: &Settings, plan: &ServicePlan) -> ServiceRules {
    let mut rules = ServiceRules::default();
    let pods = Pods::of(settings, family);
    for port in &plan.ports {
        Port::new(family, settings, pods.as_ref(), plan, port).render(&mut rules);
    }
    if let Some(port) = plan.health_check {
        let comment = format!("{} health check node port", plan.name);
        rules.shared.push((
            Shared::HEALTH_CHECKS,
            Rule::to(Action::Accept).comment_then_port(comment, Protocol::Tcp, port),
        ));
    }
    if !settings.service_cidrs(family).is_empty() {
        rules.shared.extend(cluster_ips(plan).flat_map(|ip| reject_unknown_ports(family, plan, ip)));
    }
    rules
}

fn cluster_ips(plan: &ServicePlan) -> impl Iterator<Item = IpAddr> {
    let of_port = |port: &PortPlan| {
        let frontends = port.frontends.iter().filter(|f| f.kind == FrontendKind::ClusterIp);
        frontends.filter_map(|f| f.address).collect::<Vec<_>>()
    };
    plan.ports.iter().flat_map(of_port).collect::<BTreeSet<_>>().into_iter()
}

/// Rejects packets to the ports of a cluster IP that its Service does not have.
fn reject_unknown_ports(family: Family, plan: &ServicePlan, ip: IpAddr) -> Vec<(Shared, Rule)> {
    let comment: Arc<str> = format!("{} has no such port", plan.name).into();
    let reject = |protocol: Option<Protocol>| {
        let rule = Rule::to(refusal(family, protocol)).destination(IpNet::from(ip)).comment(comment.clone());
        (Shared::CLUSTER_IPS, Rule { protocol, ..rule })
    };
    match family {
        Family::V4 => vec![reject(None)],
        // TCP is rejected in another way than the other protocols. The rules of a shared chain have no fixed order, so
        // a rule for all protocols could match TCP first.
        Family::V6 => {
            vec![reject(Some(Protocol::Tcp)), reject(Some(Protocol::Udp)), reject(Some(Protocol::Sctp))]
        }
    }
}

/// Renders one Service port.
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

    fn endpoint_chain(&self, target: Target) -> PortChain {
        PortChain::of_endpoint(&self.name, self.plan.protocol, target)
    }

    fn render(&self, out: &mut ServiceRules) {
        let kinds = || self.plan.frontends.iter().map(|f| f.kind);
        let balanced = |policy| {
            let uses =
                |k| self.plan.policy(k) == policy && matches!(self.plan.outcome(k), Outcome::Balance(_));
            kinds().any(uses)
        };
        let external = kinds().any(|k| k != FrontendKind::ClusterIp && self.is_forwarded(k));
        let cluster = balanced(TrafficPolicy::Cluster) || kinds().any(|k| self.plan.short_cut(k).is_some());
        let local = balanced(TrafficPolicy::Local);

        let mut targets: BTreeSet<Target> = BTreeSet::new();
        targets.extend(self.plan.cluster.iter().filter(|_| cluster));
        targets.extend(self.plan.local.iter().filter(|_| local));
        out.chains.extend(targets.into_iter().map(|t| (self.endpoint_chain(t), self.endpoint_rules(t))));
        if cluster {
            let rules = self.balance(TrafficPolicy::Cluster, &self.plan.cluster);
            out.chains.push((self.chain(Role::Cluster), rules));
        }
        if local {
            out.chains.push((self.chain(Role::Local), self.balance(TrafficPolicy::Local, &self.plan.local)));
        }
        if external {
            out.chains.push((self.chain(Role::External), self.external(local)));
        }
        if external && self.restricts_sources() {
            out.chains.push((self.chain(Role::Guard), self.source_range_rules()));
        }
        for frontend in &self.plan.frontends {
            self.add_frontend(out, frontend);
        }
    }

    /// Whether packets to frontends of this kind are forwarded to endpoints, at least those from pods and from this
    /// node.
    fn is_forwarded(&self, kind: FrontendKind) -> bool {
        matches!(self.plan.outcome(kind), Outcome::Balance(_)) || self.plan.short_cut(kind).is_some()
    }

    /// Whether the load-balancer IPs accept packets only from the source ranges of the Service.
    fn restricts_sources(&self) -> bool {
        !self.plan.source_ranges.is_empty()
            && self.plan.frontends.iter().any(|f| f.kind == FrontendKind::LoadBalancer)
    }

    /// `KUBE-SEP-`: DNAT to the endpoint. A connection of the endpoint to itself is masqueraded; otherwise its replies
    /// would not pass the node and would not be translated back.
    fn endpoint_rules(&self, target: Target) -> Vec<Rule> {
        let protocol = self.plan.protocol;
        let hairpin = self.named(Rule::jump(Fixed::MarkMasq).source(IpNet::from(target.ip)));
        let mut dnat = self.named(Rule::to(Action::Dnat(target)).protocol(protocol));
        if self.plan.affinity.is_some() {
            dnat = dnat.when(self.recent(target, None));
        }
        vec![hairpin, dnat.when(Match::Port { protocol, destination: None })]
    }

    /// A rule for a single endpoint, with the name of the Service port as its comment, unless there are very many.
    fn named(&self, rule: Rule) -> Rule {
        if self.settings.terse { rule } else { rule.comment(self.name.clone()) }
    }

    /// With `within`, matches clients that used the endpoint in the last so many seconds; without it, records the
    /// client.
    fn recent(&self, target: Target, within: Option<u32>) -> Match {
        let v6 = self.family == Family::V6;
        Match::Recent(Recent { list: self.endpoint_chain(target).into(), within, v6 })
    }

    /// `KUBE-SVC-` or `KUBE-SVL-`: marks packets to cluster IPs for masquerading, then selects an endpoint: with
    /// affinity the endpoint that the client used before, otherwise a random one.
    fn balance(&self, policy: TrafficPolicy, targets: &[Target]) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.plan.internal == policy {
            rules.extend(self.plan.frontends.iter().filter_map(|f| self.mark_cluster_ip(f)));
        }
        if let Some(seconds) = self.plan.affinity {
            rules.extend(targets.iter().map(|t| {
                self.named(Rule::jump(self.endpoint_chain(*t))).when(self.recent(*t, Some(seconds)))
            }));
        }
        for (i, target) in targets.iter().enumerate() {
            let rule = self.named(Rule::jump(self.endpoint_chain(*target)));
            let left = targets.len() - i;
            rules.push(if left > 1 { rule.when(Match::Random(Probability::one_in(left))) } else { rule });
        }
        rules
    }

    /// Marks packets to a cluster IP for masquerading: all packets with `masquerade_all`, otherwise those that are not
    /// from pods. `None` if packets from pods cannot be recognised, or if the frontend is not a cluster IP.
    fn mark_cluster_ip(&self, frontend: &Frontend) -> Option<Rule> {
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

    /// `KUBE-EXT-`. Policy Cluster: masquerades packets and forwards them to any endpoint. Policy Local: forwards
    /// packets from pods and from this node to any endpoint, all other packets to endpoints on this node only.
    fn external(&self, local: bool) -> Vec<Rule> {
        let name = &self.name;
        if self.plan.external == TrafficPolicy::Cluster {
            let comment = format!("masquerade traffic for {name} external destinations");
            return vec![Rule::jump(Fixed::MarkMasq).comment(comment), Rule::jump(self.chain(Role::Cluster))];
        }
        let mut rules = Vec::new();
        if !self.plan.cluster.is_empty() {
            let cluster = self.chain(Role::Cluster);
            if let Some(pods) = self.pods {
                let comment = format!("pod traffic for {name} external destinations");
                rules.push(pods.restrict(Rule::jump(cluster).comment(comment), false));
            }
            let from_node = |rule: Rule, verb: &str| {
                rule.comment(format!("{verb} LOCAL traffic for {name} external destinations"))
                    .when(Match::SourceIsLocal)
            };
            rules.push(from_node(Rule::jump(Fixed::MarkMasq), "masquerade"));
            rules.push(from_node(Rule::jump(cluster), "route"));
        }
        if local {
            rules.push(Rule::jump(self.chain(Role::Local)));
        }
        rules
    }

    /// `KUBE-FW-`: jumps to `KUBE-EXT-` for packets from the source ranges. All other packets are not translated, and
    /// `KUBE-PROXY-FIREWALL` drops them, because rules of the nat table must not drop packets.
    fn source_range_rules(&self) -> Vec<Rule> {
        let comment = format!("{} loadbalancer IP", self.name);
        let admit = |range| Rule::jump(self.chain(Role::External)).source(range).comment(comment.clone());
        let mut rules: Vec<Rule> = self.plan.source_ranges.iter().map(|r| admit(*r)).collect();
        if self.plan.admits_node {
            let vips = self.plan.frontends.iter().filter(|f| f.kind == FrontendKind::LoadBalancer);
            let vips = vips.filter_map(|f| f.address);
            let outside = vips.filter(|ip| !self.plan.source_ranges.iter().any(|r| r.contains(ip)));
            rules.extend(outside.map(|ip| admit(IpNet::from(ip))));
        }
        let comment = format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.name);
        rules.push(Rule::default().comment(comment));
        rules
    }

    /// Adds the rules of a frontend to shared chains: a jump to its chain, a rule that rejects or drops its packets, or
    /// both: with policy Local and no endpoint on this node, only packets from pods and from this node are forwarded.
    fn add_frontend(&self, out: &mut ServiceRules, frontend: &Frontend) {
        let restricted = frontend.kind == FrontendKind::LoadBalancer && self.restricts_sources();
        if self.is_forwarded(frontend.kind) {
            let chain = match (frontend.kind, self.plan.internal) {
                (FrontendKind::ClusterIp, TrafficPolicy::Cluster) => Role::Cluster,
                (FrontendKind::ClusterIp, TrafficPolicy::Local) => Role::Local,
                _ if restricted => Role::Guard,
                _ => Role::External,
            };
            self.add_jump(out, frontend, self.chain(chain));
            if restricted && let Some(ip) = frontend.address {
                let comment = format!("{} traffic not accepted by {}", self.name, self.chain(Role::Guard));
                let rule = Rule::to(Action::Drop).destination(IpNet::from(ip));
                let rule = rule.comment_then_port(comment, self.plan.protocol, frontend.port);
                out.shared.push((Shared::GUARDED, rule));
            }
        }
        match self.plan.outcome(frontend.kind) {
            Outcome::Balance(_) => {}
            Outcome::Reject => {
                let reject = refusal(self.family, Some(self.plan.protocol));
                self.add_refusal(out, frontend, reject, "has no endpoints");
            }
            Outcome::Drop => self.add_refusal(out, frontend, Action::Drop, "has no local endpoints"),
        }
    }

    fn add_jump(&self, out: &mut ServiceRules, frontend: &Frontend, chain: PortChain) {
        let (protocol, port) = (self.plan.protocol, frontend.port);
        let suffix = match frontend.kind {
            FrontendKind::ClusterIp => " cluster IP",
            FrontendKind::LoadBalancer => " loadbalancer IP",
            FrontendKind::ExternalIp => " external IP",
            FrontendKind::NodePort => "",
        };
        let rule = Rule::jump(chain).comment_then_port(format!("{}{suffix}", self.name), protocol, port);
        out.shared.push(match frontend.address {
            Some(ip) => (Shared::SERVICES, rule.destination(IpNet::from(ip))),
            None => (Shared::NODE_PORTS, rule),
        });
    }

    /// Adds rules that reject or drop the packets to a frontend.
    fn add_refusal(&self, out: &mut ServiceRules, frontend: &Frontend, action: Action, reason: &str) {
        let rule = Rule::to(action).comment(format!("{} {reason}", self.name));
        let (protocol, port) = (self.plan.protocol, frontend.port);
        match frontend.address {
            Some(ip) => {
                let external = frontend.kind != FrontendKind::ClusterIp;
                let shared = if external { Shared::REFUSED_EXTERNAL } else { Shared::REFUSED };
                out.shared.push((shared, rule.destination(IpNet::from(ip)).port(protocol, port)));
            }
            None => {
                let at_node = at_node_addresses(self.settings, self.family, &rule);
                let rules = at_node.into_iter().map(|r| (Shared::REFUSED_EXTERNAL, r.port(protocol, port)));
                out.shared.extend(rules);
            }
        }
    }
}
