//! What configuration, node and ranges mean for a mode.

use crate::config::{Config, FamilyAddresses, LocalDetection, Mode};
use ipnet::IpNet;
use portway_dataplane::{IpvsSettings, LocalTraffic, NodePortAddresses, Settings, UserspaceSettings};
use portway_model::{Family, Node};
use std::net::IpAddr;
use std::time::Duration;

/// The settings for a mode. `primary` are the node's primary addresses.
pub(crate) fn settings(
    config: &Config,
    node: &Node,
    primary: &[IpAddr],
    service_cidrs: Vec<IpNet>,
) -> Settings {
    Settings {
        masquerade_all: config.masquerade().all,
        masquerade_mark: config.masquerade().mark(),
        local: local_traffic(config, node),
        node_ports: node_ports(config, primary),
        service_cidrs,
        localhost_node_ports: config.localhost_node_ports(),
        drop_invalid: !config.conntrack.tcp_be_liberal,
        ipvs: if config.mode == Mode::Ipvs { ipvs(&config.ipvs) } else { IpvsSettings::default() },
        userspace: UserspaceSettings::default(),
    }
}

fn ipvs(config: &crate::config::IpvsSettings) -> IpvsSettings {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).ok().filter(|seconds| *seconds > 0);
    IpvsSettings {
        scheduler: config.scheduler,
        exclude: config.exclude_cidrs.clone(),
        strict_arp: config.strict_arp,
        tcp_timeout: seconds(config.tcp_timeout),
        tcp_fin_timeout: seconds(config.tcp_fin_timeout),
        udp_timeout: seconds(config.udp_timeout),
    }
}

fn local_traffic(config: &Config, node: &Node) -> LocalTraffic {
    match &config.local_detection {
        LocalDetection::None => LocalTraffic::Unknown,
        LocalDetection::ClusterCidr(ranges) => LocalTraffic::Cidrs(ranges.clone()),
        // Until the node has its pod network, no traffic can be told to be a pod's.
        LocalDetection::NodeCidr if node.pod_cidrs.is_empty() => LocalTraffic::Unknown,
        LocalDetection::NodeCidr => LocalTraffic::Cidrs(node.pod_cidrs.clone()),
        LocalDetection::BridgeInterface(name) => LocalTraffic::Interface(name.clone()),
        LocalDetection::InterfaceNamePrefix(prefix) => LocalTraffic::InterfacePrefix(prefix.clone()),
    }
}

fn node_ports(config: &Config, primary: &[IpAddr]) -> NodePortAddresses {
    let by_family = Family::ALL.map(|family| (family, config.node_port_addresses.of_family(family)));
    if by_family.iter().all(|(_, a)| *a == FamilyAddresses::All) {
        return NodePortAddresses::All;
    }
    let mut ranges = Vec::new();
    for (family, addresses) in by_family {
        match addresses {
            FamilyAddresses::All => ranges.push(everything(family)),
            FamilyAddresses::Cidrs(cidrs) => ranges.extend(cidrs),
            FamilyAddresses::Primary => {
                let own = primary.iter().filter(|ip| Family::of(**ip) == family).take(1);
                ranges.extend(own.map(|ip| IpNet::from(*ip)));
            }
        }
    }
    NodePortAddresses::Within(ranges)
}

fn everything(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert(std::net::Ipv4Addr::UNSPECIFIED.into(), 0),
        Family::V6 => IpNet::new_assert(std::net::Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}
