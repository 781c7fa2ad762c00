//! What the controllers keep of a Node, and the shares of zones in the processors of the cluster.

use crate::names::{CONTROL_PLANE, ZONE};
use portway_api::Node;
use std::collections::BTreeMap;

/// What the controllers keep of a Node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    pub(crate) zone: Option<Box<str>>,
    /// Its processors in thousandths, if it counts for the share of its zone: it is ready and not of the control plane.
    counted: Option<u64>,
}

impl NodeState {
    pub(crate) fn new(node: &Node) -> NodeState {
        let labels = node.metadata.as_ref().map(|meta| &meta.labels);
        let label = |name: &str| labels.and_then(|labels| labels.get(name));
        let status = node.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let ready = conditions.iter().any(|c| c.kind == "Ready" && c.status == "True");
        let counts = ready && CONTROL_PLANE.iter().all(|role| label(role).is_none());
        let cpu =
            status.and_then(|status| status.allocatable.get("cpu")?.millis()).unwrap_or(0.0).round() as u64;
        NodeState {
            zone: label(ZONE).filter(|zone| !zone.is_empty()).map(|zone| zone.as_str().into()),
            counted: counts.then_some(cpu),
        }
    }
}

/// The share of each zone in the processors of the nodes; none if a node lacks zone or processors, or if there are
/// fewer than two zones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ZoneShares(pub(crate) Option<BTreeMap<Box<str>, f64>>);

impl ZoneShares {
    pub(crate) fn new<'a>(nodes: impl Iterator<Item = &'a NodeState>) -> ZoneShares {
        let mut zones: BTreeMap<Box<str>, u64> = BTreeMap::new();
        for node in nodes {
            let Some(cpu) = node.counted else { continue };
            match &node.zone {
                Some(zone) if cpu > 0 => *zones.entry(zone.clone()).or_default() += cpu,
                _ => return ZoneShares(None),
            }
        }
        let total: u64 = zones.values().sum();
        if zones.len() < 2 {
            return ZoneShares(None);
        }
        let share = |(zone, cpu): (Box<str>, u64)| (zone, cpu as f64 / total as f64);
        ZoneShares(Some(zones.into_iter().map(share).collect()))
    }
}
