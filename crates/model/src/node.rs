//! This node: its zone, its addresses, and whether load balancers should send traffic to it.

use crate::api;
use crate::ingest::{Fault, parse_cidr, parse_ip};
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
    /// Reads the Node object. An address or range that cannot be used is a fault, and left out.
    pub(crate) fn read(object: &api::Node, faults: &mut Vec<Fault>) -> Node {
        let metadata = object.metadata.as_ref();
        let spec = object.spec.as_ref();
        let leaving = metadata.is_some_and(|m| m.deletion_timestamp.is_some())
            || spec.is_some_and(|s| s.taints.iter().any(|t| t.key == AUTOSCALER_TAINT));
        let mut addresses = Vec::new();
        for kind in ["InternalIP", "ExternalIP"] {
            let all = object.status.iter().flat_map(|s| s.addresses.iter().enumerate());
            for (i, address) in all.filter(|(_, address)| address.kind == kind) {
                let (field, text) = (format!("status.addresses[{i}].address"), &address.address);
                let reason = || format!("{text:?} is not an IPv4 or IPv6 address");
                push(&mut addresses, parse_ip(text), faults, field, reason);
            }
        }
        let mut cidrs: Vec<IpNet> = Vec::new();
        let reason = |text: &String| format!("{text:?} is not a range such as 10.244.1.0/24");
        for (i, text) in spec.iter().flat_map(|s| s.pod_cidrs.iter().enumerate()) {
            push(&mut cidrs, parse_cidr(text), faults, format!("spec.podCIDRs[{i}]"), || reason(text));
        }
        let single = spec.map(|s| &s.pod_cidr).filter(|text| cidrs.is_empty() && !text.is_empty());
        if let Some(text) = single {
            push(&mut cidrs, parse_cidr(text), faults, "spec.podCIDR".to_owned(), || reason(text));
        }
        Node {
            zone: metadata.and_then(|m| m.labels.get(ZONE)).filter(|z| !z.is_empty()).cloned(),
            addresses,
            pod_cidrs: cidrs,
            state: if leaving { NodeState::Leaving } else { NodeState::Present },
        }
    }
}

/// Adds a value, or a fault if it could not be parsed.
fn push<T>(
    values: &mut Vec<T>,
    value: Option<T>,
    faults: &mut Vec<Fault>,
    field: String,
    reason: impl Fn() -> String,
) {
    match value {
        Some(value) => values.push(value),
        None => faults.push(Fault::new("bad-address", field, reason())),
    }
}
