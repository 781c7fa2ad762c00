//! The rules that ipvs needs besides virtual servers. Their number does not depend on the Services, which are in sets.
//!
//! ipvs handles packets at the end of INPUT, and packets of the node itself in OUTPUT between the tables nat and
//! filter. So packets that must not reach ipvs are rejected or dropped in filter INPUT, and packets of the node itself
//! in mangle OUTPUT. Packets to be masqueraded are marked in nat, which comes before ipvs.

use crate::sets::Set;
use portway_dataplane::{LocalTraffic, Settings};
use portway_model::{Family, Protocol};
use portway_xtables::chains::{Chain, Fixed, Table};
use portway_xtables::desired::{Abilities, Base, Hook};
use portway_xtables::fragments::{at_node_addresses, forward, refusal};
use portway_xtables::rules::{Action, Is, Lookup, Match, Rule, Sides, States, is, is_not};

/// Adds the match of a set to a rule.
fn in_set(rule: Rule, family: Family, set: Set, sides: Sides) -> Rule {
    rule.in_set(set.name(family), sides)
}

/// All chains and rules of a family.
pub fn base(family: Family, settings: &Settings, abilities: Abilities) -> Base {
    let context = Context { family, settings };
    let mut chains = Vec::new();
    let mut chain = |table, name, rules| chains.push((table, name, rules));
    let mark = settings.masquerade_mark;
    chain(Table::Nat, Fixed::MarkMasq, vec![Rule::to(Action::Mark { value: mark, mask: mark })]);
    chain(Table::Nat, Fixed::Postrouting, context.postrouting());
    chain(Table::Nat, Fixed::LoadBalancer, context.load_balancers());
    chain(Table::Nat, Fixed::NodePort, context.node_ports());
    chain(Table::Nat, Fixed::Services, context.services());

    chain(Table::Filter, Fixed::SourceRanges, context.source_ranges());
    chain(Table::Filter, Fixed::ProxyFirewall, vec![context.check_source_ranges()]);
    chain(Table::Filter, Fixed::NodePort, vec![context.health_checks()]);
    chain(Table::Filter, Fixed::IpvsFilter, context.filter());
    chain(Table::Filter, Fixed::Forward, forward(settings, abilities));
    chain(Table::Filter, Fixed::Services, context.unallocated());

    chain(Table::Mangle, Fixed::SourceRanges, context.source_ranges());
    chain(Table::Mangle, Fixed::IpvsOutFilter, context.out_filter());
    chain(Table::Mangle, Fixed::IpvsSchedule, context.schedule());
    chain(Table::Mangle, Fixed::Canary, Vec::new());
    Base { chains, hooks: hooks() }
}

#[derive(Clone, Copy)]
struct Context<'a> {
    family: Family,
    settings: &'a Settings,
}

