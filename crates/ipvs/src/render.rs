//! Renders plans as virtual servers, members of sets, and addresses.

use crate::marks::{MarkRequest, Marks};
use crate::servers::{DRAINING_WEIGHT, Key, SERVING_WEIGHT, Server};
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

/// The kernel objects of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceObjects {
    /// Members of sets, none twice.
    pub members: Vec<(Set, Member)>,
    /// Virtual servers.
    pub servers: Vec<(Key, Server)>,
    /// Addresses on `kube-ipvs0`, none twice.
    pub addresses: Vec<IpAddr>,
}

impl ServiceObjects {
    /// The virtual servers that have endpoints.
    pub fn served(&self) -> impl Iterator<Item = (Key, &Server)> {
        self.servers.iter().filter(|(_, server)| !server.is_empty()).map(|(key, server)| (*key, server))
    }

    /// Adds the objects of another Service.
    pub fn extend(&mut self, other: ServiceObjects) {
        self.members.extend(other.members);
        self.servers.extend(other.servers);
        self.addresses.extend(other.addresses);
    }
}

/// The input of rendering besides the plans.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    /// The family.
    pub family: Family,
    /// The settings.
    pub settings: &'a Settings,
    /// The node's addresses on other devices than `kube-ipvs0`.
    pub node_addresses: &'a BTreeSet<IpAddr>,
    /// The assigned marks.
    pub marks: &'a Marks,
    /// Schedulers that this kernel does not have.
    pub missing_schedulers: &'a HashSet<Scheduler>,
    /// Objects to leave out.
    pub refused_objects: &'a RefusedObjects,
}

/// The objects that the kernel refused, with their Services. They are left out.
pub type RefusedObjects = HashMap<RefusedObject, ServiceName>;

/// An object that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusedObject {
    /// A virtual server.
    Server(Key),
    /// A real server of a virtual server.
    Target(Key, Target),
    /// An address on `kube-ipvs0`.
    Address(IpAddr),
}

impl RenderContext<'_> {
    /// The kernel objects of a Service.
    pub fn service_objects(&self, plan: &ServicePlan) -> ServiceObjects {
        let mut objects = ServiceObjects::default();
        for port in &plan.ports {
            Port { context: self, plan, port }.render(&mut objects);
        }
        if let Some(port) = plan.health_check {
            let member = Member { port: Some(port), ..Member::default() };
            objects.members.push((Set::HealthCheckNodePort, member));
        }
        // Two frontends share a virtual server if an external IP is an address of this node and the port is the node
        // port.
        let mut keys = HashSet::new();
        objects.servers.retain(|(key, _)| keys.insert(*key));
        objects.members.sort_unstable();
        objects.members.dedup();
        objects.addresses.sort_unstable();
        objects.addresses.dedup();
        objects
    }

    /// The marks that a Service needs.
    pub fn mark_requests(&self, plan: &ServicePlan) -> Vec<MarkRequest> {
        plan.ports.iter().filter_map(|port| Port { context: self, plan, port }.mark_request()).collect()
    }

    /// The reason why a Service is not programmed as it asks, if there is one.
    pub fn degraded(&self, plan: &ServicePlan) -> Option<String> {
        let reasons = [self.unusable_scheduler(plan), self.missing_mark(plan)];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// The shortcut of policy Local is missing because no mark was free.
    fn missing_mark(&self, plan: &ServicePlan) -> Option<String> {
        let ports = plan.ports.iter().map(|port| Port { context: self, plan, port });
        let without = ports.filter(|port| port.mark_request().is_some() && port.mark().is_none()).count();
        (without > 0).then(|| {
            "spec.externalTrafficPolicy: Local: all firewall marks are in use, so connections of this node and its pods \
             use only endpoints on this node"
                .to_owned()
        })
    }

    fn unusable_scheduler(&self, plan: &ServicePlan) -> Option<String> {
        let asked = plan.scheduler.as_deref()?;
        let used = self.settings.ipvs.scheduler;
        let why = match Scheduler::parse(asked) {
            None => format!("is none of {}", Scheduler::names()),
            Some(known) if self.missing_schedulers.contains(&known) => {
                format!("is not in this kernel: modprobe ip_vs_{known}")
            }
            Some(_) => return None,
        };
        let field = portway_model::SCHEDULER_ANNOTATION;
        Some(format!("metadata.annotations[{field}]: {asked:?} {why}; {used} is used instead"))
    }

    fn scheduler(&self, plan: &ServicePlan) -> Scheduler {
        let asked = plan.scheduler.as_deref().and_then(Scheduler::parse);
        asked.filter(|s| !self.missing_schedulers.contains(s)).unwrap_or(self.settings.ipvs.scheduler)
    }

    /// The addresses of a frontend.
    fn addresses(&self, frontend: &Frontend) -> Vec<IpAddr> {
        let own = self.node_addresses.iter().copied();
        match frontend.address {
            Some(ip) => vec![ip],
            None => own.filter(|ip| self.settings.node_ports.contains(*ip)).collect(),
        }
    }
}

