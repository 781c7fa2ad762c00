//! Makes the [`Config`] from the values as typed, including the settings that depend on others.
//!
//! Before the table assigns values: flags that apply to several modes, and the section `iptables` where it applies to
//! nftables mode. Afterwards: addresses of servers with the deprecated port flags, the detection of local pods,
//! addresses of node ports, and sync periods. Follows upstream's defaulting
//! (`pkg/proxy/apis/config/v1alpha1/defaults.go`) and validation field by field.

use super::domain::{Config, LocalDetection, NodePortAddresses, SyncPeriods, all_addresses};
use super::feature_gates;
use super::parse::{cidr, cluster_cidrs, default_hosts, interface_name, listen_address};
use super::settings::table;
use portway_config::{Checks, ConfigError, Given, Typed, Value, format_duration};
use portway_dataplane::Section;
use portway_model::Family;
use std::net::{IpAddr, SocketAddr};

/// The default port of `/healthz`.
const HEALTHZ_PORT: u16 = 10256;
/// The default port of `/metrics`.
const METRICS_PORT: u16 = 10249;

/// The configuration of the typed values, or all errors in them.
pub(super) fn resolve(mut typed: Typed) -> Result<Config, Vec<ConfigError>> {
    apply_shared_flags(&mut typed);
    apply_iptables_section_to_nftables(&mut typed);
    let mut checks = Checks::default();
    let mut config = Config::defaults();
    table().assign(&mut config, &typed, &mut checks);
    let (healthz, metrics) = default_hosts(config.bind_address);
    apply_port_flag(&mut typed, "healthzBindAddress", "--healthz-port", healthz, &mut checks);
    apply_port_flag(&mut typed, "metricsBindAddress", "--metrics-port", metrics, &mut checks);
    let (healthz, metrics) = (SocketAddr::new(healthz, HEALTHZ_PORT), SocketAddr::new(metrics, METRICS_PORT));
    config.healthz = listen(&typed, "healthzBindAddress", healthz, &mut checks);
    config.metrics = listen(&typed, "metricsBindAddress", metrics, &mut checks);
    config.local_detection = local_detection(&typed, &mut checks);
    config.node_port_addresses = node_port_addresses(&typed, &config, &mut checks);
    feature_gates::check(&typed, &config, &mut checks);
    for (path, sync) in [
        ("nftables.minSyncPeriod", config.nftables.sync),
        ("iptables.minSyncPeriod", config.iptables.sync),
        ("ipvs.minSyncPeriod", config.ipvs.sync),
        ("userspace.minSyncPeriod", config.userspace.sync),
    ] {
        // Without a mode, the periods of iptables were copied to nftables, and are checked there.
        if typed.text("mode").is_some() || path != "iptables.minSyncPeriod" {
            check_periods(&typed, path, sync, &mut checks);
        }
    }
    checks.finish(config)
}

/// Applies flags to more modes than the one of their setting: `--masquerade-all` to every mode, and
/// `--iptables-sync-period` and `--iptables-min-sync-period` to nftables mode, for which upstream has no flags.
fn apply_shared_flags(typed: &mut Typed) {
    let by_flag = |typed: &Typed, path: &str| typed.get(path).is_some_and(Given::by_flag);
    if by_flag(typed, "nftables.masqueradeAll") {
        typed.copy("nftables.masqueradeAll", "iptables.masqueradeAll");
    }
    for (iptables, nftables) in PERIODS {
        if by_flag(typed, iptables) && !typed.has(nftables) {
            typed.copy(iptables, nftables);
        }
    }
}

const PERIODS: [(&str, &str); 2] =
    [("iptables.syncPeriod", "nftables.syncPeriod"), ("iptables.minSyncPeriod", "nftables.minSyncPeriod")];

/// Without a `mode`, applies the section `iptables` to nftables mode where the section `nftables` has no value: a file
/// without a `mode` was written for upstream's default mode, iptables, and its settings are meant for the default mode.
fn apply_iptables_section_to_nftables(typed: &mut Typed) {
    if typed.text("mode").is_some() {
        return;
    }
    if !typed.has("nftables.masqueradeBit") {
        typed.copy("iptables.masqueradeBit", "nftables.masqueradeBit");
    }
    if typed.get("nftables.masqueradeAll").is_none_or(|given| given.value == Value::Bool(false)) {
        typed.copy("iptables.masqueradeAll", "nftables.masqueradeAll");
    }
    for (iptables, nftables) in PERIODS {
        if typed.get(nftables).is_none_or(|given| given.value.is_zero()) {
            typed.copy(iptables, nftables);
        }
    }
}

