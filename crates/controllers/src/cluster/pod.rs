//! What the controllers keep of a Pod.

use crate::cluster::service::AddressFamily;
use crate::fingerprint;
use portway_api::Pod;
use portway_api::address::parse_ip;
use std::net::IpAddr;

/// A port with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    name: Box<str>,
    protocol: Box<str>,
    port: i32,
}

/// What the controllers keep of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodState {
    pub(crate) uid: Box<str>,
    /// Fingerprints, sorted.
    pub(crate) labels: Box<[u64]>,
    /// At most one of each family.
    pub(crate) addresses: Box<[IpAddr]>,
    pub(crate) node: Box<str>,
    pub(crate) hostname: Box<str>,
    pub(crate) subdomain: Box<str>,
    ports: Box<[NamedPort]>,
    pub(crate) ready: bool,
    /// When it became ready or unready, in seconds since the epoch.
    pub(crate) ready_changed: Option<i64>,
    /// It is being deleted.
    pub(crate) terminating: bool,
    /// It has ended: it succeeded or failed.
    pub(crate) terminal: bool,
}

impl PodState {
    /// From the object; and the addresses that cannot be those of endpoints, which are left out.
    pub(crate) fn new(pod: &Pod) -> (PodState, Vec<String>) {
        let meta = pod.metadata.clone().unwrap_or_default();
        let spec = pod.spec.clone().unwrap_or_default();
        let status = pod.status.clone().unwrap_or_default();
        let mut texts: Vec<String> = status.pod_ips.into_iter().map(|ip| ip.ip).collect();
        if texts.is_empty() && !status.pod_ip.is_empty() {
            texts.push(status.pod_ip);
        }
        let (mut addresses, mut broken) = (Vec::new(), Vec::new());
        for text in texts {
            match parse_ip(&text).filter(|ip| may_be_endpoint(*ip)) {
                Some(ip) => addresses.push(ip),
                None => broken.push(text),
            }
        }
        let ready = status.conditions.into_iter().find(|condition| condition.kind == "Ready");
        let sidecars = spec
            .init_containers
            .into_iter()
            .filter(|container| container.restart_policy.as_deref() == Some("Always"));
        let ports = spec.containers.into_iter().chain(sidecars).flat_map(|container| container.ports);
        let named = ports.filter(|port| !port.name.is_empty()).map(|port| NamedPort {
            name: port.name.into(),
            protocol: if port.protocol.is_empty() { "TCP".into() } else { port.protocol.into() },
            port: port.container_port,
        });
        let state = PodState {
            uid: meta.uid.into(),
            labels: fingerprint::labels(&meta.namespace, &meta.labels),
            addresses: addresses.into(),
            node: spec.node_name.into(),
            hostname: spec.hostname.into(),
            subdomain: spec.subdomain.into(),
            ports: named.collect(),
            ready: ready.as_ref().is_some_and(|condition| condition.status == "True"),
            ready_changed: ready.and_then(|condition| condition.last_transition_time).map(|t| t.seconds),
            terminating: meta.deletion_timestamp.is_some(),
            terminal: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        };
        (state, broken)
    }

    /// The port of this name and protocol.
    pub(crate) fn port(&self, name: &str, protocol: &str) -> Option<i32> {
        self.ports
            .iter()
            .find(|port| *port.name == *name && *port.protocol == *protocol)
            .map(|port| port.port)
    }

    /// Its address of a family.
    pub(crate) fn address(&self, family: AddressFamily) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|ip| AddressFamily::of(*ip) == family)
    }

    /// The same but for its version: nothing that an endpoint depends on has changed, other than which Services select
    /// it.
    pub(crate) fn same_endpoint(&self, other: &PodState) -> bool {
        PodState { labels: other.labels.clone(), ..self.clone() } == *other
    }
}

/// Whether the API server accepts an endpoint with this address.
fn may_be_endpoint(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.segments()[0] & 0xff0f == 0xff02,
    };
    !ip.is_unspecified() && !ip.is_loopback() && !link_local
}
