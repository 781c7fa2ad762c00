//! The table of settings: one definition for each, in the order of `--help` and of docs/configuration.md.
//!
//! A row has the path in the file, the field of [`Config`], the default and the valid values; then the flag, the help,
//! and whether a change takes effect while running (`live`) or after a restart. Rows that are `derived` depend on
//! others and get their values in [`super::resolve`].

mod modes;

use super::domain::{Config, ConntrackSettings, LocalDetection, LogFormat, NodePortAddresses};
use super::{API_VERSION, KIND, parse};
use ipnet::IpNet;
use portway_config::{Kind, Setting, Table, Zero};
use serde_json::{Value as Json, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// A field of [`Config`], for a row of the table.
macro_rules! field {
    ($($field:ident).+) => {
        portway_config::Lens {
            get: |config: &Config| &config.$($field).+,
            get_mut: |config: &mut Config| &mut config.$($field).+,
        }
    };
}
use field;

type Row = Setting<Config>;

/// The value name of boolean flags in the help.
const BOOL: &str = "true|false";
/// Numbers from zero to the largest that Go's `int32` holds.
const I32: std::ops::RangeInclusive<i64> = 0..=i32::MAX as i64;

/// The settings of `portway proxy`.
pub fn table() -> &'static Table<Config> {
    static TABLE: LazyLock<Table<Config>> = LazyLock::new(|| {
        Table::new(&[("apiVersion", API_VERSION), ("kind", KIND)])
            .group("Configuration", [feature_gates()])
            .group("Kubernetes API", kubernetes_api())
            .group("Node", node())
            .group("Proxy", proxy())
            .group("Mode nftables", modes::nftables())
            .group("Mode iptables", modes::iptables())
            .group("Mode ipvs", modes::ipvs())
            .group("Mode userspace", modes::userspace())
            .group("Connection tracking", conntrack())
            .group("Health and metrics", health_and_metrics())
            .group("Logging", logging())
            .group("", unused())
    });
    &TABLE
}

fn feature_gates() -> Row {
    Row::switches("featureGates", field!(feature_gates))
        .flag("--feature-gates", "NAME=BOOL")
        .help(
            "kube-proxy's feature gates, as Name=true,Other=false. AllowServiceExternalIPs=false ignores externalIPs, \
             KubeProxyIPVS=false forbids mode ipvs, KubeProxyNFTablesLocalhostNodePorts=false keeps node ports off \
             loopback addresses; others have no effect.",
        )
}

fn kubernetes_api() -> [Row; 7] {
    let path = |text: &str| Ok(Some(PathBuf::from(text)));
    let print_path =
        |path: &Option<PathBuf>| path.as_ref().map_or(String::new(), |p| p.display().to_string());
    let (text, print) = (|text: &str| Ok(text.to_owned()), String::clone);
    let protobuf = "application/vnd.kubernetes.protobuf".to_owned();
    [
        Row::text("clientConnection.kubeconfig", field!(client.kubeconfig), None, path, print_path)
            .flag("--kubeconfig", "FILE")
            .help("The kubeconfig for the API server; without one, the pod's service account is used."),
        Row::any_text("--master", field!(client.master))
            .flag("--master", "URL")
            .with_file()
            .help("The API server's address, in place of the one in the kubeconfig."),
        Row::number("clientConnection.qps", field!(client.qps), 5.0)
            .zero(Zero::Unset)
            .flag("--kube-api-qps", "N")
            .help("Requests to the API server per second; negative for no limit."),
        Row::integer("clientConnection.burst", field!(client.burst), 10, I32)
            .zero(Zero::Unset)
            .flag("--kube-api-burst", "N")
            .help("Requests to the API server at once, above the rate."),
        Row::text("clientConnection.contentType", field!(client.content_type), protobuf, text, print)
            .flag("--kube-api-content-type", "TYPE")
            .help("The encoding of requests to the API server."),
        Row::text(
            "clientConnection.acceptContentTypes",
            field!(client.accept_content_types),
            String::new(),
            text,
            print,
        )
        .without_effect()
            .help("Accepted because kube-proxy has it; responses have the encoding of clientConnection.contentType."),
        Row::duration("configSyncPeriod", field!(config_sync_period), Duration::from_secs(15 * 60))
            .zero(Zero::UnsetInFile)
            .flag("--config-sync-period", "DURATION")
            .without_effect()
            .help("Accepted because kube-proxy has it; there are no informers that resync."),
    ]
}

