//! Converts a Service to the fields that the proxy uses.

use super::{Fault, address, port};
use crate::api;
use crate::types::{Family, PortName, Protocol, TrafficPolicy};
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;

/// The default timeout of session affinity: three hours.
const AFFINITY_SECONDS: i32 = 10_800;
/// The longest timeout that the API server accepts: a day.
const AFFINITY_LIMIT: i32 = 86_400;

/// The annotation that selects a scheduler in ipvs mode. Only that mode validates and reports its value.
pub const SCHEDULER_ANNOTATION: &str = "portway.dev/ipvs-scheduler";

/// The annotation that asks for a PROXY protocol header towards the pods, in userspace mode. Only that mode validates
/// its value.
pub const PROXY_PROTOCOL_ANNOTATION: &str = "portway.dev/proxy-protocol";

/// The fields of a Service that the proxy uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Cluster IPs.
    pub cluster_ips: Box<[IpAddr]>,
    /// External IPs.
    pub external_ips: Box<[IpAddr]>,
    /// Load-balancer IPs that are to be programmed.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// Client networks that may reach the load-balancer IPs; empty for a family means all.
    pub source_ranges: Box<[IpNet]>,
    /// Ports.
    pub ports: Box<[Port]>,
    /// Policy for cluster IPs.
    pub internal: TrafficPolicy,
    /// Policy for all other frontends.
    pub external: TrafficPolicy,
    /// The timeout of session affinity, in seconds; `None` without affinity.
    pub affinity: Option<u32>,
    /// Port of the health check.
    pub health_check: Option<u16>,
    /// The scheduler for ipvs mode.
    pub scheduler: Option<Arc<str>>,
    /// The version of the PROXY protocol for userspace mode.
    pub proxy_protocol: Option<Arc<str>>,
    /// Its creation time, in seconds since the epoch; 0 if unknown.
    pub created: i64,
    /// Its unique id.
    pub uid: Box<str>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name.
    pub name: PortName,
    /// Protocol.
    pub protocol: Protocol,
    /// The port at the Service's addresses.
    pub port: u16,
    /// The node port.
    pub node_port: Option<u16>,
}

/// Converts a Service. `Ok(None)` if a proxy ignores it: it is headless, an `ExternalName`, or has no cluster IP yet.
pub fn read_service(object: &api::Service) -> Result<Option<Service>, Fault> {
    let none = api::ServiceSpec::default();
    let spec = object.spec.as_ref().unwrap_or(&none);
    if spec.kind == "ExternalName"
        || spec.cluster_ip == "None"
        || spec.cluster_ips.iter().any(|ip| ip == "None")
    {
        return Ok(None);
    }
    let cluster_ips = cluster_ips(spec)?;
    if cluster_ips.is_empty() {
        return Ok(None);
    }
    let external = policy("spec.externalTrafficPolicy", &spec.external_traffic_policy)?;
    let meta = object.metadata.as_ref();
    let annotation = |name| meta.and_then(|m| m.annotations.get(name)).map(|text| text.trim().into());
    Ok(Some(Service {
        external_ips: addresses("spec.externalIPs", &spec.external_ips)?,
        load_balancer_ips: ingress_ips(object.status.as_ref())?,
        source_ranges: source_ranges(&spec.load_balancer_source_ranges)?,
        ports: ports(spec)?,
        internal: policy(
            "spec.internalTrafficPolicy",
            spec.internal_traffic_policy.as_deref().unwrap_or(""),
        )?,
        external,
        affinity: affinity(spec)?,
        health_check: health_check(spec, external)?,
        scheduler: annotation(SCHEDULER_ANNOTATION),
        proxy_protocol: annotation(PROXY_PROTOCOL_ANNOTATION),
        created: meta.and_then(|m| m.creation_timestamp).map_or(0, |t| t.seconds),
        uid: meta.map_or("", |m| &m.uid).into(),
        cluster_ips,
    }))
}

fn cluster_ips(spec: &api::ServiceSpec) -> Result<Box<[IpAddr]>, Fault> {
    let given: Vec<(String, &str)> = if spec.cluster_ips.is_empty() {
        vec![("spec.clusterIP".to_owned(), spec.cluster_ip.as_str())]
    } else {
        let all = spec.cluster_ips.iter().enumerate();
        all.map(|(i, ip)| (format!("spec.clusterIPs[{i}]"), ip.as_str())).collect()
    };
    let mut ips: Vec<IpAddr> = Vec::with_capacity(2);
    for (i, (field, text)) in given.iter().enumerate().filter(|(_, (_, text))| !text.is_empty()) {
        let ip = address(field, text)?;
        let family = Family::of(ip);
        if ips.iter().any(|other| Family::of(*other) == family) {
            let reason = format!("{ip} is a second {family} address; a Service has one per family");
            return Err(Fault::new("wrong-family", field, reason));
        }
        if let Some(declared) = spec.ip_families.get(i).filter(|declared| **declared != family.to_string()) {
            let reason = format!("{ip} is {family}, but spec.ipFamilies[{i}] says {declared}");
            return Err(Fault::new("wrong-family", field, reason));
        }
        ips.push(ip);
    }
    if let (Some(first), false) = (ips.first(), spec.cluster_ip.is_empty())
        && spec.cluster_ip.parse() != Ok(*first)
    {
        let reason = format!("{:?} contradicts spec.clusterIPs[0], which is {first}", spec.cluster_ip);
        return Err(Fault::new("contradiction", "spec.clusterIP", reason));
    }
    Ok(ips.into())
}

