//! From plans to servers, members of sets, and addresses.

use crate::marks::{Marks, Want};
use crate::servers::{DRAINED, Key, SHARE, Server};
use crate::sets::Set;
use portway_dataplane::{Scheduler, Settings};
use portway_model::{
    Family, Frontend, FrontendKind, Outcome, PortPlan, Protocol, ServiceName, ServicePlan, Target,
    TrafficPolicy,
};
use portway_netlink::ipset::Member;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

#[cfg(test)]
mod tests;

/// What a Service needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceObjects {
    /// Members of sets, none twice.
    pub members: Vec<(Set, Member)>,
    /// Virtual servers.
    pub servers: Vec<(Key, Server)>,
    /// Addresses on our device, none twice.
    pub addresses: Vec<IpAddr>,
}

impl ServiceObjects {
    /// The servers that have endpoints.
    pub fn served(&self) -> impl Iterator<Item = (Key, &Server)> {
        self.servers.iter().filter(|(_, server)| !server.is_empty()).map(|(key, server)| (*key, server))
    }

    /// Takes in another one.
    pub fn extend(&mut self, other: ServiceObjects) {
        self.members.extend(other.members);
        self.servers.extend(other.servers);
        self.addresses.extend(other.addresses);
    }
}

/// Everything that Services are rendered from besides their plans.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    /// The family.
    pub family: Family,
    /// The settings.
    pub settings: &'a Settings,
    /// The addresses that this machine has anyway.
    pub own: &'a BTreeSet<IpAddr>,
    /// The marks that were given.
    pub marks: &'a Marks,
    /// Schedulers that this kernel does not have.
    pub missing: &'a HashSet<Scheduler>,
    /// What the kernel would not have.
    pub refused: &'a RefusedParts,
}

/// Servers, or endpoints behind them, that the kernel would not have, and whose they are. The others are programmed.
pub type RefusedParts = HashMap<(Key, Option<Target>), ServiceName>;

impl RenderContext<'_> {
    /// What a Service needs.
    pub fn service_objects(&self, plan: &ServicePlan) -> ServiceObjects {
        let mut part = ServiceObjects::default();
        for port in &plan.ports {
            Port { world: self, plan, port }.render(&mut part);
        }
        if let Some(port) = plan.health_check {
            let member = Member { port: Some(port), ..Member::default() };
            part.members.push((Set::HealthCheckNodePort, member));
        }
        // An external IP that is this node's own, at the port that is its node port, is one server.
        let mut keys = HashSet::new();
        part.servers.retain(|(key, _)| keys.insert(*key));
        part.members.sort_unstable();
        part.members.dedup();
        part.addresses.sort_unstable();
        part.addresses.dedup();
        part
    }

    /// The marks that a Service needs.
    pub fn wants(&self, plan: &ServicePlan) -> Vec<Want> {
        plan.ports.iter().filter_map(|port| Port { world: self, plan, port }.wants()).collect()
    }

    /// Why a Service is programmed otherwise than it asks, if it is.
    pub fn degraded(&self, plan: &ServicePlan) -> Option<String> {
        let reasons = [self.unscheduled(plan), self.left_alone(plan), self.unmarked(plan)];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Addresses at which servers belong to other programs.
    fn left_alone(&self, plan: &ServicePlan) -> Option<String> {
        let addresses = plan.ports.iter().flat_map(|port| &port.frontends).filter_map(|f| f.address);
        let excluded: BTreeSet<IpAddr> = addresses.filter(|ip| self.is_excluded(*ip)).collect();
        let words: Vec<String> = excluded.iter().map(ToString::to_string).collect();
        let list = words.join(", ");
        (!list.is_empty()).then(|| format!("{list} is not programmed: it lies within ipvs.excludeCIDRs"))
    }

    /// There were no marks left.
    fn unmarked(&self, plan: &ServicePlan) -> Option<String> {
        let ports = plan.ports.iter().map(|port| Port { world: self, plan, port });
        let without = ports.filter(|port| port.wants().is_some() && port.mark().is_none()).count();
        (without > 0).then(|| {
            "spec.externalTrafficPolicy: Local: all marks are taken, so what begins on this node goes to endpoints \
             of this node only"
                .to_owned()
        })
    }

    fn is_excluded(&self, ip: IpAddr) -> bool {
        self.settings.ipvs.exclude.iter().any(|range| range.contains(&ip))
    }

    fn unscheduled(&self, plan: &ServicePlan) -> Option<String> {
        let asked = plan.scheduler.as_deref()?;
        let used = self.settings.ipvs.scheduler;
        let why = match Scheduler::parse(asked) {
            None => format!("is none of {}", Scheduler::names()),
            Some(known) if self.missing.contains(&known) => {
                format!("is not in this kernel: modprobe ip_vs_{known}")
            }
            Some(_) => return None,
        };
        let field = portway_model::SCHEDULER_ANNOTATION;
        Some(format!("metadata.annotations[{field}]: {asked:?} {why}; {used} is used instead"))
    }

    fn scheduler(&self, plan: &ServicePlan) -> Scheduler {
        let asked = plan.scheduler.as_deref().and_then(Scheduler::parse);
        asked.filter(|s| !self.missing.contains(s)).unwrap_or(self.settings.ipvs.scheduler)
    }

    /// Where a frontend answers. Servers of others are not ours to change.
    fn addresses(&self, frontend: &Frontend) -> Vec<IpAddr> {
        let all: Vec<IpAddr> = match frontend.address {
            Some(ip) => vec![ip],
            None => self.own.iter().copied().filter(|ip| self.settings.node_ports.contains(*ip)).collect(),
        };
        all.into_iter().filter(|ip| !self.is_excluded(*ip)).collect()
    }
}

