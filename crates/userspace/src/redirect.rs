//! Plans for the redirecting rules: listeners of the relay in place of endpoints.
//!
//! Traffic policy is applied by the rules: they choose between all endpoints and the endpoints of this node, and each
//! choice has a listener of its own. So the listener that accepts a connection determines which endpoints are allowed,
//! even where the decision depends on facts that only the kernel has, such as the input interface of a packet.

use portway_model::{PortPlan, Protocol, ServicePlan, Target};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The endpoints that a listener chooses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointScope {
    /// All eligible endpoints of the cluster.
    Cluster,
    /// The endpoints on this node.
    Local,
}

impl EndpointScope {
    /// Both scopes.
    pub const ALL: [EndpointScope; 2] = [EndpointScope::Cluster, EndpointScope::Local];
}

/// The address and ports of the listeners of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerPorts {
    /// The address of all listeners.
    pub address: IpAddr,
    /// TCP ports, by scope.
    pub tcp: [u16; 2],
    /// UDP ports, by scope.
    pub udp: [u16; 2],
}

impl ListenerPorts {
    /// The listener for a protocol and scope; none for a protocol that is not relayed.
    pub fn listener(&self, protocol: Protocol, scope: EndpointScope) -> Option<Target> {
        let ports = match protocol {
            Protocol::Tcp => self.tcp,
            Protocol::Udp => self.udp,
            Protocol::Sctp => return None,
        };
        Some(Target { ip: self.address, port: ports[scope as usize] })
    }

    /// The scope of the listener at a port.
    pub fn scope_of(&self, protocol: Protocol, listener: &Target) -> Option<EndpointScope> {
        EndpointScope::ALL
            .into_iter()
            .find(|scope| self.listener(protocol, *scope).as_ref() == Some(listener))
    }
}

/// Whether the relay handles a protocol. The rules send other protocols to endpoints directly.
pub fn relays(protocol: Protocol) -> bool {
    protocol != Protocol::Sctp
}

/// The plan for the rules while the relay serves: listeners in place of endpoints.
pub fn to_listeners(plan: &ServicePlan, ports: &ListenerPorts) -> ServicePlan {
    let mut plan = plan.clone();
    for port in &mut plan.ports {
        let listener = |scope| ports.listener(port.protocol, scope);
        let (Some(cluster), Some(local)) = (listener(EndpointScope::Cluster), listener(EndpointScope::Local))
        else {
            continue;
        };
        let replace = |endpoints: &[Target], listener| {
            if endpoints.is_empty() { [].into() } else { [listener].into() }
        };
        *port = PortPlan {
            cluster: replace(&port.cluster, cluster),
            local: replace(&port.local, local),
            also_serving: endpoints_of_flows(port),
            here: [].into(),
            affinity: None,
            ..port.clone()
        };
    }
    plan
}

/// The endpoints that UDP flows may have which the kernel translates itself, since the relay was not running when they
/// began or has handed them over.
fn endpoints_of_flows(port: &PortPlan) -> Box<[Target]> {
    if port.protocol != Protocol::Udp {
        return [].into();
    }
    let mut targets: Vec<Target> =
        port.cluster.iter().chain(&port.local).chain(&port.also_serving).copied().collect();
    targets.sort();
    targets.dedup();
    targets.into()
}

/// The plan for the rules while the relay hands over to the kernel: the real endpoints, while UDP flows may still have
/// a listener.
pub fn to_endpoints_with_listeners(plan: &ServicePlan, ports: &ListenerPorts) -> ServicePlan {
    let mut plan = to_endpoints(plan);
    for port in plan.ports.iter_mut().filter(|port| port.protocol == Protocol::Udp) {
        let listeners =
            EndpointScope::ALL.into_iter().filter_map(|scope| ports.listener(port.protocol, scope));
        port.also_serving = port.also_serving.iter().copied().chain(listeners).collect();
    }
    plan
}

/// The plan for the rules without a relay: the real endpoints. TCP ports of a Service that asks for the PROXY protocol
/// are rejected, because its pods would misread a connection without the header.
pub fn to_endpoints(plan: &ServicePlan) -> ServicePlan {
    let mut plan = plan.clone();
    if wants_proxy_header(&plan) == Ok(true) {
        for port in plan.ports.iter_mut().filter(|p| p.protocol == Protocol::Tcp) {
            (port.cluster, port.local) = ([].into(), [].into());
        }
    }
    plan
}

/// Whether the pods of a Service expect a PROXY protocol header. The error describes an invalid annotation.
pub fn wants_proxy_header(plan: &ServicePlan) -> Result<bool, String> {
    match plan.proxy_protocol.as_deref() {
        None => Ok(false),
        Some("v2") => Ok(true),
        Some(other) => Err(format!(
            "metadata.annotations[{}]: PROXY protocol version {other:?} is not supported: only \"v2\" is; no header is sent",
            portway_model::PROXY_PROTOCOL_ANNOTATION
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests;