impl Context<'_> {
    fn in_set(self, rule: Rule, set: Set, sides: Sides) -> Rule {
        in_set(rule, self.family, set, sides)
    }

    fn mark_masquerade(self) -> Rule {
        Rule::jump(Fixed::MarkMasq)
    }

    /// The rule for packets from pods of this node, or with `not` for all others; none if the settings do not define
    /// which packets are from pods.
    fn with_pod_source(self, rule: &Rule, not: bool) -> Vec<Rule> {
        let by = |name: &str| Rule { input: Some(Is { value: name.into(), not }), ..rule.clone() };
        match &self.settings.local {
            LocalTraffic::Unknown => Vec::new(),
            LocalTraffic::Cidrs(ranges) => {
                // A node has one pod range in each family.
                let own = ranges.iter().find(|r| Family::of(r.addr()) == self.family);
                own.map(|range| Rule { source: Some(Is { value: *range, not }), ..rule.clone() })
                    .into_iter()
                    .collect()
            }
            LocalTraffic::Interface(name) => vec![by(name)],
            LocalTraffic::InterfacePrefix(prefix) => vec![by(&format!("{prefix}+"))],
        }
    }

    /// nat: marks packets to Services for masquerading.
    fn services(self) -> Vec<Rule> {
        use Sides::DestinationTwice as Both;
        let comment = "Kubernetes service lb portal";
        let balancers = Rule::jump(Fixed::LoadBalancer).comment(comment);
        let mut rules = vec![self.in_set(balancers, Set::LoadBalancer, Both)];
        let comment = "Kubernetes service cluster ip + port for masquerade purpose";
        let masquerade = self.in_set(self.mark_masquerade().comment(comment), Set::ClusterIp, Both);
        if self.settings.masquerade_all {
            rules.push(masquerade);
        } else {
            rules.extend(self.with_pod_source(&masquerade, true));
        }
        let comment = "Kubernetes service external ip + port for masquerade and filter purpose";
        rules.push(self.in_set(self.mark_masquerade().comment(comment), Set::ExternalIp, Both));
        // Addresses of Services are local addresses too, but have no node ports.
        let service_ips = Lookup { set: Set::IpvsIps.name(self.family).into(), sides: Sides::Destination };
        let node_port = Rule::jump(Fixed::NodePort).when(Match::Set(is_not(service_ips)));
        rules.extend(at_node_addresses(self.settings, self.family, &node_port));
        for set in [Set::ClusterIp, Set::LoadBalancer, Set::ExternalIp, Set::ExternalIpLocal] {
            // Keeps nat rules of other programs from translating the packet.
            rules.push(self.in_set(Rule::to(Action::Accept), set, Both));
        }
        rules
    }

    /// nat: load-balancer IPs.
    fn load_balancers(self) -> Vec<Rule> {
        let comment = "Kubernetes service load balancer ip + port with externalTrafficPolicy=local";
        let keep_source = Rule::to(Action::Return).comment(comment);
        vec![
            self.in_set(keep_source, Set::LoadBalancerLocal, Sides::DestinationTwice),
            self.mark_masquerade(),
        ]
    }

    /// nat: node ports.
    fn node_ports(self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let (all, local) = Set::node_ports(protocol);
            let sides = if protocol == Protocol::Sctp { Sides::DestinationTwice } else { Sides::Destination };
            let name = protocol.to_string();
            let comment = format!("Kubernetes nodeport {name} port with externalTrafficPolicy=local");
            let keep_source = Rule::to(Action::Return).protocol(protocol).comment(comment);
            rules.push(self.in_set(keep_source, local, sides));
            let comment = format!("Kubernetes nodeport {name} port for masquerade purpose");
            let masquerade = self.mark_masquerade().protocol(protocol).comment(comment);
            rules.push(self.in_set(masquerade, all, sides));
        }
        rules
    }

    /// nat: masquerades hairpin connections and marked packets.
    fn postrouting(self) -> Vec<Rule> {
        let mark = self.settings.masquerade_mark;
        let comment = "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose";
        let hairpin = Rule::to(Action::Masquerade).comment(comment);
        let service_source =
            Rule::to(Action::Masquerade).comment("from an address of a Service, which every node has");
        let short_cut = Rule::to(Action::Masquerade).comment("from this node, with the mark of its server");
        vec![
            self.in_set(hairpin, Set::LoopBack, Sides::DestinationTwiceSource),
            self.in_set(service_source, Set::IpvsIps, Sides::Source),
            short_cut.when(Match::ConnectionMark { value: mark, mask: mark }),
            Rule::to(Action::Return).when(Match::Mark { value: mark, mask: mark, not: true }),
            Rule::to(Action::Mark { value: mark, mask: 0 }),
            Rule::to(Action::Masquerade).comment("kubernetes service traffic requiring SNAT"),
        ]
    }

    /// filter and mangle: load-balancer IPs with source ranges.
    fn check_source_ranges(self) -> Rule {
        let comment = "Kubernetes service load balancer ip + port for load balancer with sourceRange";
        let jump = Rule::jump(Fixed::SourceRanges).comment(comment);
        self.in_set(jump, Set::LoadBalancerFw, Sides::DestinationTwice)
    }

    /// filter and mangle: drops packets from outside of the source ranges.
    fn source_ranges(self) -> Vec<Rule> {
        let accept = |comment: &str| Rule::to(Action::Return).comment(comment);
        let ranges = accept("Kubernetes service load balancer ip + port + source cidr for packet filter");
        let single =
            accept("Kubernetes service load balancer ip + port + source IP for packet filter purpose");
        let sides = Sides::DestinationTwiceSource;
        vec![
            self.in_set(ranges, Set::LoadBalancerSourceCidr, sides),
            self.in_set(single, Set::LoadBalancerSourceIp, sides),
            Rule::to(Action::Drop),
        ]
    }

    /// filter: accepts packets to health-check node ports.
    fn health_checks(self) -> Rule {
        let accept =
            Rule::to(Action::Accept).comment("Kubernetes health check node port").protocol(Protocol::Tcp);
        self.in_set(accept, Set::HealthCheckNodePort, Sides::Destination)
    }

    /// filter: packets to frontends without endpoints, without local endpoints, or at unknown ports.
    fn filter(self) -> Vec<Rule> {
        use Sides::DestinationTwice as Both;
        let mut rules = Vec::new();
        let new = |rule: Rule| rule.when(Match::State(is(States::NEW)));
        for rule in self.rejections("no endpoints") {
            rules.push(self.in_set(new(rule), Set::NoEndpoints, Both));
        }
        // Connections of pods on this node may use endpoints on other nodes.
        let short_cut = self.in_set(Rule::to(Action::Return), Set::ShortCut, Both);
        rules.extend(self.with_pod_source(&short_cut, false));
        let drop = new(Rule::to(Action::Drop).comment("no endpoint on this node"));
        rules.push(self.in_set(drop, Set::NoLocalEndpoints, Both));
        for set in [Set::LoadBalancer, Set::ClusterIp, Set::ExternalIp, Set::ExternalIpLocal] {
            rules.push(self.in_set(Rule::to(Action::Return), set, Both));
        }
        let health = Rule::to(Action::Return).protocol(Protocol::Tcp);
        rules.push(self.in_set(health, Set::HealthCheckNodePort, Sides::Destination));
        for rule in self.rejections("no such port of a Service") {
            rules.push(self.in_set(new(rule), Set::IpvsIps, Sides::Destination));
        }
        rules
    }

    /// Rules that reject TCP, UDP and SCTP; a ping is answered.
    fn rejections(self, comment: &str) -> Vec<Rule> {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let reject =
            |p: Protocol| Rule::to(refusal(self.family, Some(p))).protocol(p).comment(comment.to_owned());
        all.map(reject).into()
    }

    /// filter: drops packets to unallocated addresses of the ServiceCIDRs.
    fn unallocated(self) -> Vec<Rule> {
        let excluded =
            self.settings.ipvs.exclude.iter().filter(|range| Family::of(range.addr()) == self.family);
        let exceptions = excluded.map(|range| Rule::to(Action::Return).destination(range.trunc()));
        let drop = |range| {
            let rule = Rule::to(Action::Drop).destination(range).comment("not the address of any Service");
            rule.when(Match::DestinationIsNotLocal)
        };
        exceptions.chain(self.settings.service_cidrs(self.family).into_iter().map(drop)).collect()
    }

    /// mangle: drops packets of the node itself that must not reach ipvs.
    fn out_filter(self) -> Vec<Rule> {
        use Sides::DestinationTwice as Both;
        vec![
            self.check_source_ranges(),
            self.in_set(Rule::to(Action::Return), Set::ShortCut, Both),
            self.in_set(
                Rule::to(Action::Drop).comment("no endpoint on this node"),
                Set::NoLocalEndpoints,
                Both,
            ),
        ]
    }

    /// mangle: sets the mark of the virtual server for connections of this node and its pods to frontends with policy
    /// Local. It replaces the masquerade mark of the packet, so for packets of the node itself the connection gets
    /// that mark.
    fn schedule(self) -> Vec<Rule> {
        let mark = self.settings.masquerade_mark;
        let (sides, set) = (Sides::DestinationTwice, Set::ShortCut);
        let map = Rule::to(Action::MapMark(Lookup { set: set.name(self.family).into(), sides }));
        let masquerade = Rule::to(Action::ConnectionMark { value: mark, mask: mark });
        let mut rules = vec![self.in_set(masquerade.when(Match::SourceIsLocal), set, sides)];
        rules.extend(self.with_pod_source(&map, false));
        rules.push(map.when(Match::SourceIsLocal));
        rules
    }
}

