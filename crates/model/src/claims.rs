//! Which Service holds which address.
//!
//! Two Services cannot be served at the same address and port, and a cluster IP belongs to one Service only. Each
//! address and node port is held separately: a Service that does not get one keeps its other ones. The first holder
//! keeps an address, so that working rules stay in force; a later Service waits, and takes over when the holder
//! releases it. At the start all Services are new: the older Service is first, and by name among Services of the same
//! age, so that every start decides in the same way.
//!
//! A cluster IP always wins over external and load-balancer IPs, in every order of arrival: these are set by users of a
//! namespace and by load balancers, and must not divert the traffic of another Service (the idea of CVE-2020-8554).

use crate::ingest::{Fault, Service};
use crate::types::{Protocol, ServiceName};
use std::collections::HashMap;
use std::net::IpAddr;

/// The class of a conflict, for metrics.
const CONFLICT: &str = "conflict";

/// An address or port that only one Service can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    ClusterIp(IpAddr),
    Address(IpAddr, Protocol, u16),
    NodePort(Protocol, u16),
    HealthCheck(u16),
}

impl Claim {
    fn describe(self) -> String {
        match self {
            Claim::ClusterIp(ip) => ip.to_string(),
            Claim::Address(ip, protocol, port) => format!("{ip} port {port}/{protocol}"),
            Claim::NodePort(protocol, port) => format!("node port {port}/{protocol}"),
            Claim::HealthCheck(port) => format!("node port {port}/TCP"),
        }
    }
}

/// The claims of a Service, each once, with the field that makes the claim.
pub(crate) fn of(service: &Service) -> Vec<(Claim, String)> {
    let mut all: Vec<(Claim, String)> = Vec::new();
    let mut add = |claim, field: String| {
        if !all.iter().any(|(c, _)| *c == claim) {
            all.push((claim, field));
        }
    };
    for (i, ip) in service.cluster_ips.iter().enumerate() {
        add(Claim::ClusterIp(*ip), format!("spec.clusterIPs[{i}]"));
    }
    let lists = [
        ("status.loadBalancer.ingress", &service.load_balancer_ips),
        ("spec.externalIPs", &service.external_ips),
    ];
    for (field, ips) in lists {
        for (i, ip) in ips.iter().enumerate().filter(|(_, ip)| !service.cluster_ips.contains(ip)) {
            for port in &service.ports {
                add(Claim::Address(*ip, port.protocol, port.port), format!("{field}[{i}]"));
            }
        }
    }
    for (i, port) in service.ports.iter().enumerate() {
        if let Some(node_port) = port.node_port {
            add(Claim::NodePort(port.protocol, node_port), format!("spec.ports[{i}].nodePort"));
        }
    }
    if let Some(port) = service.health_check {
        add(Claim::HealthCheck(port), "spec.healthCheckNodePort".to_owned());
    }
    all
}

/// Whether one of these claims is the external address of `claim`, at any port.
fn has_address(claims: &[(Claim, String)], claim: Claim) -> bool {
    let address = |claim: Claim| match claim {
        Claim::Address(ip, ..) => Some(ip),
        _ => None,
    };
    let wanted = address(claim);
    wanted.is_some() && claims.iter().any(|(other, _)| address(*other) == wanted)
}

/// The holder of each claim, and the Services that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    holders: HashMap<Claim, ServiceName>,
    waiting: HashMap<Claim, Vec<ServiceName>>,
    /// The Services with this external or load-balancer IP, whether they hold it or not.
    external: HashMap<IpAddr, Vec<ServiceName>>,
}

impl Claims {
    /// Replaces the claims of `name`. Returns the other Services that got or lost an address because of it.
    pub(crate) fn update(
        &mut self,
        name: &ServiceName,
        old: Option<&Service>,
        new: Option<&Service>,
    ) -> Vec<ServiceName> {
        let old = old.map(of).unwrap_or_default();
        let new = new.map(of).unwrap_or_default();
        let mut affected = Vec::new();
        for (claim, _) in old.iter().filter(|(c, _)| !new.iter().any(|(n, _)| n == c)) {
            affected.extend(self.release(name, *claim));
            // Another port of the Service may still be at the address.
            if !has_address(&new, *claim) {
                self.change_external(name, *claim, &mut affected, |services, name| {
                    services.retain(|s| s != name);
                });
            }
        }
        for (claim, _) in &new {
            let holder = self.holders.entry(*claim).or_insert_with(|| name.clone());
            if holder != name {
                let queue = self.waiting.entry(*claim).or_default();
                if !queue.contains(name) {
                    queue.push(name.clone());
                }
            }
        }
        for (claim, _) in new.iter().filter(|(c, _)| !old.iter().any(|(o, _)| o == c)) {
            self.change_external(name, *claim, &mut affected, |services, name| {
                if !services.contains(name) {
                    services.push(name.clone());
                }
            });
        }
        affected
    }

    /// Follows a claim of `name` that was added or removed: of an external address in [`Claims::external`], of a cluster
    /// IP by adding the Services to `affected` that have it as an external address.
    fn change_external(
        &mut self,
        name: &ServiceName,
        claim: Claim,
        affected: &mut Vec<ServiceName>,
        change: impl Fn(&mut Vec<ServiceName>, &ServiceName),
    ) {
        match claim {
            Claim::Address(ip, ..) => {
                let services = self.external.entry(ip).or_default();
                change(services, name);
                if services.is_empty() {
                    self.external.remove(&ip);
                }
            }
            Claim::ClusterIp(ip) => {
                let others = self.external.get(&ip).into_iter().flatten().filter(|other| *other != name);
                affected.extend(others.cloned());
            }
            Claim::NodePort(..) | Claim::HealthCheck(_) => {}
        }
    }

    /// Whether `name` holds this claim.
    pub(crate) fn holds(&self, name: &ServiceName, claim: Claim) -> bool {
        self.holder(claim) == Some(name)
    }

    /// The Service that holds a claim. An external address that is a cluster IP is held by the Service of that.
    fn holder(&self, claim: Claim) -> Option<&ServiceName> {
        let cluster_ip = match claim {
            Claim::Address(ip, ..) => self.holders.get(&Claim::ClusterIp(ip)),
            _ => None,
        };
        cluster_ip.or_else(|| self.holders.get(&claim))
    }

    /// The claims of `name` that other Services hold. An address is named once, not for each of its ports.
    pub(crate) fn conflicts(&self, name: &ServiceName, service: &Service) -> Vec<Fault> {
        let mut faults: Vec<Fault> = Vec::new();
        for (claim, field) in of(service) {
            let Some(holder) = self.holder(claim).filter(|holder| *holder != name) else { continue };
            if faults.last().is_none_or(|fault| fault.field != field) {
                let reason = format!("{} is already held by Service {holder}", claim.describe());
                faults.push(Fault::new(CONFLICT, field, reason));
            }
        }
        faults
    }

    /// Releases a claim of `name`. Returns the Service that gets it, if one waited.
    fn release(&mut self, name: &ServiceName, claim: Claim) -> Option<ServiceName> {
        if let Some(queue) = self.waiting.get_mut(&claim) {
            queue.retain(|n| n != name);
            if queue.is_empty() {
                self.waiting.remove(&claim);
            }
        }
        if self.holders.get(&claim) != Some(name) {
            return None;
        }
        self.holders.remove(&claim);
        let queue = self.waiting.get_mut(&claim)?;
        let next = queue.remove(0);
        if queue.is_empty() {
            self.waiting.remove(&claim);
        }
        self.holders.insert(claim, next.clone());
        Some(next)
    }
}
