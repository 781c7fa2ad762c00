//! The plan of a Service on this node, in one address family.
//!
//! A plan has the frontends of a Service and the endpoints that packets to each of them may be sent to. It is the same
//! for every mode.

use crate::types::{Family, PortName, Protocol, ServiceName, Target, TrafficPolicy};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;

/// The plan for one Service in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePlan {
    /// The Service.
    pub name: ServiceName,
    /// Its family.
    pub family: Family,
    /// Its ports.
    pub ports: Box<[PortPlan]>,
    /// The port for health checks of load balancers.
    pub health_check: Option<u16>,
    /// The scheduler for ipvs mode, from the annotation [`crate::SCHEDULER_ANNOTATION`].
    pub scheduler: Option<Arc<str>>,
    /// The version of the PROXY protocol for userspace mode, from [`crate::PROXY_PROTOCOL_ANNOTATION`].
    pub proxy_protocol: Option<Arc<str>>,
}

/// The plan for one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortPlan {
    /// Its name.
    pub name: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// The frontends, without duplicates.
    pub frontends: Box<[Frontend]>,
    /// Eligible endpoints in the whole cluster, sorted.
    pub cluster: Box<[Target]>,
    /// Eligible endpoints on this node, sorted; empty if no policy is `Local`.
    pub local: Box<[Target]>,
    /// UDP only: other endpoints that are still serving, so that existing flows to them may continue.
    pub also_serving: Box<[Target]>,
    /// Addresses of eligible endpoints that may be on this node, so that their own traffic begins here.
    pub here: Box<[IpAddr]>,
    /// The policy of cluster IPs.
    pub internal: TrafficPolicy,
    /// The policy of all other frontends.
    pub external: TrafficPolicy,
    /// The timeout of session affinity, in seconds; `None` without affinity.
    pub affinity: Option<u32>,
    /// Client networks that may reach the load-balancer IPs; empty means all. No range lies within another.
    pub source_ranges: Box<[IpNet]>,
    /// The ranges contain an address of this node, so packets from the load-balancer IP itself are accepted too: where
    /// that address is configured on the node, it is the source of the node's own traffic to it.
    pub admits_node: bool,
}

/// The kind of a frontend's address, which decides about policy and masquerading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FrontendKind {
    /// `clusterIPs`
    ClusterIp,
    /// `status.loadBalancer.ingress`
    LoadBalancer,
    /// `externalIPs`
    ExternalIp,
    /// An address of the node, at a node port.
    NodePort,
}

/// An address and port at which a Service port is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frontend {
    /// Its kind.
    pub kind: FrontendKind,
    /// The address; `None` for node ports, which are served at the node's addresses.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// The treatment of packets to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'p> {
    /// They are sent to one of these endpoints.
    Balance(&'p [Target]),
    /// They are rejected: there is no endpoint.
    Reject,
    /// They are dropped: there are endpoints, but none on this node.
    Drop,
}

impl PortPlan {
    /// The policy that governs a kind of frontend.
    pub fn policy(&self, kind: FrontendKind) -> TrafficPolicy {
        if kind == FrontendKind::ClusterIp { self.internal } else { self.external }
    }

    /// The treatment of packets to frontends of this kind.
    pub fn outcome(&self, kind: FrontendKind) -> Outcome<'_> {
        match (self.policy(kind), &*self.local, &*self.cluster) {
            (TrafficPolicy::Local, [], []) | (TrafficPolicy::Cluster, _, []) => Outcome::Reject,
            (TrafficPolicy::Local, [], _) => Outcome::Drop,
            (TrafficPolicy::Local, local, _) => Outcome::Balance(local),
            (TrafficPolicy::Cluster, _, cluster) => Outcome::Balance(cluster),
        }
    }

    /// The endpoints for traffic that begins on this node, from a pod or the node itself, to a frontend with policy
    /// `Local`: any endpoint of the cluster, because no load balancer chose this node for that traffic.
    pub fn short_cut(&self, kind: FrontendKind) -> Option<&[Target]> {
        (self.has_short_cut(kind) && !self.cluster.is_empty()).then_some(&*self.cluster)
    }

    /// Whether frontends of this kind have such a shortcut, even if there is no endpoint.
    pub fn has_short_cut(&self, kind: FrontendKind) -> bool {
        kind != FrontendKind::ClusterIp && self.external == TrafficPolicy::Local
    }

    /// Whether packets are dropped because policy `Local` applies and no endpoint is on this node.
    pub fn lacks_local(&self, policy_of: FrontendKind) -> bool {
        self.frontends
            .iter()
            .any(|f| (f.kind == FrontendKind::ClusterIp) == (policy_of == FrontendKind::ClusterIp))
            && self.outcome(policy_of) == Outcome::Drop
    }

    /// Whether it is served at a node port.
    pub fn has_node_port(&self) -> bool {
        self.frontends.iter().any(|f| f.kind == FrontendKind::NodePort)
    }

    /// Whether an existing flow to `target` may continue.
    pub fn serves(&self, target: &Target) -> bool {
        [&self.cluster, &self.local, &self.also_serving].iter().any(|list| list.contains(target))
    }
}