fn node() -> [Row; 6] {
    let id_file = "Accepted because kube-proxy 1.36 has it; kube-proxy does not use it either.";
    let print_name = |name: &Option<String>| name.clone().unwrap_or_default();
    [
        Row::text("hostnameOverride", field!(hostname_override), None, parse::node_name, print_name)
            .flag("--hostname-override", "NAME")
            .with_file()
            .help("This node's name, if it is not its host name."),
        Row::text(
            "bindAddress",
            field!(bind_address),
            Ipv4Addr::UNSPECIFIED.into(),
            parse::ip,
            IpAddr::to_string,
        )
        .flag("--bind-address", "IP")
        .help("This node's primary address, if not the one in its Node object; no socket is bound to it."),
        Row::derived("nodePortAddresses", Kind::Texts, |c| node_port_addresses(&c.node_port_addresses))
            .default_text("primary if the mode is set to nftables, else every address")
            .live()
            .flag("--nodeport-addresses", "CIDR|KEYWORD")
            .help(
                "Serve node ports on the node's addresses in these ranges, and on those of the keywords: primary (the \
                 node's primary addresses), localhost (loopback addresses), all.",
            ),
        Row::integer("oomScoreAdj", field!(oom_score_adj), -999, -1000..=1000)
            .live()
            .flag("--oom-score-adj", "N")
            .help("The oom_score_adj of the agent, -1000 (never killed when memory runs out) to 1000 (killed first)."),
        Row::unused("--boot-id-file", Kind::Text).flag("--boot-id-file", "FILES").with_file().help(id_file),
        Row::unused("--machine-id-file", Kind::Text).flag("--machine-id-file", "FILES").with_file().help(id_file),
    ]
}

fn proxy() -> [Row; 6] {
    [
        Row::text("mode", field!(mode), super::ModeName::default(), parse::mode, |mode| mode.as_str().to_owned())
            .default_text("nftables, with the defaults of kube-proxy's mode iptables")
            .live()
            .flag("--proxy-mode", "MODE")
            .help(
                "How Services are programmed: nftables, iptables, ipvs or userspace, where a process of Portway \
                 relays the connections. It may change while running.",
            ),
        Row::switch("nftables.masqueradeAll", field!(nftables.masquerade.all), false)
            .live()
            .flag("--masquerade-all", BOOL)
            .help(
                "Masquerade all traffic to cluster IPs, as some network plugins need. The flag is for every mode; \
                 in a file this field is for mode nftables and iptables.masqueradeAll for the others.",
            ),
        Row::derived("detectLocalMode", Kind::Text, |c| local_mode(&c.local_detection).into())
            .live()
            .flag("--detect-local-mode", "MODE")
            .help(
                "How traffic from pods of this node is recognized: ClusterCIDR, NodeCIDR, BridgeInterface or \
                 InterfaceNamePrefix.",
            ),
        Row::derived("clusterCIDR", Kind::Text, |c| match &c.local_detection {
            LocalDetection::ClusterCidr(cidrs) => joined(cidrs).into(),
            _ => "".into(),
        })
        .live()
        .flag("--cluster-cidr", "CIDR[,CIDR]")
        .help("The pods' address range, or one of each family: 10.244.0.0/16,fd00:10:244::/56."),
        Row::derived("detectLocal.bridgeInterface", Kind::Text, |c| match &c.local_detection {
            LocalDetection::BridgeInterface(name) => name.as_str().into(),
            _ => "".into(),
        })
        .live()
        .flag("--pod-bridge-interface", "NAME")
        .help("With BridgeInterface: the bridge that local pods are attached to."),
        Row::derived("detectLocal.interfaceNamePrefix", Kind::Text, |c| match &c.local_detection {
            LocalDetection::InterfaceNamePrefix(prefix) => prefix.as_str().into(),
            _ => "".into(),
        })
        .live()
        .flag("--pod-interface-name-prefix", "PREFIX")
        .help("With InterfaceNamePrefix: the beginning of the names of local pods' interfaces."),
    ]
}

