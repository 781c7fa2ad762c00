//! A plan whose endpoints are doors.
//!
//! Policy stays with the rules: they choose between all endpoints and those of this node, and each choice has a door
//! of its own. So the door tells what only the kernel knows, such as the interface that a packet came in on.

use portway_model::{PortPlan, Protocol, ServicePlan, Target};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Among which endpoints a door chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// All eligible ones of the cluster.
    Cluster,
    /// Those of this node.
    Local,
}

impl Reach {
    /// Both.
    pub const ALL: [Reach; 2] = [Reach::Cluster, Reach::Local];
}

/// Where the doors of one family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doors {
    /// The address of all of them.
    pub address: IpAddr,
    /// Ports for TCP, by reach.
    pub tcp: [u16; 2],
    /// Ports for UDP, by reach.
    pub udp: [u16; 2],
}

impl Doors {
    fn door(&self, protocol: Protocol, reach: Reach) -> Option<Target> {
        let ports = match protocol {
            Protocol::Tcp => self.tcp,
            Protocol::Udp => self.udp,
            Protocol::Sctp => return None,
        };
        Some(Target { ip: self.address, port: ports[reach as usize] })
    }
}

/// Whether the agent carries a protocol; others are left to the rules.
pub fn carries(protocol: Protocol) -> bool {
    protocol != Protocol::Sctp
}

/// The plan for the rules while the agent is there.
pub fn to_doors(plan: &ServicePlan, doors: &Doors) -> ServicePlan {
    let mut plan = plan.clone();
    for port in &mut plan.ports {
        let (Some(cluster), Some(local)) =
            (doors.door(port.protocol, Reach::Cluster), doors.door(port.protocol, Reach::Local))
        else {
            continue;
        };
        let instead =
            |endpoints: &[Target], door| if endpoints.is_empty() { [].into() } else { [door].into() };
        *port = PortPlan {
            cluster: instead(&port.cluster, cluster),
            local: instead(&port.local, local),
            also_serving: [].into(),
            here: [].into(),
            affinity: None,
            ..port.clone()
        };
    }
    plan
}

/// The plan for the rules while the agent is not there. Pods that expect a header would take a connection without
/// one for a broken one, so theirs are refused.
pub fn to_endpoints(plan: &ServicePlan) -> ServicePlan {
    let mut plan = plan.clone();
    if wants_header(&plan) == Ok(true) {
        for port in plan.ports.iter_mut().filter(|p| p.protocol == Protocol::Tcp) {
            (port.cluster, port.local) = ([].into(), [].into());
        }
    }
    plan
}

/// Whether its pods want the PROXY protocol; what is wrong with the annotation, if something is.
pub fn wants_header(plan: &ServicePlan) -> Result<bool, String> {
    match plan.proxy_protocol.as_deref() {
        None => Ok(false),
        Some("v2") => Ok(true),
        Some(other) => Err(format!(
            "metadata.annotations[{}]: {other:?} is not a version that is spoken here: only \"v2\" is; no header is sent",
            portway_model::PROXY_PROTOCOL_ANNOTATION
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests;