/// The jumps from built-in chains.
fn hooks() -> Vec<Hook> {
    const PORTALS: &str = "kubernetes service portals";
    const FIREWALL: &str = "kube-proxy firewall rules";
    const ACCESS: &str = "kubernetes ipvs access filter";
    let mut hooks = Vec::new();
    let mut hook = |table, chain: &str, rule| hooks.push(Hook { table, chain: Chain::parse(chain), rule });
    let to = |chain: Fixed, comment: &str| Rule::jump(chain).comment(comment);
    let new =
        |chain: Fixed, comment: &str| Rule::jump(chain).when(Match::State(is(States::NEW))).comment(comment);
    hook(Table::Nat, "PREROUTING", to(Fixed::Services, PORTALS));
    hook(Table::Nat, "OUTPUT", to(Fixed::Services, PORTALS));
    hook(Table::Nat, "POSTROUTING", to(Fixed::Postrouting, "kubernetes postrouting rules"));

    hook(Table::Filter, "INPUT", new(Fixed::ProxyFirewall, FIREWALL));
    hook(Table::Filter, "INPUT", to(Fixed::NodePort, "kubernetes health check rules"));
    hook(Table::Filter, "INPUT", to(Fixed::IpvsFilter, ACCESS));
    hook(Table::Filter, "FORWARD", to(Fixed::Forward, "kubernetes forwarding rules"));
    hook(Table::Filter, "FORWARD", new(Fixed::Services, PORTALS));
    hook(Table::Filter, "OUTPUT", new(Fixed::Services, PORTALS));

    hook(Table::Mangle, "INPUT", to(Fixed::IpvsSchedule, "kubernetes ipvs servers by mark"));
    hook(Table::Mangle, "OUTPUT", new(Fixed::IpvsOutFilter, ACCESS));
    hook(Table::Mangle, "OUTPUT", to(Fixed::IpvsSchedule, "kubernetes ipvs servers by mark"));
    hooks
}
