//! Converts a Service to the fields that the proxy uses.

use super::parse_ip;
use super::{Fault, address, parse_cidr, port, usable};
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

/// Converts a Service. None if a proxy ignores it: it is headless, an `ExternalName`, or has no cluster IP that can be
/// used.
pub fn read_service(object: &api::Service, faults: &mut Vec<Fault>) -> Option<Service> {
    let none = api::ServiceSpec::default();
    let spec = object.spec.as_ref().unwrap_or(&none);
    if spec.kind == "ExternalName"
        || spec.cluster_ip == "None"
        || spec.cluster_ips.iter().any(|ip| ip == "None")
    {
        return None;
    }
    let cluster_ips = cluster_ips(spec, faults);
    if cluster_ips.is_empty() {
        return None;
    }
    let external = policy("spec.externalTrafficPolicy", &spec.external_traffic_policy, faults);
    let internal = spec.internal_traffic_policy.as_deref().unwrap_or("");
    let meta = object.metadata.as_ref();
    let annotation = |name| meta.and_then(|m| m.annotations.get(name)).map(|text| text.trim().into());
    let (source_ranges, without_range) = source_ranges(&spec.load_balancer_source_ranges, faults);
    let mut load_balancer_ips = ingress_ips(object.status.as_ref(), faults);
    load_balancer_ips.retain(|ip| !without_range.contains(&Family::of(*ip)));
    Some(Service {
        external_ips: addresses("spec.externalIPs", &spec.external_ips, faults),
        load_balancer_ips: load_balancer_ips.into(),
        source_ranges,
        ports: ports(spec, faults),
        internal: policy("spec.internalTrafficPolicy", internal, faults),
        external,
        affinity: affinity(spec, faults),
        health_check: health_check(spec, external, faults),
        scheduler: annotation(SCHEDULER_ANNOTATION),
        proxy_protocol: annotation(PROXY_PROTOCOL_ANNOTATION),
        created: meta.and_then(|m| m.creation_timestamp).map_or(0, |t| t.seconds),
        uid: meta.map_or("", |m| &m.uid).into(),
        cluster_ips,
    })
}

fn cluster_ips(spec: &api::ServiceSpec, faults: &mut Vec<Fault>) -> Box<[IpAddr]> {
    let given: Vec<(String, &str)> = if spec.cluster_ips.is_empty() {
        vec![("spec.clusterIP".to_owned(), spec.cluster_ip.as_str())]
    } else {
        let all = spec.cluster_ips.iter().enumerate();
        all.map(|(i, ip)| (format!("spec.clusterIPs[{i}]"), ip.as_str())).collect()
    };
    let mut ips: Vec<IpAddr> = Vec::with_capacity(2);
    for (i, (field, text)) in given.iter().enumerate().filter(|(_, (_, text))| !text.is_empty()) {
        let Some(ip) = usable(address(field, text), faults) else { continue };
        let family = Family::of(ip);
        if ips.iter().any(|other| Family::of(*other) == family) {
            let reason = format!("{ip} is a second {family} address; a Service has one per family");
            faults.push(Fault::new("wrong-family", field, reason));
        } else if let Some(declared) = spec.ip_families.get(i).filter(|d| **d != family.to_string()) {
            let reason = format!("{ip} is {family}, but spec.ipFamilies[{i}] says {declared}");
            faults.push(Fault::new("wrong-family", field, reason));
        } else {
            ips.push(ip);
        }
    }
    if let (Some(first), Some(ip)) = (ips.first(), parse_ip(&spec.cluster_ip))
        && ip != *first
        && parse_ip(given[0].1) == Some(*first)
    {
        let reason = format!("{:?} contradicts spec.clusterIPs[0], which is {first}", spec.cluster_ip);
        faults.push(Fault::new("contradiction", "spec.clusterIP", reason));
    }
    ips.into()
}

fn addresses(field: &str, texts: &[String], faults: &mut Vec<Fault>) -> Box<[IpAddr]> {
    let mut ips = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let ip = usable(address(&format!("{field}[{i}]"), text), faults);
        ips.extend(ip.filter(|ip| !ips.contains(ip)));
    }
    ips.into()
}

fn ingress_ips(status: Option<&api::ServiceStatus>, faults: &mut Vec<Fault>) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    let ingress = status.and_then(|s| s.load_balancer.as_ref()).map_or(&[][..], |l| &l.ingress);
    for (i, entry) in ingress.iter().enumerate().filter(|(_, e)| !e.ip.is_empty()) {
        let field = format!("status.loadBalancer.ingress[{i}]");
        match entry.ip_mode.as_deref() {
            None | Some("VIP" | "") => {
                let ip = usable(address(&format!("{field}.ip"), &entry.ip), faults);
                ips.extend(ip.filter(|ip| !ips.contains(ip)));
            }
            Some("Proxy") => {}
            Some(other) => {
                let reason = format!("{other:?} is neither VIP nor Proxy");
                faults.push(Fault::new("bad-value", format!("{field}.ipMode"), reason));
            }
        }
    }
    ips
}

