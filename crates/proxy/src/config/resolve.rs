//! From a configuration as typed to one as meant: defaults, ranges, and fields that only make sense together.
//!
//! Upstream's defaulting (`pkg/proxy/apis/config/v1alpha1/defaults.go`) and validation are followed field by
//! field; an empty text, and a zero where zero means nothing, count as not given.

use super::check::{Checks, cidr, cluster_cidrs, default_hosts, interface_name, ip, listen_address};
use super::domain::{
    ClientSettings, Config, ConntrackSettings, IptablesSettings, IpvsSettings, LocalDetection, LogFormat,
    Logging, Masquerade, Mode, NftablesSettings, NodePortAddresses, SyncPeriods, UserspaceSettings,
};
use super::error::{ConfigError, Origin};
use super::file::{
    ClientConnectionSection, ConntrackSection, Field, FileConfig, Given, IpvsSection, LoggingSection,
    UserspaceSection,
};
use super::format_duration;
use portway_dataplane::{Balancing, Scheduler};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The port of `/healthz` unless told.
const HEALTHZ_PORT: u16 = 10256;
/// The port of `/metrics` unless told.
const METRICS_PORT: u16 = 10249;
const SYNC_PERIOD: Duration = Duration::from_secs(30);
const CONFIG_SYNC_PERIOD: Duration = Duration::from_secs(15 * 60);
const MASQUERADE_BIT: u8 = 14;
const OOM_SCORE_ADJ: i16 = -999;
const I32: std::ops::RangeInclusive<i64> = 0..=i32::MAX as i64;

/// Says what a typed configuration means; `master` comes from the command line only.
pub(super) fn resolve(typed: &FileConfig, master: Option<String>) -> Result<Config, Vec<ConfigError>> {
    let mut checks = Checks::default();
    let c = &mut checks;
    let mode = resolve_mode(c, &typed.mode);
    let bind_address = c.text("bindAddress", &typed.bind_address, ip).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let (healthz_host, metrics_host) = default_hosts(bind_address);
    let nftables = resolve_nftables(c, typed);
    let config = Config {
        mode,
        hostname_override: c.text("hostnameOverride", &typed.hostname_override, node_name),
        bind_address,
        healthz: listen(c, "healthzBindAddress", &typed.healthz_bind_address, healthz_host, HEALTHZ_PORT),
        metrics: listen(c, "metricsBindAddress", &typed.metrics_bind_address, metrics_host, METRICS_PORT),
        bind_hard_fail: is_set(&typed.bind_address_hard_fail),
        profiling: is_set(&typed.enable_profiling),
        show_hidden_metrics_for_version: text(&typed.show_hidden_metrics_for_version),
        client: resolve_client(c, &typed.client_connection, master),
        local_detection: resolve_local_detection(c, typed),
        node_port_addresses: resolve_node_port_addresses(c, mode, &typed.node_port_addresses),
        config_sync_period: period(c, "configSyncPeriod", &typed.config_sync_period, CONFIG_SYNC_PERIOD),
        conntrack: resolve_conntrack(c, &typed.conntrack),
        oom_score_adj: c.within("oomScoreAdj", &typed.oom_score_adj, -1000..=1000).unwrap_or(OOM_SCORE_ADJ),
        logging: resolve_logging(c, &typed.logging),
        feature_gates: typed.feature_gates.iter().map(|(name, on)| (name.clone(), on.value)).collect(),
        nftables,
        iptables: resolve_iptables(c, typed),
        ipvs: resolve_ipvs(c, &typed.ipvs),
        userspace: resolve_userspace(c, &typed.userspace),
    };
    if checks.errors.is_empty() { Ok(config) } else { Err(checks.errors) }
}

/// A mode by name. The one of Windows is told apart from one that does not exist.
fn resolve_mode(c: &mut Checks, typed: &Field<String>) -> Mode {
    let Some(given) = typed.as_ref().filter(|given| !given.value.is_empty()) else { return Mode::Nftables };
    Mode::ALL.into_iter().find(|mode| mode.as_str() == given.value).unwrap_or_else(|| {
        let why = match given.value.as_str() {
            "kernelspace" => {
                "is for Windows nodes; Portway runs on Linux, in mode nftables, iptables, ipvs or userspace"
            }
            _ => "is not a proxy mode: this release has nftables, iptables, ipvs and userspace",
        };
        c.invalid("mode", given, why);
        Mode::Nftables
    })
}

