//! A configuration as typed: every field of `KubeProxyConfiguration` and Portway's own section `userspace`, each
//! optional, each with where it was given.
//!
//! [`parse`] makes one from a file, [`super::ProxyFlags`] from a command line. Nothing is judged here beyond the
//! kind of a value (text, number, duration); what the values mean is [`super::merge()`]'s business.

use super::error::{ConfigError, Origin, Problem};
use super::section::Section;
use super::{API_VERSION, KIND, tree};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A value and where it was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Given<T> {
    /// The value.
    pub value: T,
    /// The line or the flag it came from.
    pub origin: Origin,
}

/// A setting that may not have been given.
pub type Field<T> = Option<Given<T>>;

/// `KubeProxyConfiguration` as typed. The fields carry upstream's names and meanings (kube-proxy v1.36,
/// `k8s.io/kube-proxy/config/v1alpha1`).
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields; a second text would only drift from it")]
pub struct FileConfig {
    pub bind_address: Field<String>,
    pub bind_address_hard_fail: Field<bool>,
    pub client_connection: ClientConnectionSection,
    pub cluster_cidr: Field<String>,
    pub config_sync_period: Field<Duration>,
    pub conntrack: ConntrackSection,
    pub detect_local: DetectLocalSection,
    pub detect_local_mode: Field<String>,
    pub enable_profiling: Field<bool>,
    pub feature_gates: BTreeMap<String, Given<bool>>,
    pub healthz_bind_address: Field<String>,
    pub hostname_override: Field<String>,
    pub iptables: IptablesSection,
    pub ipvs: IpvsSection,
    pub logging: LoggingSection,
    pub metrics_bind_address: Field<String>,
    pub mode: Field<String>,
    pub nftables: NftablesSection,
    pub node_port_addresses: Vec<Given<String>>,
    pub oom_score_adj: Field<i64>,
    pub port_range: Field<String>,
    pub show_hidden_metrics_for_version: Field<String>,
    /// Portway's own: upstream has no such mode any more.
    pub userspace: UserspaceSection,
    pub windows_run_as_service: Field<bool>,
    pub winkernel: WinkernelSection,
}

/// `clientConnection`.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields")]
pub struct ClientConnectionSection {
    pub accept_content_types: Field<String>,
    pub burst: Field<i64>,
    pub content_type: Field<String>,
    pub kubeconfig: Field<String>,
    pub qps: Field<f32>,
}

/// `conntrack`.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields")]
pub struct ConntrackSection {
    pub max_per_core: Field<i64>,
    pub min: Field<i64>,
    pub tcp_be_liberal: Field<bool>,
    pub tcp_close_wait_timeout: Field<Duration>,
    pub tcp_established_timeout: Field<Duration>,
    pub udp_stream_timeout: Field<Duration>,
    pub udp_timeout: Field<Duration>,
}

/// `detectLocal`.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields")]
pub struct DetectLocalSection {
    pub bridge_interface: Field<String>,
    pub interface_name_prefix: Field<String>,
}

/// `iptables`.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields")]
pub struct IptablesSection {
    pub localhost_node_ports: Field<bool>,
    pub masquerade_all: Field<bool>,
    pub masquerade_bit: Field<i64>,
    pub min_sync_period: Field<Duration>,
    pub sync_period: Field<Duration>,
}

/// `ipvs`.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields")]
pub struct IpvsSection {
    pub exclude_cidrs: Vec<Given<String>>,
    pub min_sync_period: Field<Duration>,
    pub scheduler: Field<String>,
    pub strict_arp: Field<bool>,
    pub sync_period: Field<Duration>,
    pub tcp_fin_timeout: Field<Duration>,
    pub tcp_timeout: Field<Duration>,
    pub udp_timeout: Field<Duration>,
}

/// `userspace`, which is Portway's own: how the agent carries connections in that mode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserspaceSection {
    /// `round-robin` or `least-connections`.
    pub balancing: Field<String>,
    /// Endpoints tried for one connection.
    pub connect_attempts: Field<i64>,
    /// How long an endpoint may take to accept a connection, before the next is tried.
    pub connect_timeout: Field<Duration>,
    /// How long connections may go on whose endpoint has left.
    pub drain_timeout: Field<Duration>,
    /// UDP sessions at once.
    pub max_udp_sessions: Field<i64>,
    /// The least time between two syncs.
    pub min_sync_period: Field<Duration>,
    /// How long connections may go on when the agent is told to stop.
    pub stop_timeout: Field<Duration>,
    /// How often everything is looked over though nothing changed.
    pub sync_period: Field<Duration>,
    /// How long a UDP session may be silent.
    pub udp_idle_timeout: Field<Duration>,
}

