//! What is to be done for a Service on this node, in one address family.
//!
//! A plan says everything a mode needs and nothing about how: which frontends there are, and where a packet that
//! meets one of them may go.

use crate::types::{Family, PortName, Protocol, ServiceName, Target, TrafficPolicy};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;

/// The plan for one Service in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePlan {
    /// Whose it is.
    pub name: ServiceName,
    /// Its family.
    pub family: Family,
    /// Its ports.
    pub ports: Box<[PortPlan]>,
    /// Where a load balancer asks for its health.
    pub health_check: Option<u16>,
    /// How it wants to be balanced in ipvs mode, as its annotation ([`crate::SCHEDULER_ANNOTATION`]) has it.
    pub scheduler: Option<Arc<str>>,
    /// Which version of the PROXY protocol its pods want in userspace mode ([`crate::PROXY_PROTOCOL_ANNOTATION`]).
    pub proxy_protocol: Option<Arc<str>>,
}

/// The plan for one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortPlan {
    /// Its name.
    pub name: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// Where packets for it arrive. No two are alike.
    pub frontends: Box<[Frontend]>,
    /// Eligible endpoints in the whole cluster, sorted.
    pub cluster: Box<[Target]>,
    /// Eligible endpoints on this node, sorted; empty if no policy asks for them.
    pub local: Box<[Target]>,
    /// UDP only: further endpoints that still answer.
    pub also_serving: Box<[Target]>,
    /// Addresses of eligible endpoints whose own traffic may begin on this node.
    pub here: Box<[IpAddr]>,
    /// Policy of cluster IPs.
    pub internal: TrafficPolicy,
    /// Policy of everything else.
    pub external: TrafficPolicy,
    /// How long a client sticks to its endpoint, in seconds.
    pub affinity: Option<u32>,
    /// Client networks that may reach the load-balancer IPs; empty means all. No range lies within another.
    pub source_ranges: Box<[IpNet]>,
    /// The ranges admit this node, so packets from the load-balancer IP itself are let through too: the node's own
    /// traffic to that address carries it as its source where the address is configured on the node.
    pub admits_node: bool,
}

/// What kind of address a frontend has: it decides policy and masquerading.
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

/// Where packets for a Service port arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frontend {
    /// What kind it is.
    pub kind: FrontendKind,
    /// The address; none for node ports, which answer at the node's addresses.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// What becomes of a packet that meets a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'p> {
    /// It goes to one of these.
    Balance(&'p [Target]),
    /// It is refused: there is no endpoint.
    Reject,
    /// It is dropped: there are endpoints, but none on this node.
    Drop,
}

impl PortPlan {
    /// The policy that governs a kind of frontend.
    pub fn policy(&self, kind: FrontendKind) -> TrafficPolicy {
        if kind == FrontendKind::ClusterIp { self.internal } else { self.external }
    }

    /// Where packets to frontends of this kind go.
    pub fn outcome(&self, kind: FrontendKind) -> Outcome<'_> {
        match (self.policy(kind), &*self.local, &*self.cluster) {
            (TrafficPolicy::Local, [], []) | (TrafficPolicy::Cluster, _, []) => Outcome::Reject,
            (TrafficPolicy::Local, [], _) => Outcome::Drop,
            (TrafficPolicy::Local, local, _) => Outcome::Balance(local),
            (TrafficPolicy::Cluster, _, cluster) => Outcome::Balance(cluster),
        }
    }

    /// For policy `Local` and traffic that begins on this node, be it a pod's or the node's own: it may go to any
    /// endpoint, because no load balancer chose this node for it.
    pub fn short_cut(&self, kind: FrontendKind) -> Option<&[Target]> {
        (self.has_short_cut(kind) && !self.cluster.is_empty()).then_some(&*self.cluster)
    }

    /// Whether there is such traffic, even if no endpoint may serve it.
    pub fn has_short_cut(&self, kind: FrontendKind) -> bool {
        kind != FrontendKind::ClusterIp && self.external == TrafficPolicy::Local
    }

    /// Whether there are endpoints, but none on this node, where a policy wants them.
    pub fn lacks_local(&self, policy_of: FrontendKind) -> bool {
        self.frontends
            .iter()
            .any(|f| (f.kind == FrontendKind::ClusterIp) == (policy_of == FrontendKind::ClusterIp))
            && self.outcome(policy_of) == Outcome::Drop
    }

    /// Whether a flow that leads to `target` may go on.
    pub fn serves(&self, target: &Target) -> bool {
        [&self.cluster, &self.local, &self.also_serving].iter().any(|list| list.contains(target))
    }
}