fn conntrack() -> [Row; 7] {
    let established = Some(ConntrackSettings::DEFAULT_TCP_ESTABLISHED);
    let close_wait = Some(ConntrackSettings::DEFAULT_TCP_CLOSE_WAIT);
    [
        Row::integer("conntrack.maxPerCore", field!(conntrack.max_per_core), 32 * 1024, I32)
            .flag("--conntrack-max-per-core", "N")
            .help("Connections to track per core; 0 keeps the kernel's limit."),
        Row::integer("conntrack.min", field!(conntrack.min), 128 * 1024, I32)
            .flag("--conntrack-min", "N")
            .help("The minimum number of connections to track, regardless of the number of cores."),
        Row::optional_duration(
            "conntrack.tcpEstablishedTimeout",
            field!(conntrack.tcp_established),
            established,
        )
        .flag("--conntrack-tcp-timeout-established", "DURATION")
        .help("The timeout of idle established TCP connections; 0 keeps the kernel's value."),
        Row::optional_duration("conntrack.tcpCloseWaitTimeout", field!(conntrack.tcp_close_wait), close_wait)
            .flag("--conntrack-tcp-timeout-close-wait", "DURATION")
            .help("The timeout of half-closed TCP connections; 0 keeps the kernel's value."),
        Row::switch("conntrack.tcpBeLiberal", field!(conntrack.tcp_be_liberal), false)
            .flag("--conntrack-tcp-be-liberal", BOOL)
            .help("Accept TCP packets outside the window."),
        Row::optional_duration("conntrack.udpTimeout", field!(conntrack.udp), None)
            .flag("--conntrack-udp-timeout", "DURATION")
            .help("The timeout of UDP flows without a reply; 0 keeps the kernel's value."),
        Row::optional_duration("conntrack.udpStreamTimeout", field!(conntrack.udp_stream), None)
            .flag("--conntrack-udp-timeout-stream", "DURATION")
            .help("The timeout of UDP flows with replies; 0 keeps the kernel's value."),
    ]
    .map(Row::live)
}

fn health_and_metrics() -> [Row; 7] {
    [
        Row::derived("healthzBindAddress", Kind::Text, |c| address(c.healthz))
            .copied(|to, from| to.healthz = from.healthz)
            .default_text("0.0.0.0:10256")
            .flag("--healthz-bind-address", "IP:PORT")
            .help("Serve /healthz and /livez here; an empty flag turns them off."),
        Row::derived("metricsBindAddress", Kind::Text, |c| address(c.metrics))
            .copied(|to, from| to.metrics = from.metrics)
            .default_text("127.0.0.1:10249")
            .flag("--metrics-bind-address", "IP:PORT")
            .help("Serve /metrics and the status pages here; an empty flag turns them off."),
        Row::unused("--healthz-port", Kind::Integer)
            .flag("--healthz-port", "PORT")
            .deprecated_for("healthzBindAddress")
            .help("The port of /healthz, 0 turns it off; deprecated, use --healthz-bind-address."),
        Row::unused("--metrics-port", Kind::Integer)
            .flag("--metrics-port", "PORT")
            .deprecated_for("metricsBindAddress")
            .help("The port of /metrics, 0 turns it off; deprecated, use --metrics-bind-address."),
        Row::switch("bindAddressHardFail", field!(bind_hard_fail), false)
            .flag("--bind-address-hard-fail", BOOL)
            .help("Exit if one of these addresses cannot be bound, instead of retrying."),
        Row::switch("enableProfiling", field!(profiling), false)
            .flag("--profiling", BOOL)
            .live()
            .help("Serve CPU profiles on /debug/pprof/profile of the metrics address, for `go tool pprof`."),
        Row::any_text("showHiddenMetricsForVersion", field!(show_hidden_metrics_for_version))
            .flag("--show-hidden-metrics-for-version", "VERSION")
            .without_effect()
            .help("Accepted because kube-proxy has it; no metric is hidden."),
    ]
}