/// `nftables`.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields")]
pub struct NftablesSection {
    pub masquerade_all: Field<bool>,
    pub masquerade_bit: Field<i64>,
    pub min_sync_period: Field<Duration>,
    pub sync_period: Field<Duration>,
}

/// `logging`. The alpha `options` are read and dropped: output is neither split nor buffered here.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields")]
pub struct LoggingSection {
    pub flush_frequency: Field<Duration>,
    pub format: Field<String>,
    pub verbosity: Field<i64>,
    /// File pattern and verbosity.
    pub vmodule: Vec<Given<(String, i64)>>,
}

/// `winkernel`: Windows only, accepted so that a shared file can be read, and not used.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "upstream documents these fields")]
pub struct WinkernelSection {
    pub enable_dsr: Field<bool>,
    pub forward_health_check_vip: Field<bool>,
    pub network_name: Field<String>,
    pub root_hns_endpoint_name: Field<String>,
    pub source_vip: Field<String>,
}

/// Reads a configuration file's text. All mistakes are reported at once, in the order of their lines.
pub fn parse(file_name: &str, text: &str) -> Result<FileConfig, Vec<ConfigError>> {
    let file: Arc<str> = file_name.into();
    let root = tree::read(text).map_err(|malformed| {
        let origin = Origin::File { name: file.clone(), line: malformed.line.unwrap_or(0) };
        vec![ConfigError { origin, field: String::new(), problem: Problem::Syntax(malformed.message) }]
    })?;
    let mut errors = Vec::new();
    let mut section = Section::root(root, &file, &mut errors);
    must_be(&mut section, "apiVersion", API_VERSION);
    must_be(&mut section, "kind", KIND);
    let config = read_root(&mut section);
    section.finish();
    if errors.is_empty() {
        return Ok(config);
    }
    errors.sort_by_key(|error| match &error.origin {
        Origin::File { line, .. } => *line,
        Origin::Flag(_) => 0,
    });
    Err(errors)
}

/// Says no to a file of another kind, say a Deployment that was mounted by mistake.
fn must_be(section: &mut Section<'_>, name: &'static str, expected: &'static str) {
    match section.text(name) {
        None => section.error(1, name, Problem::Missing { expected }),
        Some(given) if given.value != expected => {
            let line = if let Origin::File { line, .. } = given.origin { line } else { 0 };
            section.error(
                line,
                name,
                Problem::Invalid { value: given.value, why: format!("must be {expected:?}") },
            );
        }
        Some(_) => {}
    }
}

fn read_root(s: &mut Section<'_>) -> FileConfig {
    FileConfig {
        bind_address: s.text("bindAddress"),
        bind_address_hard_fail: s.flag("bindAddressHardFail"),
        client_connection: s.section("clientConnection", read_client_connection),
        cluster_cidr: s.text("clusterCIDR"),
        config_sync_period: s.duration("configSyncPeriod"),
        conntrack: s.section("conntrack", read_conntrack),
        detect_local: s.section("detectLocal", |s| DetectLocalSection {
            bridge_interface: s.text("bridgeInterface"),
            interface_name_prefix: s.text("interfaceNamePrefix"),
        }),
        detect_local_mode: s.text("detectLocalMode"),
        enable_profiling: s.flag("enableProfiling"),
        feature_gates: s.gates("featureGates"),
        healthz_bind_address: s.text("healthzBindAddress"),
        hostname_override: s.text("hostnameOverride"),
        iptables: s.section("iptables", read_iptables),
        ipvs: s.section("ipvs", read_ipvs),
        logging: s.section("logging", read_logging),
        metrics_bind_address: s.text("metricsBindAddress"),
        mode: s.text("mode"),
        nftables: s.section("nftables", |s| NftablesSection {
            masquerade_all: s.flag("masqueradeAll"),
            masquerade_bit: s.integer("masqueradeBit"),
            min_sync_period: s.duration("minSyncPeriod"),
            sync_period: s.duration("syncPeriod"),
        }),
        node_port_addresses: s.texts("nodePortAddresses"),
        oom_score_adj: s.integer("oomScoreAdj"),
        port_range: s.text("portRange"),
        show_hidden_metrics_for_version: s.text("showHiddenMetricsForVersion"),
        userspace: s.section("userspace", read_userspace),
        windows_run_as_service: s.flag("windowsRunAsService"),
        winkernel: s.section("winkernel", |s| WinkernelSection {
            enable_dsr: s.flag("enableDSR"),
            forward_health_check_vip: s.flag("forwardHealthCheckVip"),
            network_name: s.text("networkName"),
            root_hns_endpoint_name: s.text("rootHnsEndpointName"),
            source_vip: s.text("sourceVip"),
        }),
    }
}

