//! This node: its zone, its addresses, and whether load balancers should send traffic to it.

use crate::api;
use ipnet::IpNet;
use std::net::IpAddr;

/// Taint of a node that the cluster autoscaler is about to remove.
const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
const ZONE: &str = "topology.kubernetes.io/zone";

/// The fields of this node's Node object that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its zone.
    pub zone: Option<String>,
    /// Its addresses, internal ones first.
    pub addresses: Vec<IpAddr>,
    /// The ranges of its pods' addresses.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether the Node object exists and is to stay.
    pub state: NodeState,
}

/// The state of the Node object. Load balancers should send new connections only to a node that is `Present`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It does not exist.
    #[default]
    Missing,
    /// It is being deleted, or the cluster autoscaler is about to remove the node.
    Leaving,
    /// It exists.
    Present,
}

impl Node {
    pub(crate) fn read(object: &api::Node) -> Node {
        let metadata = object.metadata.as_ref();
        let spec = object.spec.as_ref();
        let leaving = metadata.is_some_and(|m| m.deletion_timestamp.is_some())
            || spec.is_some_and(|s| s.taints.iter().any(|t| t.key == AUTOSCALER_TAINT));
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