fn logging() -> [Row; 8] {
    let stream = "Accepted because kube-proxy has it; all log lines go to standard error.";
    let buffer = "Accepted because kube-proxy has it; log lines are written as soon as possible.";
    let format = |format: &LogFormat| match format {
        LogFormat::Text => "text".to_owned(),
        LogFormat::Json => "json".to_owned(),
    };
    [
        Row::integer("logging.verbosity", field!(logging.verbosity), 0, I32)
            .live()
            .flag("--v", "LEVEL")
            .short('v')
            .help("How much to log: 0 changes of state, 2 each changed Service, 4 each sync, 6 requests and events, 8 libraries too."),
        Row::pairs("logging.vmodule", field!(logging.vmodule), "filePattern", "verbosity", I32)
            .flag("--vmodule", "PATTERN=N")
            .without_effect()
            .help("Accepted because kube-proxy has it, as pattern=N,other=N; PORTWAY_LOG sets levels of single modules."),
        Row::text("logging.format", field!(logging.format), LogFormat::Text, parse::log_format, format)
            .flag("--logging-format", "FORMAT")
            .help("The format of log lines: text or json."),
        Row::duration("logging.flushFrequency", field!(logging.flush_frequency), Duration::from_secs(5))
            .or_nanos()
            .zero(Zero::Unset)
            .flag("--log-flush-frequency", "DURATION")
            .without_effect()
            .help(buffer),
        Row::unused("logging.options.text.splitStream", Kind::Bool)
            .flag("--log-text-split-stream", BOOL)
            .help(stream),
        Row::unused("logging.options.text.infoBufferSize", Kind::Quantity)
            .flag("--log-text-info-buffer-size", "SIZE")
            .help(buffer),
        Row::unused("logging.options.json.splitStream", Kind::Bool)
            .flag("--log-json-split-stream", BOOL)
            .help(stream),
        Row::unused("logging.options.json.infoBufferSize", Kind::Quantity)
            .flag("--log-json-info-buffer-size", "SIZE")
            .help(buffer),
    ]
    .map(Row::with_file)
}

/// Upstream's fields that have no effect on Linux, or none any more.
fn unused() -> [Row; 7] {
    [
        Row::unused("portRange", Kind::Text),
        Row::unused("windowsRunAsService", Kind::Bool),
        Row::unused("winkernel.enableDSR", Kind::Bool),
        Row::unused("winkernel.forwardHealthCheckVip", Kind::Bool),
        Row::unused("winkernel.networkName", Kind::Text),
        Row::unused("winkernel.rootHnsEndpointName", Kind::Text),
        Row::unused("winkernel.sourceVip", Kind::Text),
    ]
}

fn node_port_addresses(addresses: &NodePortAddresses) -> Json {
    let NodePortAddresses { primary, localhost, cidrs } = addresses;
    let keywords = [("primary", *primary), ("localhost", *localhost)];
    let keywords = keywords.into_iter().filter(|(_, chosen)| *chosen).map(|(keyword, _)| keyword.to_owned());
    json!(keywords.chain(cidrs.iter().map(IpNet::to_string)).collect::<Vec<_>>())
}

fn local_mode(detection: &LocalDetection) -> &'static str {
    match detection {
        LocalDetection::None | LocalDetection::ClusterCidr(_) => "ClusterCIDR",
        LocalDetection::NodeCidr => "NodeCIDR",
        LocalDetection::BridgeInterface(_) => "BridgeInterface",
        LocalDetection::InterfaceNamePrefix(_) => "InterfaceNamePrefix",
    }
}

fn address(address: Option<SocketAddr>) -> Json {
    address.map_or(String::new(), |address| address.to_string()).into()
}

fn joined(cidrs: &[IpNet]) -> String {
    cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