struct Port<'a> {
    world: &'a RenderContext<'a>,
    plan: &'a ServicePlan,
    port: &'a PortPlan,
}

impl Port<'_> {
    fn render(&self, part: &mut ServiceObjects) {
        for frontend in &self.port.frontends {
            self.frontend(part, frontend);
        }
        if let Some(mark) = self.mark() {
            let mut server = self.by_mark(mark);
            if self.wants().is_none() {
                // Nothing new comes to it, but some may still have connections.
                server.targets.clear();
            }
            part.servers.push((Key::Mark(mark), server));
        }
        let here = self.port.cluster.iter().chain(&self.port.local);
        for target in here.filter(|t| self.port.here.contains(&t.ip)) {
            let member = Member { ip2: Some(target.ip), ..self.at(target.ip, target.port) };
            part.members.push((Set::LoopBack, member));
        }
    }

    fn frontend(&self, part: &mut ServiceObjects, frontend: &Frontend) {
        for ip in self.world.addresses(frontend) {
            let at = self.at(ip, frontend.port);
            let key = Key::At { protocol: self.port.protocol, ip, port: frontend.port };
            let server = match self.port.outcome(frontend.kind) {
                Outcome::Balance(targets) => self.server(key, targets),
                Outcome::Reject | Outcome::Drop => self.server(key, &[]),
            };
            match self.port.outcome(frontend.kind) {
                Outcome::Drop => part.members.push((Set::NoLocalEndpoints, at)),
                // No endpoint, or none that the kernel accepts.
                _ if !server.serves() => part.members.push((Set::NoEndpoints, at)),
                _ => {}
            }
            part.servers.push((key, server));
            if let Some(mark) = self.mark().filter(|_| self.port.has_short_cut(frontend.kind)) {
                part.members.push((Set::ShortCut, Member { mark: Some((mark, u32::MAX)), ..at }));
            }
            // An address that this machine has anyway stays where it is, with all else that answers there.
            if frontend.kind != FrontendKind::NodePort && !self.world.own.contains(&ip) {
                part.addresses.push(ip);
                part.members.push((Set::IpvsIps, Member { ip: Some(ip), ..Member::default() }));
            }
            self.kind(part, frontend.kind, at);
        }
    }

    /// The sets that a frontend's kind brings it into.
    fn kind(&self, part: &mut ServiceObjects, kind: FrontendKind, at: Member) {
        let local = self.port.external == TrafficPolicy::Local;
        let mut put = |set: Set, member: Member| part.members.push((set, member));
        match kind {
            FrontendKind::ClusterIp => put(Set::ClusterIp, at),
            FrontendKind::ExternalIp if local => put(Set::ExternalIpLocal, at),
            FrontendKind::ExternalIp => put(Set::ExternalIp, at),
            FrontendKind::LoadBalancer => {
                put(Set::LoadBalancer, at);
                if local {
                    put(Set::LoadBalancerLocal, at);
                }
                self.guard(part, at);
            }
            FrontendKind::NodePort => {
                put(Set::NodeIps, Member { ip: at.ip, ..Member::default() });
                let (all, locals) = Set::node_ports(self.port.protocol);
                let member = match self.port.protocol {
                    Protocol::Sctp => at,
                    _ => Member { port: at.port, ..Member::default() },
                };
                put(all, member);
                if local {
                    put(locals, member);
                }
            }
        }
    }

    /// A load-balancer IP that only some may reach.
    fn guard(&self, part: &mut ServiceObjects, at: Member) {
        if self.port.source_ranges.is_empty() {
            return;
        }
        part.members.push((Set::LoadBalancerFw, at));
        for range in &self.port.source_ranges {
            let member = Member { ip2: Some(range.addr()), cidr2: Some(range.prefix_len()), ..at };
            part.members.push((Set::LoadBalancerSourceCidr, member));
        }
        if self.port.admits_node {
            part.members.push((Set::LoadBalancerSourceIp, Member { ip2: at.ip, ..at }));
        }
    }

    fn mark(&self) -> Option<u32> {
        self.world.marks.get(&self.plan.name, &self.port.name, self.port.protocol)
    }

    /// A mark is needed where one destination has two sets of endpoints. While there are none it is kept, and the set has
    /// it, for connections may need its server, and the next run has to know whose that is.
    fn wants(&self) -> Option<Want> {
        let those = self.port.frontends.iter().filter(|f| self.port.has_short_cut(f.kind));
        let at = |f: &Frontend| {
            let at = |ip| (ip, f.port, self.port.protocol);
            self.world.addresses(f).into_iter().map(at).collect::<Vec<_>>()
        };
        let at: Vec<_> = those.flat_map(at).collect();
        let (port, protocol) = (self.port.name.clone(), self.port.protocol);
        (!at.is_empty()).then_some(Want { port, protocol, at })
    }

    /// The server of what begins here. One that is known by a mark would remember clients, but forget that endpoints have
    /// ports of their own (`ip_vs_sched_persist`); so a client sticks by a hash of its address.
    fn by_mark(&self, mark: u32) -> Server {
        let server = self.server(Key::Mark(mark), &self.port.cluster);
        match server.affinity {
            Some(_) if !self.world.missing.contains(&Scheduler::SourceHashing) => {
                Server { affinity: None, scheduler: Scheduler::SourceHashing, ..server }
            }
            _ => Server { affinity: None, ..server },
        }
    }

    fn server(&self, key: Key, targets: &[Target]) -> Server {
        // Flows that add_frontend to one that still answers may go on, but nothing new comes to it.
        let also = self.port.also_serving.iter().map(|t| (*t, DRAINED));
        let all = also.chain(targets.iter().map(|t| (*t, SHARE)));
        let refused = |part| self.world.refused.contains_key(&(key, part));
        let had = |target: Target| !refused(None) && !refused(Some(target));
        Server {
            protocol: self.port.protocol,
            scheduler: self.world.scheduler(self.plan),
            affinity: self.port.affinity,
            targets: all.filter(|(target, _)| had(*target)).collect(),
        }
    }

    fn at(&self, ip: IpAddr, port: u16) -> Member {
        let protocol = Some(self.port.protocol.number());
        Member { ip: Some(ip), port: Some(port), protocol, ..Member::default() }
    }
}
