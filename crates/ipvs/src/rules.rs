//! The rules for what ipvs cannot do, which are as many whatever the Services are: the sets know those.
//!
//! ipvs takes packets at the end of INPUT and, of this machine's own, between nat and filter of OUTPUT. So what must not
//! reach it is refused in filter's INPUT, and for this machine's own packets in mangle's OUTPUT; and what is to be
//! masqueraded is marked in nat before it comes there.

use crate::sets::Set;
use portway_dataplane::{LocalTraffic, Settings};
use portway_model::{Family, Protocol};
use portway_xtables::chains::{Chain, Fixed, Table};
use portway_xtables::desired::{Base, Hook};
use portway_xtables::fragments::{at_node_addresses, forward, refusal};
use portway_xtables::rules::{Action, Is, Lookup, Match, Rule, Sides, States, is, is_not};

/// A rule that asks a set.
fn ask(rule: Rule, family: Family, set: Set, sides: Sides) -> Rule {
    rule.in_set(set.name(family), sides)
}

/// All rules.
pub fn base(family: Family, settings: &Settings) -> Base {
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
    chain(Table::Filter, Fixed::ProxyFirewall, vec![context.guarded()]);
    chain(Table::Filter, Fixed::NodePort, vec![context.health_checks()]);
    chain(Table::Filter, Fixed::IpvsFilter, context.filter());
    chain(Table::Filter, Fixed::Forward, forward(settings));
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
    fn ask(self, rule: Rule, set: Set, sides: Sides) -> Rule {
        ask(rule, self.family, set, sides)
    }

    fn mark_masquerade(self) -> Rule {
        Rule::jump(Fixed::MarkMasq)
    }

    /// For packets of pods, in as many rules as it takes to tell them; none if they cannot be told.
    fn of_pods(self, rule: &Rule, not: bool) -> Vec<Rule> {
        let by = |name: &str| Rule { input: Some(Is { value: name.into(), not }), ..rule.clone() };
        match &self.settings.local {
            LocalTraffic::Unknown => Vec::new(),
            LocalTraffic::Cidrs(ranges) => {
                // A node has one range in each family.
                let own = ranges.iter().find(|r| Family::of(r.addr()) == self.family);
                own.map(|range| Rule { source: Some(Is { value: *range, not }), ..rule.clone() })
                    .into_iter()
                    .collect()
            }
            LocalTraffic::Interface(name) => vec![by(name)],
            LocalTraffic::InterfacePrefix(prefix) => vec![by(&format!("{prefix}+"))],
        }
    }

    /// nat: what is masqueraded where it is headed to.
    fn services(self) -> Vec<Rule> {
        use Sides::DestinationTwice as Both;
        let words = "Kubernetes service lb portal";
        let balancers = Rule::jump(Fixed::LoadBalancer).comment(words);
        let mut rules = vec![self.ask(balancers, Set::LoadBalancer, Both)];
        let words = "Kubernetes service cluster ip + port for masquerade purpose";
        let masquerade = self.ask(self.mark_masquerade().comment(words), Set::ClusterIp, Both);
        if self.settings.masquerade_all {
            rules.push(masquerade);
        } else {
            rules.extend(self.of_pods(&masquerade, true));
        }
        let words = "Kubernetes service external ip + port for masquerade and filter purpose";
        rules.push(self.ask(self.mark_masquerade().comment(words), Set::ExternalIp, Both));
        // A Service's address is this machine's too, but its ports are no node ports.
        let elsewhere = Lookup { set: Set::IpvsIps.name(self.family).into(), sides: Sides::Destination };
        let node_port = Rule::jump(Fixed::NodePort).when(Match::Set(is_not(elsewhere)));
        rules.extend(at_node_addresses(self.settings, self.family, &node_port));
        for set in [Set::ClusterIp, Set::LoadBalancer, Set::ExternalIp, Set::ExternalIpLocal] {
            // No rule of another program may translate it.
            rules.push(self.ask(Rule::to(Action::Accept), set, Both));
        }
        rules
    }

    /// nat: load-balancer IPs.
    fn load_balancers(self) -> Vec<Rule> {
        let words = "Kubernetes service load balancer ip + port with externalTrafficPolicy=local";
        let keeps = Rule::to(Action::Return).comment(words);
        vec![self.ask(keeps, Set::LoadBalancerLocal, Sides::DestinationTwice), self.mark_masquerade()]
    }

    /// nat: node ports.
    fn node_ports(self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let (all, local) = Set::node_ports(protocol);
            let sides = if protocol == Protocol::Sctp { Sides::DestinationTwice } else { Sides::Destination };
            let name = protocol.to_string();
            let words = format!("Kubernetes nodeport {name} port with externalTrafficPolicy=local");
            let keeps = Rule::to(Action::Return).protocol(protocol).comment(words);
            rules.push(self.ask(keeps, local, sides));
            let words = format!("Kubernetes nodeport {name} port for masquerade purpose");
            let masquerade = self.mark_masquerade().protocol(protocol).comment(words);
            rules.push(self.ask(masquerade, all, sides));
        }
        rules
    }

    /// nat: what leaves with this machine's address.
    fn postrouting(self) -> Vec<Rule> {
        let mark = self.settings.masquerade_mark;
        let words = "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose";
        let hairpin = Rule::to(Action::Masquerade).comment(words);
        let own = Rule::to(Action::Masquerade).comment("from an address of a Service, which every node has");
        let short_cut = Rule::to(Action::Masquerade).comment("from this node, with the mark of its server");
        vec![
            self.ask(hairpin, Set::LoopBack, Sides::DestinationTwiceSource),
            self.ask(own, Set::IpvsIps, Sides::Source),
            short_cut.when(Match::ConnectionMark { value: mark, mask: mark }),
            Rule::to(Action::Return).when(Match::Mark { value: mark, mask: mark, not: true }),
            Rule::to(Action::Mark { value: mark, mask: 0 }),
            Rule::to(Action::Masquerade).comment("kubernetes service traffic requiring SNAT"),
        ]
    }

    /// filter and mangle: load-balancer IPs that only some may reach.
    fn guarded(self) -> Rule {
        let words = "Kubernetes service load balancer ip + port for load balancer with sourceRange";
        let guarded = Rule::jump(Fixed::SourceRanges).comment(words);
        self.ask(guarded, Set::LoadBalancerFw, Sides::DestinationTwice)
    }

    /// Who may.
    fn source_ranges(self) -> Vec<Rule> {
        let admit = |words: &str| Rule::to(Action::Return).comment(words);
        let ranges = admit("Kubernetes service load balancer ip + port + source cidr for packet filter");
        let single =
            admit("Kubernetes service load balancer ip + port + source IP for packet filter purpose");
        let sides = Sides::DestinationTwiceSource;
        vec![
            self.ask(ranges, Set::LoadBalancerSourceCidr, sides),
            self.ask(single, Set::LoadBalancerSourceIp, sides),
            Rule::to(Action::Drop),
        ]
    }

    /// filter: ports at which load balancers ask for health.
    fn health_checks(self) -> Rule {
        let accept =
            Rule::to(Action::Accept).comment("Kubernetes health check node port").protocol(Protocol::Tcp);
        self.ask(accept, Set::HealthCheckNodePort, Sides::Destination)
    }

    /// filter: packets to frontends without endpoints, without local endpoints, or at unknown ports.
    fn filter(self) -> Vec<Rule> {
        use Sides::DestinationTwice as Both;
        let mut rules = Vec::new();
        let new = |rule: Rule| rule.when(Match::State(is(States::NEW)));
        for rule in self.refusals("no endpoints") {
            rules.push(self.ask(new(rule), Set::NoEndpoints, Both));
        }
        // What begins in a pod here may go elsewhere.
        let short_cut = self.ask(Rule::to(Action::Return), Set::ShortCut, Both);
        rules.extend(self.of_pods(&short_cut, false));
        let drop = new(Rule::to(Action::Drop).comment("no endpoint on this node"));
        rules.push(self.ask(drop, Set::NoLocalEndpoints, Both));
        for set in [Set::LoadBalancer, Set::ClusterIp, Set::ExternalIp, Set::ExternalIpLocal] {
            rules.push(self.ask(Rule::to(Action::Return), set, Both));
        }
        let health = Rule::to(Action::Return).protocol(Protocol::Tcp);
        rules.push(self.ask(health, Set::HealthCheckNodePort, Sides::Destination));
        for rule in self.refusals("no such port of a Service") {
            rules.push(self.ask(new(rule), Set::IpvsIps, Sides::Destination));
        }
        rules
    }

    /// Refuses what has ports; a ping is answered.
    fn refusals(self, words: &str) -> Vec<Rule> {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let refuse =
            |p: Protocol| Rule::to(refusal(self.family, Some(p))).protocol(p).comment(words.to_owned());
        all.map(refuse).into()
    }

    /// filter: addresses of Services that no Service has.
    fn unallocated(self) -> Vec<Rule> {
        let excluded =
            self.settings.ipvs.exclude.iter().filter(|range| Family::of(range.addr()) == self.family);
        let spare = excluded.map(|range| Rule::to(Action::Return).destination(range.trunc()));
        let drop = |range| {
            let rule = Rule::to(Action::Drop).destination(range).comment("not the address of any Service");
            rule.when(Match::DestinationIsElsewhere)
        };
        spare.chain(self.settings.service_cidrs(self.family).into_iter().map(drop)).collect()
    }

    /// mangle: of this machine's own packets, what must not reach ipvs.
    fn out_filter(self) -> Vec<Rule> {
        use Sides::DestinationTwice as Both;
        vec![
            self.guarded(),
            self.ask(Rule::to(Action::Return), Set::ShortCut, Both),
            self.ask(Rule::to(Action::Drop).comment("no endpoint on this node"), Set::NoLocalEndpoints, Both),
        ]
    }

    /// mangle: the mark of the server, where the destination alone does not name it. A mark that asks for masquerading has
    /// no place beside it, so for this machine's own packets the connection has that.
    fn schedule(self) -> Vec<Rule> {
        let mark = self.settings.masquerade_mark;
        let (sides, set) = (Sides::DestinationTwice, Set::ShortCut);
        let map = Rule::to(Action::MapMark(Lookup { set: set.name(self.family).into(), sides }));
        let masquerade = Rule::to(Action::ConnectionMark { value: mark, mask: mark });
        let mut rules = vec![self.ask(masquerade.when(Match::SourceIsLocal), set, sides)];
        rules.extend(self.of_pods(&map, false));
        rules.push(map.when(Match::SourceIsLocal));
        rules
    }
}

/// Where packets come to our chains.
fn hooks() -> Vec<Hook> {
    const PORTALS: &str = "kubernetes service portals";
    const FIREWALL: &str = "kube-proxy firewall rules";
    const ACCESS: &str = "kubernetes ipvs access filter";
    let mut hooks = Vec::new();
    let mut hook = |table, chain: &str, rule| hooks.push(Hook { table, chain: Chain::parse(chain), rule });
    let to = |chain: Fixed, words: &str| Rule::jump(chain).comment(words);
    let new =
        |chain: Fixed, words: &str| Rule::jump(chain).when(Match::State(is(States::NEW))).comment(words);
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
