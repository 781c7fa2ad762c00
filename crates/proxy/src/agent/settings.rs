//! The settings of a mode, from the configuration, the Node object and the ServiceCIDRs.

use crate::config::{Config, FamilyAddresses, LocalDetection, all_addresses};
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
        terse: false,
        drop_invalid: !config.conntrack.tcp_be_liberal && !conntrack_is_liberal(),
        // Set by a mode that sends packets itself.
        bypass_mark: None,
        ipvs: ipvs(&config.ipvs),
        userspace: UserspaceSettings {
            localhost_node_ports: config.localhost_node_ports(),
            ..userspace(&config.userspace, primary, config.masquerade().mark())
        },
    }
}

/// Whether connection tracking accepts TCP packets outside of the window on this host, so that none of them is invalid.
fn conntrack_is_liberal() -> bool {
    let path = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
    std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "1")
}

/// The settings as far as the configuration alone gives them.
pub(crate) fn initial(config: &Config) -> Settings {
    settings(config, &Node::default(), &[], Vec::new())
}

fn userspace(
    config: &crate::config::UserspaceSettings,
    primary: &[IpAddr],
    masquerade_mark: u32,
) -> UserspaceSettings {
    UserspaceSettings {
        addresses: primary.to_vec(),
        balancing: config.balancing,
        connect_timeout: config.connect_timeout,
        connect_attempts: config.connect_attempts,
        drain_timeout: config.drain_timeout,
        stop_timeout: config.stop_timeout,
        udp_timeout: config.udp_timeout,
        udp_sessions: config.udp_sessions,
        bypass_mark: UserspaceSettings::choose_bypass_mark(masquerade_mark),
        localhost_node_ports: false,
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
        // Before the Node object has a pod CIDR, the traffic of pods cannot be recognized.
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
            FamilyAddresses::All => ranges.push(all_addresses(family)),
            FamilyAddresses::Chosen { primary: with_primary, cidrs } => {
                // The relay serves loopback addresses; no rule may concern them.
                let cidrs = cidrs.into_iter().filter(|net| !net.addr().is_loopback());
                let own = primary.iter().filter(|ip| with_primary && Family::of(**ip) == family).take(1);
                ranges.extend(own.map(|ip| IpNet::from(*ip)).chain(cidrs));
            }
        }
    }
    NodePortAddresses::Within(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ProxyFlags, merge};
    use clap::Parser;
    use portway_dataplane::Balancing;

    fn settings_with(flags: &[&str]) -> Settings {
        let args = std::iter::once("kube-proxy").chain(flags.iter().copied());
        let flags = ProxyFlags::try_parse_from(args).expect("flags");
        let (config, _) = merge(&flags, None).expect("valid flags");
        let mode = config.mode();
        let primary = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().expect("an address"));
        mode.settings(settings(&config, &Node::default(), &primary, Vec::new()))
    }

    #[test]
    fn userspace_settings_reach_only_the_userspace_mode() {
        let flags = [
            "--userspace-balancing=least-connections",
            "--userspace-connect-timeout=2s",
            "--userspace-connect-attempts=3",
            "--userspace-drain-timeout=4s",
            "--userspace-stop-timeout=5s",
            "--userspace-udp-idle-timeout=6s",
            "--userspace-max-udp-sessions=7",
        ];
        assert_eq!(settings_with(&flags).userspace, UserspaceSettings::default());
        let passed = settings_with(&[&["--proxy-mode=userspace"], &flags[..]].concat()).userspace;
        let wanted = UserspaceSettings {
            addresses: vec![
                "192.0.2.1".parse().expect("an address"),
                "2001:db8::1".parse().expect("an address"),
            ],
            balancing: Balancing::LeastConnections,
            connect_timeout: Duration::from_secs(2),
            connect_attempts: 3,
            drain_timeout: Duration::from_secs(4),
            stop_timeout: Duration::from_secs(5),
            udp_timeout: Duration::from_secs(6),
            udp_sessions: 7,
            bypass_mark: 1 << 13,
            localhost_node_ports: false,
        };
        assert_eq!(passed, wanted);
        let taken = settings_with(&["--proxy-mode=userspace", "--iptables-masquerade-bit=13"]);
        assert_eq!((taken.masquerade_mark, taken.userspace.bypass_mark), (1 << 13, 1 << 12));
    }
}
