//! This node: where it is, which addresses it has, whether load balancers should send to it.

use crate::api;
use ipnet::IpNet;
use std::net::IpAddr;

/// Taint of a node that the cluster autoscaler is about to remove.
const DOOMED: &str = "ToBeDeletedByClusterAutoscaler";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What is known of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its zone.
    pub zone: Option<String>,
    /// Its own addresses, internal ones first.
    pub addresses: Vec<IpAddr>,
    /// Its pods' networks.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether it is there.
    pub state: NodeState,
}

/// Whether load balancers should send new connections to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// There is no such Node object.
    #[default]
    Missing,
    /// It is being deleted, or about to be.
    Leaving,
    /// All is well.
    Present,
}

impl Node {
    pub(crate) fn read(object: &api::Node) -> Node {
        let metadata = object.metadata.as_ref();
        let spec = object.spec.as_ref();
        let leaving = metadata.is_some_and(|m| m.deletion_timestamp.is_some())
            || spec.is_some_and(|s| s.taints.iter().any(|t| t.key == DOOMED));
        let of_kind = |kind: &'static str| {
            let all = object.status.iter().flat_map(|s| &s.addresses);
            all.filter(move |a| a.kind == kind).filter_map(|a| a.address.parse().ok())
        };
        let mut cidrs: Vec<IpNet> =
            spec.iter().flat_map(|s| &s.pod_cidrs).filter_map(|c| c.parse().ok()).collect();
        if cidrs.is_empty() {
            cidrs.extend(spec.and_then(|s| s.pod_cidr.parse::<IpNet>().ok()));
        }
        Node {
            zone: metadata.and_then(|m| m.labels.get(ZONE)).filter(|z| !z.is_empty()).cloned(),
            addresses: of_kind("InternalIP").chain(of_kind("ExternalIP")).collect(),
            pod_cidrs: cidrs,
            state: if leaving { NodeState::Leaving } else { NodeState::Present },
        }
    }
}