/// Settings of nftables mode.
///
/// A file without a `mode` was written for upstream's default, iptables, and says what it wants in `iptables`.
/// Those settings are meant for whichever mode runs, so they stand in where `nftables` is silent.
fn resolve_nftables(c: &mut Checks, typed: &FileConfig) -> NftablesSettings {
    let (nftables, iptables) = (&typed.nftables, &typed.iptables);
    let stand_in = typed.mode.as_ref().is_none_or(|given| given.value.is_empty());
    let bit = if stand_in && nftables.masquerade_bit.is_none() {
        masquerade_bit(c, "iptables.masqueradeBit", &iptables.masquerade_bit)
    } else {
        masquerade_bit(c, "nftables.masqueradeBit", &nftables.masquerade_bit)
    };
    let all = is_set(&nftables.masquerade_all) || stand_in && is_set(&iptables.masquerade_all);
    let (section, periods) = if stand_in && not_zero(&nftables.sync_period).is_none() {
        ("iptables", &iptables.sync_period)
    } else {
        ("nftables", &nftables.sync_period)
    };
    let period = period(c, &format!("{section}.syncPeriod"), periods, SYNC_PERIOD);
    let (section, least) = if stand_in && not_zero(&nftables.min_sync_period).is_none() {
        ("iptables", &iptables.min_sync_period)
    } else {
        ("nftables", &nftables.min_sync_period)
    };
    let min = min_period(c, &format!("{section}.minSyncPeriod"), least, period);
    NftablesSettings { masquerade: Masquerade { all, bit }, sync: SyncPeriods { period, min } }
}

fn masquerade_bit(c: &mut Checks, field: &str, typed: &Field<i64>) -> u8 {
    c.within(field, typed, 0..=31).unwrap_or(MASQUERADE_BIT)
}

/// A period that must be longer than nothing. Zero is "not given" in a file, where Go writes it for that, and a
/// mistake on the command line, where somebody typed it.
fn period(c: &mut Checks, field: &str, typed: &Field<Duration>, default: Duration) -> Duration {
    match typed {
        Some(Given { value: Duration::ZERO, origin: Origin::File { .. } }) => default,
        _ => positive(c, field, typed, default),
    }
}

/// A time that must be longer than nothing, wherever it was given.
fn positive(c: &mut Checks, field: &str, typed: &Field<Duration>, default: Duration) -> Duration {
    if let Some(given) = typed.as_ref().filter(|given| given.value.is_zero()) {
        let given = Given { value: "0", origin: given.origin.clone() };
        c.invalid(field, &given, "must be longer than nothing");
    }
    not_zero(typed).map_or(default, |given| given.value)
}

fn min_period(c: &mut Checks, field: &str, typed: &Field<Duration>, period: Duration) -> Option<Duration> {
    let given = not_zero(typed)?;
    if given.value > period {
        let given = Given { value: format_duration(given.value), origin: given.origin.clone() };
        c.invalid(
            field,
            &given,
            format!("must not be longer than the sync period, {}", format_duration(period)),
        );
    }
    Some(given.value)
}

/// A server's address. Empty is the default in a file; on the command line it turns the server off.
fn listen(c: &mut Checks, field: &str, typed: &Field<String>, host: IpAddr, port: u16) -> Option<SocketAddr> {
    if let Some(Given { value, origin: Origin::Flag(_) }) = typed
        && value.is_empty()
    {
        return None;
    }
    let given = c.text(field, typed, |text| listen_address(text, port));
    Some(given.unwrap_or(SocketAddr::new(host, port)))
}

fn node_name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("is empty: give a node's name, or leave it out".to_owned()),
        name => Ok(name.to_lowercase()),
    }
}

fn resolve_client(c: &mut Checks, typed: &ClientConnectionSection, master: Option<String>) -> ClientSettings {
    let qps = typed.qps.as_ref().filter(|given| given.value != 0.0);
    if let Some(given) = qps.filter(|given| !given.value.is_finite()) {
        c.invalid("clientConnection.qps", given, "is not a number of requests");
    }
    let burst = c.within("clientConnection.burst", &typed.burst, I32).filter(|burst| *burst != 0);
    ClientSettings {
        kubeconfig: text(&typed.kubeconfig).map(PathBuf::from),
        master: master.filter(|master| !master.is_empty()),
        accept_content_types: text(&typed.accept_content_types).unwrap_or_default(),
        content_type: text(&typed.content_type).unwrap_or("application/vnd.kubernetes.protobuf".to_owned()),
        qps: qps.map_or(5.0, |given| given.value),
        burst: burst.unwrap_or(10),
    }
}

