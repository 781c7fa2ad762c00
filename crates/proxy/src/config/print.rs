//! A configuration written out again: as JSON for `/configz`, as YAML for `--write-config-to`.
//!
//! Every setting is written, defaults too, under upstream's names, and Portway's own in `userspace`; [`super::parse`] and [`super::merge()`] bring the
//! same `Config` back. Two things that only flags can say are not written: `--master`, and that a server is off (an
//! empty address in a file is its default).

use super::domain::{Config, LocalDetection, LogFormat, NodePortAddresses, SyncPeriods};
use super::duration::format_duration;
use super::{API_VERSION, KIND};
use ipnet::IpNet;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// The configuration as a `KubeProxyConfiguration` in YAML.
pub fn to_yaml(config: &Config) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&to_json(config))
}

/// The configuration as a `KubeProxyConfiguration` in JSON.
pub fn to_json(config: &Config) -> Value {
    let (detect_local_mode, cluster_cidr) = match &config.local_detection {
        LocalDetection::None => ("ClusterCIDR", String::new()),
        LocalDetection::ClusterCidr(cidrs) => ("ClusterCIDR", joined(cidrs)),
        LocalDetection::NodeCidr => ("NodeCIDR", String::new()),
        LocalDetection::BridgeInterface(_) => ("BridgeInterface", String::new()),
        LocalDetection::InterfaceNamePrefix(_) => ("InterfaceNamePrefix", String::new()),
    };
    let (bridge, prefix) = match &config.local_detection {
        LocalDetection::BridgeInterface(name) => (name.as_str(), ""),
        LocalDetection::InterfaceNamePrefix(name) => ("", name.as_str()),
        _ => ("", ""),
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "bindAddress": config.bind_address.to_string(),
        "bindAddressHardFail": config.bind_hard_fail,
        "clientConnection": {
            "acceptContentTypes": config.client.accept_content_types,
            "burst": config.client.burst,
            "contentType": config.client.content_type,
            "kubeconfig": config.client.kubeconfig.as_ref().map_or(String::new(), |path| path.display().to_string()),
            "qps": config.client.qps,
        },
        "clusterCIDR": cluster_cidr,
        "configSyncPeriod": format_duration(config.config_sync_period),
        "conntrack": conntrack(config),
        "detectLocal": { "bridgeInterface": bridge, "interfaceNamePrefix": prefix },
        "detectLocalMode": detect_local_mode,
        "enableProfiling": config.profiling,
        "featureGates": config.feature_gates,
        "healthzBindAddress": address(config.healthz),
        "hostnameOverride": config.hostname_override.as_deref().unwrap_or_default(),
        "iptables": iptables(config),
        "ipvs": ipvs(config),
        "logging": logging(config),
        "metricsBindAddress": address(config.metrics),
        "mode": config.mode.as_str(),
        "nftables": {
            "masqueradeAll": config.nftables.masquerade.all,
            "masqueradeBit": config.nftables.masquerade.bit,
            "minSyncPeriod": min(config.nftables.sync),
            "syncPeriod": format_duration(config.nftables.sync.period),
        },
        "nodePortAddresses": node_port_addresses(&config.node_port_addresses),
        "oomScoreAdj": config.oom_score_adj,
        "showHiddenMetricsForVersion": config.show_hidden_metrics_for_version.as_deref().unwrap_or_default(),
        "userspace": userspace(config),
    })
}

fn conntrack(config: &Config) -> Value {
    let conntrack = &config.conntrack;
    let timeout = |timeout: Option<Duration>| format_duration(timeout.unwrap_or_default());
    json!({
        "maxPerCore": conntrack.max_per_core,
        "min": conntrack.min,
        "tcpBeLiberal": conntrack.tcp_be_liberal,
        "tcpCloseWaitTimeout": timeout(conntrack.tcp_close_wait),
        "tcpEstablishedTimeout": timeout(conntrack.tcp_established),
        "udpStreamTimeout": timeout(conntrack.udp_stream),
        "udpTimeout": timeout(conntrack.udp),
    })
}

fn iptables(config: &Config) -> Value {
    let iptables = &config.iptables;
    json!({
        "localhostNodePorts": iptables.localhost_node_ports,
        "masqueradeAll": iptables.masquerade.all,
        "masqueradeBit": iptables.masquerade.bit,
        "minSyncPeriod": min(iptables.sync),
        "syncPeriod": format_duration(iptables.sync.period),
    })
}

fn ipvs(config: &Config) -> Value {
    let ipvs = &config.ipvs;
    json!({
        "excludeCIDRs": ipvs.exclude_cidrs,
        "minSyncPeriod": min(ipvs.sync),
        "scheduler": ipvs.scheduler.as_str(),
        "strictARP": ipvs.strict_arp,
        "syncPeriod": format_duration(ipvs.sync.period),
        "tcpFinTimeout": format_duration(ipvs.tcp_fin_timeout),
        "tcpTimeout": format_duration(ipvs.tcp_timeout),
        "udpTimeout": format_duration(ipvs.udp_timeout),
    })
}

fn userspace(config: &Config) -> Value {
    let userspace = &config.userspace;
    json!({
        "balancing": userspace.balancing.as_str(),
        "connectAttempts": userspace.connect_attempts,
        "connectTimeout": format_duration(userspace.connect_timeout),
        "drainTimeout": format_duration(userspace.drain_timeout),
        "maxUDPSessions": userspace.udp_sessions,
        "minSyncPeriod": min(userspace.sync),
        "stopTimeout": format_duration(userspace.stop_timeout),
        "syncPeriod": format_duration(userspace.sync.period),
        "udpIdleTimeout": format_duration(userspace.udp_timeout),
    })
}

fn logging(config: &Config) -> Value {
    let logging = &config.logging;
    let vmodule = logging.vmodule.iter();
    json!({
        "flushFrequency": format_duration(logging.flush_frequency),
        "format": match logging.format { LogFormat::Text => "text", LogFormat::Json => "json" },
        "verbosity": logging.verbosity,
        "vmodule": vmodule
            .map(|(pattern, level)| json!({ "filePattern": pattern, "verbosity": level }))
            .collect::<Vec<_>>(),
    })
}

fn node_port_addresses(addresses: &NodePortAddresses) -> Vec<String> {
    match addresses {
        NodePortAddresses::Primary => vec!["primary".to_owned()],
        NodePortAddresses::Cidrs(cidrs) => cidrs.iter().map(ToString::to_string).collect(),
    }
}

fn address(address: Option<SocketAddr>) -> String {
    address.map_or(String::new(), |address| address.to_string())
}

fn min(sync: SyncPeriods) -> String {
    format_duration(sync.min.unwrap_or_default())
}

fn joined(cidrs: &[IpNet]) -> String {
    cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