fn addresses(field: &str, texts: &[String]) -> Result<Box<[IpAddr]>, Fault> {
    let mut ips = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let ip = address(&format!("{field}[{i}]"), text)?;
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    Ok(ips.into())
}

fn ingress_ips(status: Option<&api::ServiceStatus>) -> Result<Box<[IpAddr]>, Fault> {
    let mut ips = Vec::new();
    let ingress = status.and_then(|s| s.load_balancer.as_ref()).map_or(&[][..], |l| &l.ingress);
    for (i, entry) in ingress.iter().enumerate().filter(|(_, e)| !e.ip.is_empty()) {
        let field = format!("status.loadBalancer.ingress[{i}]");
        match entry.ip_mode.as_deref() {
            None | Some("VIP" | "") => {}
            Some("Proxy") => continue,
            Some(other) => {
                let reason = format!("{other:?} is neither VIP nor Proxy");
                return Err(Fault::new("bad-value", format!("{field}.ipMode"), reason));
            }
        }
        let ip = address(&format!("{field}.ip"), &entry.ip)?;
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    Ok(ips.into())
}

/// Parses ranges, and removes those that lie within others, because interval sets of the kernel cannot have overlaps. A
/// family whose ranges include all addresses has no limit, and therefore no range.
fn source_ranges(texts: &[String]) -> Result<Box<[IpNet]>, Fault> {
    let mut ranges: Vec<IpNet> = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let parsed: Result<IpNet, _> = text.trim().parse();
        let range = parsed.map_err(|_| {
            let reason = format!("{text:?} is not a CIDR such as 192.0.2.0/24");
            Fault::new("bad-address", format!("spec.loadBalancerSourceRanges[{i}]"), reason)
        })?;
        ranges.push(range.trunc());
    }
    let open: Vec<IpNet> = ranges.iter().filter(|r| r.prefix_len() == 0).copied().collect();
    ranges.retain(|r| !open.iter().any(|o| o.contains(r)));
    let all = ranges.clone();
    ranges.retain(|r| !all.iter().any(|other| other != r && other.contains(r)));
    ranges.sort();
    ranges.dedup();
    Ok(ranges.into())
}

fn ports(spec: &api::ServiceSpec) -> Result<Box<[Port]>, Fault> {
    let mut ports: Vec<Port> = Vec::with_capacity(spec.ports.len());
    for (i, given) in spec.ports.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{i}].{name}");
        let protocol = Protocol::parse(&given.protocol).ok_or_else(|| {
            let reason = format!("{:?} is none of TCP, UDP, SCTP", given.protocol);
            Fault::new("bad-value", field("protocol"), reason)
        })?;
        let read = Port {
            name: given.name.as_str().into(),
            protocol,
            port: port(&field("port"), given.port)?,
            node_port: match given.node_port {
                0 => None,
                n => Some(port(&field("nodePort"), n)?),
            },
        };
        for (j, other) in ports.iter().enumerate() {
            let clash = if other.name == read.name {
                Some(("name", format!("{:?} is also the name of spec.ports[{j}]", given.name)))
            } else if other.protocol == protocol && other.port == read.port {
                Some(("port", format!("{}/{protocol} is also spec.ports[{j}]", read.port)))
            } else if other.protocol == protocol
                && read.node_port.is_some()
                && other.node_port == read.node_port
            {
                Some(("nodePort", format!("{}/{protocol} is also spec.ports[{j}]'s", given.node_port)))
            } else {
                None
            };
            if let Some((name, reason)) = clash {
                return Err(Fault::new("duplicate", field(name), reason));
            }
        }
        ports.push(read);
    }
    Ok(ports.into())
}

fn policy(field: &str, text: &str) -> Result<TrafficPolicy, Fault> {
    match text {
        "" | "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        other => Err(Fault::new("bad-value", field, format!("{other:?} is neither Cluster nor Local"))),
    }
}

fn affinity(spec: &api::ServiceSpec) -> Result<Option<u32>, Fault> {
    match spec.session_affinity.as_str() {
        "" | "None" => return Ok(None),
        "ClientIP" => {}
        other => {
            let reason = format!("{other:?} is neither None nor ClientIP");
            return Err(Fault::new("bad-value", "spec.sessionAffinity", reason));
        }
    }
    let given = spec.session_affinity_config.and_then(|c| c.client_ip).and_then(|c| c.timeout_seconds);
    match given.unwrap_or(AFFINITY_SECONDS) {
        seconds @ 1..=AFFINITY_LIMIT => Ok(Some(seconds as u32)),
        other => Err(Fault::new(
            "bad-value",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format!("{other} is not within 1 to {AFFINITY_LIMIT}"),
        )),
    }
}

fn health_check(spec: &api::ServiceSpec, external: TrafficPolicy) -> Result<Option<u16>, Fault> {
    let wanted =
        spec.kind == "LoadBalancer" && external == TrafficPolicy::Local && spec.health_check_node_port != 0;
    wanted.then(|| port("spec.healthCheckNodePort", spec.health_check_node_port)).transpose()
}