fn resolve_local_detection(c: &mut Checks, typed: &FileConfig) -> LocalDetection {
    let mode = typed.detect_local_mode.as_ref().map_or("", |given| given.value.as_str());
    match mode {
        "" | "ClusterCIDR" => match c.text("clusterCIDR", &typed.cluster_cidr, cluster_cidrs) {
            Some(cidrs) => LocalDetection::ClusterCidr(cidrs),
            None => LocalDetection::None,
        },
        "NodeCIDR" => LocalDetection::NodeCidr,
        "BridgeInterface" => {
            let name = &typed.detect_local.bridge_interface;
            LocalDetection::BridgeInterface(required_interface(c, typed, "detectLocal.bridgeInterface", name))
        }
        "InterfaceNamePrefix" => {
            let name = &typed.detect_local.interface_name_prefix;
            LocalDetection::InterfaceNamePrefix(required_interface(
                c,
                typed,
                "detectLocal.interfaceNamePrefix",
                name,
            ))
        }
        _ => {
            if let Some(given) = &typed.detect_local_mode {
                let why = "is not one of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix";
                c.invalid("detectLocalMode", given, why);
            }
            LocalDetection::None
        }
    }
}

/// The interface that `detectLocalMode` needs; without one the mode is the mistake.
fn required_interface(c: &mut Checks, typed: &FileConfig, field: &str, name: &Field<String>) -> String {
    if let Some(mode) = typed.detect_local_mode.as_ref().filter(|_| text(name).is_none()) {
        let flag =
            if field.ends_with("Prefix") { "--pod-interface-name-prefix" } else { "--pod-bridge-interface" };
        let needs = if matches!(mode.origin, Origin::Flag(_)) { flag } else { field };
        c.invalid("detectLocalMode", mode, format!("needs {needs}"));
    }
    c.text(field, name, interface_name).unwrap_or_default()
}

fn resolve_node_port_addresses(c: &mut Checks, mode: Mode, typed: &[Given<String>]) -> NodePortAddresses {
    const FIELD: &str = "nodePortAddresses";
    let silent = typed.is_empty() && mode == Mode::Nftables;
    if silent || !typed.is_empty() && typed.iter().all(|given| given.value.trim() == "primary") {
        return NodePortAddresses::Primary;
    }
    let mut cidrs = Vec::new();
    for (index, given) in typed.iter().enumerate() {
        let field = format!("{FIELD}[{index}]");
        match given.value.trim() {
            "primary" => c.invalid(&field, given, "cannot stand beside other addresses"),
            "localhost" => {
                c.invalid(&field, given, "is not a range; mode iptables has localhostNodePorts for that");
            }
            // A keyword of kube-proxy v1.37.
            "all" => cidrs.extend(["0.0.0.0/0", "::/0"].iter().filter_map(|all| cidr(all).ok())),
            _ => cidrs.extend(c.item(&field, given, cidr)),
        }
    }
    NodePortAddresses::Cidrs(cidrs)
}

fn resolve_conntrack(c: &mut Checks, typed: &ConntrackSection) -> ConntrackSettings {
    // Unlike elsewhere, a zero timeout says something: leave the kernel's value.
    let timeout = |given: &Field<Duration>, default: Duration| {
        Some(given.as_ref().map_or(default, |given| given.value)).filter(|timeout| !timeout.is_zero())
    };
    ConntrackSettings {
        max_per_core: c.within("conntrack.maxPerCore", &typed.max_per_core, I32).unwrap_or(32 * 1024),
        min: c.within("conntrack.min", &typed.min, I32).unwrap_or(128 * 1024),
        tcp_established: timeout(&typed.tcp_established_timeout, ConntrackSettings::DEFAULT_TCP_ESTABLISHED),
        tcp_close_wait: timeout(&typed.tcp_close_wait_timeout, ConntrackSettings::DEFAULT_TCP_CLOSE_WAIT),
        tcp_be_liberal: is_set(&typed.tcp_be_liberal),
        udp: timeout(&typed.udp_timeout, Duration::ZERO),
        udp_stream: timeout(&typed.udp_stream_timeout, Duration::ZERO),
    }
}

fn resolve_logging(c: &mut Checks, typed: &LoggingSection) -> Logging {
    let format = c.text("logging.format", &typed.format, |text| match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("is not a log format: text or json".to_owned()),
    });
    let mut vmodule = Vec::new();
    for (index, Given { value: (pattern, level), origin }) in typed.vmodule.iter().enumerate() {
        let level = c.within(
            &format!("logging.vmodule[{index}].verbosity"),
            &Some(Given { value: *level, origin: origin.clone() }),
            I32,
        );
        vmodule.extend(level.map(|level| (pattern.clone(), level)));
    }
    Logging {
        format: format.unwrap_or(LogFormat::Text),
        verbosity: c.within("logging.verbosity", &typed.verbosity, I32).unwrap_or(0),
        vmodule,
        flush_frequency: not_zero(&typed.flush_frequency).map_or(Duration::from_secs(5), |given| given.value),
    }
}