/// Parses ranges, and removes those that lie within others, because interval sets of the kernel cannot have overlaps. A
/// family whose ranges include all addresses has no limit, and therefore no range. Also returns the families in which no
/// range can be used: no limit would admit clients that should not be admitted, so these families are not served.
fn source_ranges(texts: &[String], faults: &mut Vec<Fault>) -> (Box<[IpNet]>, Vec<Family>) {
    let mut ranges: Vec<IpNet> = Vec::with_capacity(texts.len());
    let mut at_fault = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        let Some(range) = parse_cidr(text.trim()) else {
            let reason = format!("{text:?} is not a CIDR such as 192.0.2.0/24");
            faults.push(Fault::new("bad-address", format!("spec.loadBalancerSourceRanges[{i}]"), reason));
            at_fault.push(if text.contains(':') { Family::V6 } else { Family::V4 });
            continue;
        };
        ranges.push(range);
    }
    at_fault.retain(|family| !ranges.iter().any(|range| Family::of(range.addr()) == *family));
    let open: Vec<IpNet> = ranges.iter().filter(|r| r.prefix_len() == 0).copied().collect();
    ranges.retain(|r| !open.iter().any(|o| o.contains(r)));
    let all = ranges.clone();
    ranges.retain(|r| !all.iter().any(|other| other != r && other.contains(r)));
    ranges.sort();
    ranges.dedup();
    (ranges.into(), at_fault)
}

fn ports(spec: &api::ServiceSpec, faults: &mut Vec<Fault>) -> Box<[Port]> {
    let mut ports: Vec<(usize, Port)> = Vec::with_capacity(spec.ports.len());
    for (i, given) in spec.ports.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{i}].{name}");
        let Some(protocol) = Protocol::parse(&given.protocol) else {
            let reason = format!("{:?} is none of TCP, UDP, SCTP", given.protocol);
            faults.push(Fault::new("bad-value", field("protocol"), reason));
            continue;
        };
        let Some(number) = usable(port(&field("port"), given.port), faults) else { continue };
        let node_port = Some(given.node_port).filter(|n| *n != 0);
        let mut read = Port {
            name: given.name.as_str().into(),
            protocol,
            port: number,
            node_port: node_port.and_then(|n| usable(port(&field("nodePort"), n), faults)),
        };
        let mut duplicate = |name: &str, reason| faults.push(Fault::new("duplicate", field(name), reason));
        if let Some((j, _)) = ports.iter().find(|(_, other)| other.name == read.name) {
            duplicate("name", format!("{:?} is also the name of spec.ports[{j}]", given.name));
            continue;
        }
        let same_protocol = || ports.iter().filter(|(_, other)| other.protocol == protocol);
        if let Some((j, _)) = same_protocol().find(|(_, other)| other.port == number) {
            duplicate("port", format!("{number}/{protocol} is also spec.ports[{j}]"));
            continue;
        }
        if let Some(node_port) = read.node_port
            && let Some((j, _)) = same_protocol().find(|(_, other)| other.node_port == Some(node_port))
        {
            duplicate("nodePort", format!("{node_port}/{protocol} is also spec.ports[{j}]'s"));
            read.node_port = None;
        }
        ports.push((i, read));
    }
    ports.into_iter().map(|(_, port)| port).collect()
}

/// A value of a future release means the default, as in kube-proxy.
fn policy(field: &str, text: &str, faults: &mut Vec<Fault>) -> TrafficPolicy {
    match text {
        "" | "Cluster" => TrafficPolicy::Cluster,
        "Local" => TrafficPolicy::Local,
        other => {
            let reason = format!("{other:?} is neither Cluster nor Local; Cluster is used");
            faults.push(Fault::new("bad-value", field, reason));
            TrafficPolicy::Cluster
        }
    }
}

fn affinity(spec: &api::ServiceSpec, faults: &mut Vec<Fault>) -> Option<u32> {
    match spec.session_affinity.as_str() {
        "" | "None" => return None,
        "ClientIP" => {}
        other => {
            let reason = format!("{other:?} is neither None nor ClientIP; None is used");
            faults.push(Fault::new("bad-value", "spec.sessionAffinity", reason));
            return None;
        }
    }
    let given = spec.session_affinity_config.and_then(|c| c.client_ip).and_then(|c| c.timeout_seconds);
    match given.unwrap_or(AFFINITY_SECONDS) {
        seconds @ 1..=AFFINITY_LIMIT => Some(seconds as u32),
        other => {
            let reason = format!("{other} is not within 1 to {AFFINITY_LIMIT}; {AFFINITY_SECONDS} is used");
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            faults.push(Fault::new("bad-value", field, reason));
            Some(AFFINITY_SECONDS as u32)
        }
    }
}

fn health_check(spec: &api::ServiceSpec, external: TrafficPolicy, faults: &mut Vec<Fault>) -> Option<u16> {
    let wanted =
        spec.kind == "LoadBalancer" && external == TrafficPolicy::Local && spec.health_check_node_port != 0;
    let number = spec.health_check_node_port;
    wanted.then(|| usable(port("spec.healthCheckNodePort", number), faults)).flatten()
}