/// Applies a deprecated port flag: zero turns the server off, another value is the port of an address without a port.
fn apply_port_flag(typed: &mut Typed, field: &'static str, flag: &str, host: IpAddr, checks: &mut Checks) {
    let Some(given) = typed.take(flag) else { return };
    let Value::Integer(port) = given.value else { return };
    let Ok(port) = u16::try_from(port) else { return checks.invalid(&given, "must be between 0 and 65535") };
    let address = typed.text(field).map(|(text, given)| (text.to_owned(), given.clone()));
    let (text, given) = match address {
        _ if port == 0 => (String::new(), given),
        None => (SocketAddr::new(host, port).to_string(), given),
        Some((text, given)) => {
            let bare = text.parse::<IpAddr>().ok();
            (bare.map_or(text, |ip| SocketAddr::new(ip, port).to_string()), given)
        }
    };
    typed.set(field, Given { value: Value::Text(text), field, ..given });
}

/// A server's address. An empty one means the default in a file; on the command line it turns the server off.
fn listen(typed: &Typed, field: &str, default: SocketAddr, checks: &mut Checks) -> Option<SocketAddr> {
    if typed.get(field).is_some_and(|given| given.by_flag() && given.value == Value::Text(String::new())) {
        return None;
    }
    Some(text(typed, field, checks, |text| listen_address(text, default.port())).unwrap_or(default))
}

fn local_detection(typed: &Typed, checks: &mut Checks) -> LocalDetection {
    let Some((mode, given)) = typed.text("detectLocalMode") else { return by_cluster_cidr(typed, checks) };
    let mut interface = |field, flag| {
        if typed.text(field).is_none() {
            checks.invalid(given, format!("needs {}", if given.by_flag() { flag } else { field }));
        }
        text(typed, field, checks, interface_name).unwrap_or_default()
    };
    match mode {
        "ClusterCIDR" => by_cluster_cidr(typed, checks),
        "NodeCIDR" => LocalDetection::NodeCidr,
        "BridgeInterface" => LocalDetection::BridgeInterface(interface(
            "detectLocal.bridgeInterface",
            "--pod-bridge-interface",
        )),
        "InterfaceNamePrefix" => LocalDetection::InterfaceNamePrefix(interface(
            "detectLocal.interfaceNamePrefix",
            "--pod-interface-name-prefix",
        )),
        _ => {
            checks
                .invalid(given, "is not one of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix");
            LocalDetection::None
        }
    }
}

fn by_cluster_cidr(typed: &Typed, checks: &mut Checks) -> LocalDetection {
    text(typed, "clusterCIDR", checks, cluster_cidrs)
        .map_or(LocalDetection::None, LocalDetection::ClusterCidr)
}

/// The addresses of node ports: keywords and ranges.
///
/// The default is the primary addresses if the mode is set to nftables, and every address in other modes. Without a mode
/// the addresses are those of kube-proxy's default mode, iptables: every address, and loopback addresses unless
/// `iptables.localhostNodePorts` is off.
fn node_port_addresses(typed: &Typed, config: &Config, checks: &mut Checks) -> NodePortAddresses {
    let without_mode = typed.text("mode").is_none();
    let mut addresses = NodePortAddresses::default();
    let given = typed.get("nodePortAddresses");
    if given.is_none_or(|given| given.items().is_empty()) {
        addresses.primary = config.mode().section() == Section::Nftables && !without_mode;
    }
    for (index, item, text) in given.into_iter().flat_map(Given::texts) {
        match text.trim() {
            "primary" => addresses.primary = true,
            "localhost" => addresses.localhost = true,
            "all" => addresses.cidrs.extend(Family::ALL.map(all_addresses)),
            range => match cidr(range) {
                Ok(cidr) => addresses.cidrs.push(cidr),
                Err(reason) => {
                    let reason = format!("{reason}, nor one of the keywords primary, localhost and all");
                    checks.invalid_item(item, &format!("[{index}]"), reason);
                }
            },
        }
    }
    if without_mode && config.iptables.localhost_node_ports && addresses.contains_loopback() {
        addresses.add_localhost();
    } else if without_mode && addresses == NodePortAddresses::default() {
        addresses.cidrs = Family::ALL.map(all_addresses).into();
    }
    addresses
}

fn check_periods(typed: &Typed, path: &str, sync: SyncPeriods, checks: &mut Checks) {
    if let Some(given) = typed.get(path).filter(|_| sync.min.is_some_and(|min| min > sync.period)) {
        let period = format_duration(sync.period);
        checks.invalid(given, format!("must not be longer than the sync period, {period}"));
    }
}

/// Parses a setting's text, if one was given. An invalid one is reported, and treated as not given.
fn text<T>(
    typed: &Typed,
    path: &str,
    checks: &mut Checks,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let (text, given) = typed.text(path)?;
    parse(text.trim()).map_err(|reason| checks.invalid(given, reason)).ok()
}

#[cfg(test)]
mod tests;