struct Port<'a> {
    context: &'a RenderContext<'a>,
    plan: &'a ServicePlan,
    port: &'a PortPlan,
}

impl Port<'_> {
    fn render(&self, objects: &mut ServiceObjects) {
        for frontend in &self.port.frontends {
            self.render_frontend(objects, frontend);
        }
        if let Some(mark) = self.mark() {
            let mut server = self.server_by_mark(mark);
            if self.mark_request().is_none() {
                // It gets no new connections, but its endpoints may still have some.
                server.targets.clear();
            }
            objects.servers.push((Key::Mark(mark), server));
        }
        let here = self.port.cluster.iter().chain(&self.port.local);
        for target in here.filter(|t| self.port.here.contains(&t.ip)) {
            let member = Member { ip2: Some(target.ip), ..self.member(target.ip, target.port) };
            objects.members.push((Set::LoopBack, member));
        }
    }

    fn render_frontend(&self, objects: &mut ServiceObjects, frontend: &Frontend) {
        for ip in self.context.addresses(frontend) {
            let member = self.member(ip, frontend.port);
            let key = Key::Address { protocol: self.port.protocol, ip, port: frontend.port };
            let server = match self.port.outcome(frontend.kind) {
                Outcome::Balance(targets) => self.server(key, targets),
                Outcome::Reject | Outcome::Drop => self.server(key, &[]),
            };
            match self.port.outcome(frontend.kind) {
                Outcome::Drop => objects.members.push((Set::NoLocalEndpoints, member)),
                // No endpoint, or none that the kernel accepts.
                _ if !server.serves() => objects.members.push((Set::NoEndpoints, member)),
                _ => {}
            }
            objects.servers.push((key, server));
            if let Some(mark) = self.mark().filter(|_| self.port.has_short_cut(frontend.kind)) {
                objects.members.push((Set::ShortCut, Member { mark: Some((mark, u32::MAX)), ..member }));
            }
            // An address that the node has on another device stays there, and other programs may listen at it.
            let refused = self.context.refused_objects.contains_key(&RefusedObject::Address(ip));
            let on_device = frontend.kind != FrontendKind::NodePort && !refused;
            if on_device && !self.context.node_addresses.contains(&ip) {
                objects.addresses.push(ip);
                objects.members.push((Set::IpvsIps, Member { ip: Some(ip), ..Member::default() }));
            }
            self.add_to_sets(objects, frontend.kind, member);
        }
    }

    /// Adds a frontend to the sets of its kind.
    fn add_to_sets(&self, objects: &mut ServiceObjects, kind: FrontendKind, member: Member) {
        let local = self.port.external == TrafficPolicy::Local;
        let mut insert = |set: Set, member: Member| objects.members.push((set, member));
        match kind {
            FrontendKind::ClusterIp => insert(Set::ClusterIp, member),
            FrontendKind::ExternalIp if local => insert(Set::ExternalIpLocal, member),
            FrontendKind::ExternalIp => insert(Set::ExternalIp, member),
            FrontendKind::LoadBalancer => {
                insert(Set::LoadBalancer, member);
                if local {
                    insert(Set::LoadBalancerLocal, member);
                }
                self.restrict_sources(objects, member);
            }
            FrontendKind::NodePort => {
                insert(Set::NodeIps, Member { ip: member.ip, ..Member::default() });
                let (all, locals) = Set::node_ports(self.port.protocol);
                let node_port = match self.port.protocol {
                    Protocol::Sctp => member,
                    _ => Member { port: member.port, ..Member::default() },
                };
                insert(all, node_port);
                if local {
                    insert(locals, node_port);
                }
            }
        }
    }

    /// Adds a load-balancer IP with source ranges to the sets of the firewall.
    fn restrict_sources(&self, objects: &mut ServiceObjects, member: Member) {
        if self.port.source_ranges.is_empty() {
            return;
        }
        objects.members.push((Set::LoadBalancerFw, member));
        for range in &self.port.source_ranges {
            let with_range = Member { ip2: Some(range.addr()), cidr2: Some(range.prefix_len()), ..member };
            objects.members.push((Set::LoadBalancerSourceCidr, with_range));
        }
        if self.port.admits_node {
            objects.members.push((Set::LoadBalancerSourceIp, Member { ip2: member.ip, ..member }));
        }
    }

    fn mark(&self) -> Option<u32> {
        self.context.marks.get(&self.plan.name, &self.port.name, self.port.protocol)
    }

    /// The mark that the port needs, if it has frontends with a shortcut. The mark stays in the set while there are no
    /// endpoints, because draining connections need its virtual server, which is recognised by the mark after a
    /// restart.
    fn mark_request(&self) -> Option<MarkRequest> {
        let with_short_cut = self.port.frontends.iter().filter(|f| self.port.has_short_cut(f.kind));
        let marked = |f: &Frontend| {
            let marked = |ip| (ip, f.port, self.port.protocol);
            self.context.addresses(f).into_iter().map(marked).collect::<Vec<_>>()
        };
        let frontends: Vec<_> = with_short_cut.flat_map(marked).collect();
        let (port, protocol) = (self.port.name.clone(), self.port.protocol);
        (!frontends.is_empty()).then_some(MarkRequest { port, protocol, frontends })
    }

    /// The virtual server for connections of this node and its pods. With persistence, a virtual server with a mark
    /// would send clients to the Service's port instead of the endpoint's (`ip_vs_sched_persist`), so affinity is
    /// provided by a hash of the client's address.
    fn server_by_mark(&self, mark: u32) -> Server {
        let server = self.server(Key::Mark(mark), &self.port.cluster);
        match server.affinity {
            Some(_) if !self.context.missing_schedulers.contains(&Scheduler::SourceHashing) => {
                Server { affinity: None, scheduler: Scheduler::SourceHashing, ..server }
            }
            _ => Server { affinity: None, ..server },
        }
    }

    fn server(&self, key: Key, targets: &[Target]) -> Server {
        // Endpoints that are still serving keep their UDP flows and get no new ones.
        let also = self.port.also_serving.iter().map(|t| (*t, DRAINING_WEIGHT));
        let all = also.chain(targets.iter().map(|t| (*t, SERVING_WEIGHT)));
        let refused = |object| self.context.refused_objects.contains_key(&object);
        let is_accepted = |target: Target| {
            !refused(RefusedObject::Server(key)) && !refused(RefusedObject::Target(key, target))
        };
        Server {
            protocol: self.port.protocol,
            scheduler: self.context.scheduler(self.plan),
            affinity: self.port.affinity,
            targets: all.filter(|(target, _)| is_accepted(*target)).collect(),
        }
    }

    fn member(&self, ip: IpAddr, port: u16) -> Member {
        let protocol = Some(self.port.protocol.number());
        Member { ip: Some(ip), port: Some(port), protocol, ..Member::default() }
    }
}
