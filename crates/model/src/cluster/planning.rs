//! Computes plans from the state of the cluster.

use super::{Cluster, HealthCheck, ServiceChange};
use crate::api;
use crate::claims::Claim;
use crate::ingest::{Port, Service, Slice};
use crate::plan::{Frontend, FrontendKind, PortPlan, ServicePlan};
use crate::select;
use crate::types::{Family, Protocol, ServiceName, TrafficPolicy};
use ipnet::IpNet;
use portway_api::{ObjectMeta, Resource};
use std::collections::HashSet;
use std::net::IpAddr;

impl Cluster {
    pub(super) fn plan(&mut self, name: ServiceName) -> ServiceChange {
        let nothing = |name| ServiceChange { name, plans: [None, None] };
        self.health.remove(&name);
        self.find_conflicts(&name);
        let Some(service) = self.services.get(&name) else { return nothing(name) };
        let keys = self.slices_of.get(&name).into_iter().flatten();
        let slices: Vec<&Slice> = keys.filter_map(|key| Some(&self.slices.get(key)?.slice)).collect();
        if let Some(port) = self.health_check(&name, service) {
            let families = service.cluster_ips.iter().map(|ip| Family::of(*ip));
            let local_endpoints = families.map(|f| (f, local_ready(service, &slices, f))).collect();
            self.health.insert(name.clone(), HealthCheck { port, local_endpoints });
        }
        let plans = Family::ALL.map(|family| self.service_plan(&name, service, &slices, family));
        ServiceChange { name, plans }
    }

    /// Reports the addresses and ports of a Service that another Service holds.
    fn find_conflicts(&mut self, name: &ServiceName) {
        let service = self.services.get(name);
        let conflicts = service.map(|service| self.claims.conflicts(name, service)).unwrap_or_default();
        let meta = ObjectMeta {
            namespace: name.namespace().to_owned(),
            name: name.name().to_owned(),
            uid: self.service_uid(name).to_owned(),
            ..ObjectMeta::default()
        };
        self.set_conflicts(api::Service::TYPE, &meta, name.as_str(), conflicts);
    }

    fn health_check(&self, name: &ServiceName, service: &Service) -> Option<u16> {
        service.health_check.filter(|p| self.claims.holds(name, Claim::HealthCheck(*p)))
    }

    fn service_plan(
        &self,
        name: &ServiceName,
        service: &Service,
        slices: &[&Slice],
        family: Family,
    ) -> Option<ServicePlan> {
        if !service.cluster_ips.iter().any(|ip| Family::of(*ip) == family) {
            return None;
        }
        let port_plan = |port| self.port_plan(name, service, port, slices, family);
        let ports: Box<[PortPlan]> = service.ports.iter().map(port_plan).collect();
        let reachable = ports.iter().any(|p| !p.frontends.is_empty());
        let health_check = self.health_check(name, service);
        reachable.then(|| ServicePlan {
            name: name.clone(),
            family,
            ports,
            health_check,
            scheduler: service.scheduler.clone(),
            proxy_protocol: service.proxy_protocol.clone(),
        })
    }

    fn port_plan(
        &self,
        name: &ServiceName,
        service: &Service,
        port: &Port,
        slices: &[&Slice],
        family: Family,
    ) -> PortPlan {
        let all = select::candidates(slices.iter().copied(), family, &port.name, port.protocol);
        let cluster = select::cluster(&all, |zones| self.in_zone(zones));
        let wants_local = [service.internal, service.external].contains(&TrafficPolicy::Local);
        let local = if wants_local { select::local(&all) } else { Box::default() };
        let used = |t: &_| cluster.binary_search(t).is_ok() || local.binary_search(t).is_ok();
        let udp = port.protocol == Protocol::Udp;
        let source_ranges: Box<[IpNet]> =
            service.source_ranges.iter().filter(|r| Family::of(r.addr()) == family).copied().collect();
        PortPlan {
            name: port.name.clone(),
            protocol: port.protocol,
            frontends: frontends(service, port, family, |claim| self.claims.holds(name, claim)),
            also_serving: if udp { select::also_serving(&all, used) } else { Box::default() },
            here: select::here(&all, used),
            internal: service.internal,
            external: service.external,
            affinity: service.affinity,
            admits_node: source_ranges.iter().any(|r| self.node.addresses.iter().any(|a| r.contains(a))),
            source_ranges,
            cluster,
            local,
        }
    }

    fn in_zone(&self, zones: u16) -> bool {
        let Some(zone) = &self.node.zone else { return false };
        let list = (zones as usize).checked_sub(1).and_then(|i| self.zone_lists.get(i));
        list.is_some_and(|zones| zones.iter().any(|z| **z == **zone))
    }
}

fn local_ready(service: &Service, slices: &[&Slice], family: Family) -> usize {
    let mut ips = HashSet::new();
    for port in &service.ports {
        let all = select::candidates(slices.iter().copied(), family, &port.name, port.protocol);
        ips.extend(select::local_ready(&all));
    }
    ips.len()
}

/// The frontends of a port: the addresses and node ports that its Service specifies and holds.
fn frontends(
    service: &Service,
    port: &Port,
    family: Family,
    holds: impl Fn(Claim) -> bool,
) -> Box<[Frontend]> {
    let mut all: Vec<Frontend> = Vec::new();
    let lists: [(FrontendKind, &[IpAddr]); 3] = [
        (FrontendKind::ClusterIp, &service.cluster_ips),
        (FrontendKind::LoadBalancer, &service.load_balancer_ips),
        (FrontendKind::ExternalIp, &service.external_ips),
    ];
    for (kind, ips) in lists {
        for ip in ips.iter().filter(|ip| Family::of(**ip) == family) {
            let claim = match kind {
                FrontendKind::ClusterIp => Claim::ClusterIp(*ip),
                _ => Claim::Address(*ip, port.protocol, port.port),
            };
            if holds(claim) && !all.iter().any(|f| f.address == Some(*ip)) {
                all.push(Frontend { kind, address: Some(*ip), port: port.port });
            }
        }
    }
    let node_port = port.node_port.filter(|n| holds(Claim::NodePort(port.protocol, *n)));
    all.extend(node_port.map(|port| Frontend { kind: FrontendKind::NodePort, address: None, port }));
    all.into()
}