fn read_client_connection(s: &mut Section<'_>) -> ClientConnectionSection {
    ClientConnectionSection {
        accept_content_types: s.text("acceptContentTypes"),
        burst: s.integer("burst"),
        content_type: s.text("contentType"),
        kubeconfig: s.text("kubeconfig"),
        qps: s.number("qps"),
    }
}

fn read_conntrack(s: &mut Section<'_>) -> ConntrackSection {
    ConntrackSection {
        max_per_core: s.integer("maxPerCore"),
        min: s.integer("min"),
        tcp_be_liberal: s.flag("tcpBeLiberal"),
        tcp_close_wait_timeout: s.duration("tcpCloseWaitTimeout"),
        tcp_established_timeout: s.duration("tcpEstablishedTimeout"),
        udp_stream_timeout: s.duration("udpStreamTimeout"),
        udp_timeout: s.duration("udpTimeout"),
    }
}

fn read_iptables(s: &mut Section<'_>) -> IptablesSection {
    IptablesSection {
        localhost_node_ports: s.flag("localhostNodePorts"),
        masquerade_all: s.flag("masqueradeAll"),
        masquerade_bit: s.integer("masqueradeBit"),
        min_sync_period: s.duration("minSyncPeriod"),
        sync_period: s.duration("syncPeriod"),
    }
}

fn read_ipvs(s: &mut Section<'_>) -> IpvsSection {
    IpvsSection {
        exclude_cidrs: s.texts("excludeCIDRs"),
        min_sync_period: s.duration("minSyncPeriod"),
        scheduler: s.text("scheduler"),
        strict_arp: s.flag("strictARP"),
        sync_period: s.duration("syncPeriod"),
        tcp_fin_timeout: s.duration("tcpFinTimeout"),
        tcp_timeout: s.duration("tcpTimeout"),
        udp_timeout: s.duration("udpTimeout"),
    }
}

fn read_userspace(s: &mut Section<'_>) -> UserspaceSection {
    UserspaceSection {
        balancing: s.text("balancing"),
        connect_attempts: s.integer("connectAttempts"),
        connect_timeout: s.duration("connectTimeout"),
        drain_timeout: s.duration("drainTimeout"),
        max_udp_sessions: s.integer("maxUDPSessions"),
        min_sync_period: s.duration("minSyncPeriod"),
        stop_timeout: s.duration("stopTimeout"),
        sync_period: s.duration("syncPeriod"),
        udp_idle_timeout: s.duration("udpIdleTimeout"),
    }
}

fn read_logging(s: &mut Section<'_>) -> LoggingSection {
    s.section("options", |s| {
        for format in ["json", "text"] {
            s.section(format, |s| {
                s.flag("splitStream");
                s.quantity("infoBufferSize");
            });
        }
    });
    LoggingSection {
        flush_frequency: s.duration_or_nanos("flushFrequency"),
        format: s.text("format"),
        verbosity: s.integer("verbosity"),
        vmodule: s.sections("vmodule", |s| {
            let (pattern, verbosity) = (s.text("filePattern"), s.integer("verbosity"));
            let verbosity = verbosity.map_or(0, |given| given.value);
            pattern.map(|given| Given { value: (given.value, verbosity), origin: given.origin })
        }),
    }
}

#[cfg(test)]
mod tests;