fn resolve_iptables(c: &mut Checks, typed: &FileConfig) -> IptablesSettings {
    let iptables = &typed.iptables;
    // When these stand in for nftables' they have been judged already; twice is once too often.
    let mut silent = Checks::default();
    let stands_in = typed.mode.as_ref().is_none_or(|given| given.value.is_empty());
    let c = if stands_in { &mut silent } else { c };
    let period = period(c, "iptables.syncPeriod", &iptables.sync_period, SYNC_PERIOD);
    IptablesSettings {
        masquerade: Masquerade {
            all: is_set(&iptables.masquerade_all),
            bit: masquerade_bit(c, "iptables.masqueradeBit", &iptables.masquerade_bit),
        },
        localhost_node_ports: iptables.localhost_node_ports.as_ref().is_none_or(|given| given.value),
        sync: SyncPeriods {
            period,
            min: min_period(c, "iptables.minSyncPeriod", &iptables.min_sync_period, period),
        },
    }
}

fn resolve_ipvs(c: &mut Checks, typed: &IpvsSection) -> IpvsSettings {
    let period = period(c, "ipvs.syncPeriod", &typed.sync_period, SYNC_PERIOD);
    let exclude = typed.exclude_cidrs.iter().enumerate();
    let zero = |given: &Field<Duration>| given.as_ref().map_or(Duration::ZERO, |given| given.value);
    IpvsSettings {
        sync: SyncPeriods {
            period,
            min: min_period(c, "ipvs.minSyncPeriod", &typed.min_sync_period, period),
        },
        scheduler: resolve_scheduler(c, &typed.scheduler),
        exclude_cidrs: exclude
            .filter_map(|(index, given)| c.item(&format!("ipvs.excludeCIDRs[{index}]"), given, cidr))
            .collect(),
        strict_arp: is_set(&typed.strict_arp),
        tcp_timeout: zero(&typed.tcp_timeout),
        tcp_fin_timeout: zero(&typed.tcp_fin_timeout),
        udp_timeout: zero(&typed.udp_timeout),
    }
}

/// Empty means round robin, as it always has.
fn resolve_scheduler(c: &mut Checks, typed: &Field<String>) -> Scheduler {
    let Some(given) = typed.as_ref().filter(|given| !given.value.is_empty()) else {
        return Scheduler::default();
    };
    Scheduler::parse(&given.value).unwrap_or_else(|| {
        c.invalid("ipvs.scheduler", given, format!("is none of {}", Scheduler::names()));
        Scheduler::default()
    })
}

/// Go does not write this section, so a zero in it was meant: it is kept, or refused where nothing works with it. Only the
/// pace is read as in every section.
fn resolve_userspace(c: &mut Checks, typed: &UserspaceSection) -> UserspaceSettings {
    let default = portway_dataplane::UserspaceSettings::default();
    let period = period(c, "userspace.syncPeriod", &typed.sync_period, SYNC_PERIOD);
    let or = |given: &Field<Duration>, default| given.as_ref().map_or(default, |given| given.value);
    let (attempts, sessions) = (&typed.connect_attempts, &typed.max_udp_sessions);
    UserspaceSettings {
        balancing: c.text("userspace.balancing", &typed.balancing, balancing).unwrap_or(default.balancing),
        connect_timeout: positive(
            c,
            "userspace.connectTimeout",
            &typed.connect_timeout,
            default.connect_timeout,
        ),
        connect_attempts: c
            .within("userspace.connectAttempts", attempts, 1..=100)
            .unwrap_or(default.connect_attempts),
        drain_timeout: or(&typed.drain_timeout, default.drain_timeout),
        stop_timeout: or(&typed.stop_timeout, default.stop_timeout),
        udp_timeout: positive(c, "userspace.udpIdleTimeout", &typed.udp_idle_timeout, default.udp_timeout),
        udp_sessions: c
            .within("userspace.maxUDPSessions", sessions, 1..=1_000_000)
            .unwrap_or(default.udp_sessions),
        sync: SyncPeriods {
            period,
            min: min_period(c, "userspace.minSyncPeriod", &typed.min_sync_period, period),
        },
    }
}

fn balancing(text: &str) -> Result<Balancing, String> {
    let names = || Balancing::ALL.map(|(_, name)| name).join(" or ");
    Balancing::parse(text).ok_or_else(|| format!("is not a way of balancing: {}", names()))
}

fn is_set(typed: &Field<bool>) -> bool {
    typed.as_ref().is_some_and(|given| given.value)
}

fn text(typed: &Field<String>) -> Option<String> {
    typed.as_ref().map(|given| given.value.clone()).filter(|text| !text.is_empty())
}

fn not_zero(typed: &Field<Duration>) -> Option<&Given<Duration>> {
    typed.as_ref().filter(|given| !given.value.is_zero())
}

#[cfg(test)]
mod tests;
