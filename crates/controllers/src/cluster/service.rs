//! What the controllers keep of a Service.

use crate::fingerprint;
use crate::names::{TOPOLOGY_AWARE_HINTS, TOPOLOGY_MODE};
use portway_api::address::parse_ip;
use portway_api::{Service, ServiceSpec};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The family of a slice's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl AddressFamily {
    /// As `addressType` and `ipFamilies` have it.
    pub fn name(self) -> &'static str {
        match self {
            AddressFamily::V4 => "IPv4",
            AddressFamily::V6 => "IPv6",
        }
    }

    /// From `addressType` or an item of `ipFamilies`.
    pub fn parse(name: &str) -> Option<AddressFamily> {
        [AddressFamily::V4, AddressFamily::V6].into_iter().find(|family| family.name() == name)
    }

    /// The family of an address.
    pub fn of(address: IpAddr) -> AddressFamily {
        if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 }
    }
}

/// The endpoints that clients should prefer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// None.
    #[default]
    Any,
    /// Those in the client's zone: `PreferSameZone`, or `PreferClose`.
    SameZone {
        /// Whether the Service says `PreferClose`, for metrics.
        close: bool,
    },
    /// Those on the client's node, then those in its zone: `PreferSameNode`.
    SameNode,
}

impl Distribution {
    /// As in `trafficDistribution`; empty for none.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Any => "",
            Distribution::SameZone { close: true } => "PreferClose",
            Distribution::SameZone { close: false } => "PreferSameZone",
            Distribution::SameNode => "PreferSameNode",
        }
    }
}

/// The port of Pods that a Service port leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The same for all Pods.
    Number(i32),
    /// The port of this name, which each Pod may have elsewhere.
    Name(Box<str>),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortState {
    pub(crate) name: Box<str>,
    pub(crate) protocol: Box<str>,
    pub(crate) target: Target,
    pub(crate) app_protocol: Option<Box<str>>,
}

/// What the controllers keep of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceState {
    pub(crate) uid: Box<str>,
    /// Seconds since the epoch.
    pub(crate) created: Option<i64>,
    pub(crate) deleting: bool,
    pub(crate) labels: BTreeMap<String, String>,
    /// Fingerprints of the labels that it selects Pods by, sorted; none if others write its endpoints.
    pub(crate) selector: Option<Box<[u64]>>,
    pub(crate) external_name: bool,
    /// Without a cluster IP.
    pub(crate) headless: bool,
    /// `clusterIP: None`: it need not have ports.
    pub(crate) ip_none: bool,
    /// The families of its slices. The first one is that of its Endpoints object; if the Service does not say, each
    /// Pod's first address is.
    pub(crate) families: Vec<AddressFamily>,
    pub(crate) families_are_known: bool,
    pub(crate) ports: Vec<PortState>,
    pub(crate) publish_not_ready: bool,
    pub(crate) distribution: Distribution,
    /// Asks for topology-aware hints by annotation, which has precedence over its distribution.
    pub(crate) topology: bool,
}

impl ServiceState {
    pub(crate) fn new(service: &Service) -> ServiceState {
        let meta = service.metadata.clone().unwrap_or_default();
        let spec = service.spec.clone().unwrap_or_default();
        let selector = fingerprint::labels(&meta.namespace, &spec.selector);
        let (families, families_are_known) = families(&spec);
        let annotation = |name: &str| meta.annotations.get(name);
        let topology = annotation(TOPOLOGY_AWARE_HINTS).or_else(|| annotation(TOPOLOGY_MODE));
        let topology = topology.is_some_and(|mode| mode == "Auto" || mode == "auto");
        ServiceState {
            uid: meta.uid.into(),
            created: meta.creation_timestamp.map(|time| time.seconds),
            deleting: meta.deletion_timestamp.is_some(),
            labels: meta.labels.into_iter().collect(),
            selector: (!selector.is_empty()).then_some(selector),
            external_name: spec.kind == "ExternalName",
            headless: matches!(spec.cluster_ip.as_str(), "" | "None"),
            ip_none: spec.cluster_ip == "None",
            families,
            families_are_known,
            ports: spec.ports.into_iter().map(port).collect(),
            publish_not_ready: spec.publish_not_ready_addresses,
            distribution: match spec.traffic_distribution.as_deref() {
                _ if topology => Distribution::Any,
                Some("PreferClose") => Distribution::SameZone { close: true },
                Some("PreferSameZone") => Distribution::SameZone { close: false },
                Some("PreferSameNode") => Distribution::SameNode,
                // Also values of a later release.
                Some(_) | None => Distribution::Any,
            },
            topology,
        }
    }

    /// Whether the controllers write its endpoints.
    pub(crate) fn selects(&self) -> bool {
        self.selector.is_some() && !self.external_name
    }
}

fn port(port: portway_api::ServicePort) -> PortState {
    let target = match &port.target_port {
        Some(target) => match target.as_name() {
            Some(name) => Target::Name(name.into()),
            None if target.number == 0 => Target::Number(port.port),
            None => Target::Number(target.number),
        },
        None => Target::Number(port.port),
    };
    let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
    PortState {
        protocol: protocol.into(),
        target,
        app_protocol: port.app_protocol.map(Into::into),
        name: port.name.into(),
    }
}

/// The families of a Service, and whether it says so itself: objects that were stored by old API servers do not.
fn families(spec: &ServiceSpec) -> (Vec<AddressFamily>, bool) {
    let named: Vec<_> = spec.ip_families.iter().filter_map(|name| AddressFamily::parse(name)).collect();
    if !named.is_empty() {
        return (named, true);
    }
    match parse_ip(&spec.cluster_ip) {
        Some(ip) => (vec![AddressFamily::of(ip)], true),
        None => (vec![AddressFamily::V4, AddressFamily::V6], false),
    }
}
