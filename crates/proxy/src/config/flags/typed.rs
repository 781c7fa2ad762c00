//! Flags as the fields they set, so that file and command line take the same way to a `Config`.

use super::ProxyFlags;
use crate::config::check::default_hosts;
use crate::config::error::Origin;
use crate::config::file::{Field, FileConfig, Given};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A configuration flag that was given, and the field it sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) struct TypedFlag {
    pub(in crate::config) flag: &'static str,
    pub(in crate::config) field: &'static str,
}

/// What the command line sets.
pub(in crate::config) struct TypedFlags {
    pub(in crate::config) config: FileConfig,
    pub(in crate::config) given: Vec<TypedFlag>,
}

/// Notes each flag that was given as it is turned into a field.
#[derive(Default)]
struct Recorder {
    given: Vec<TypedFlag>,
}

impl Recorder {
    fn field<T: Clone>(&mut self, flag: &'static str, field: &'static str, value: &Option<T>) -> Field<T> {
        let value = value.clone()?;
        self.given.push(TypedFlag { flag, field });
        Some(Given { value, origin: Origin::Flag(flag) })
    }

    fn list<T: Clone>(&mut self, flag: &'static str, field: &'static str, values: &[T]) -> Vec<Given<T>> {
        if !values.is_empty() {
            self.given.push(TypedFlag { flag, field });
        }
        values.iter().map(|value| Given { value: value.clone(), origin: Origin::Flag(flag) }).collect()
    }
}

impl ProxyFlags {
    /// The fields that the configuration flags set. Flags that are tasks (`--cleanup`) or have no field
    /// (`--master`) are not among them.
    pub(in crate::config) fn typed(&self) -> TypedFlags {
        let mut recorder = Recorder::default();
        let r = &mut recorder;
        let mut config = FileConfig {
            bind_address: r.field("--bind-address", "bindAddress", &self.bind_address),
            bind_address_hard_fail: r.field(
                "--bind-address-hard-fail",
                "bindAddressHardFail",
                &self.bind_address_hard_fail,
            ),
            cluster_cidr: r.field("--cluster-cidr", "clusterCIDR", &self.cluster_cidr),
            config_sync_period: r.field("--config-sync-period", "configSyncPeriod", &self.config_sync_period),
            detect_local_mode: r.field("--detect-local-mode", "detectLocalMode", &self.detect_local_mode),
            enable_profiling: r.field("--profiling", "enableProfiling", &self.profiling),
            hostname_override: r.field("--hostname-override", "hostnameOverride", &self.hostname_override),
            mode: r.field("--proxy-mode", "mode", &self.proxy_mode),
            node_port_addresses: r.list(
                "--nodeport-addresses",
                "nodePortAddresses",
                &self.nodeport_addresses,
            ),
            oom_score_adj: r.field("--oom-score-adj", "oomScoreAdj", &self.oom_score_adj),
            show_hidden_metrics_for_version: r.field(
                "--show-hidden-metrics-for-version",
                "showHiddenMetricsForVersion",
                &self.show_hidden_metrics_for_version,
            ),
            ..FileConfig::default()
        };
        let gates = r.list("--feature-gates", "featureGates", &self.feature_gates);
        config.feature_gates = gates
            .into_iter()
            .map(|Given { value: (name, on), origin }| (name, Given { value: on, origin }))
            .collect();
        self.client(r, &mut config);
        self.addresses(r, &mut config);
        self.modes(r, &mut config);
        self.userspace(r, &mut config);
        self.conntrack(r, &mut config);
        self.logging(r, &mut config);
        TypedFlags { config, given: recorder.given }
    }

    fn client(&self, r: &mut Recorder, config: &mut FileConfig) {
        let client = &mut config.client_connection;
        client.kubeconfig = r.field("--kubeconfig", "clientConnection.kubeconfig", &self.kubeconfig);
        client.qps = r.field("--kube-api-qps", "clientConnection.qps", &self.kube_api_qps);
        client.burst = r.field("--kube-api-burst", "clientConnection.burst", &self.kube_api_burst);
        client.content_type =
            r.field("--kube-api-content-type", "clientConnection.contentType", &self.kube_api_content_type);
    }

    fn addresses(&self, r: &mut Recorder, config: &mut FileConfig) {
        let bind = self.bind_address.as_deref().and_then(|text| text.parse().ok());
        let (healthz, metrics) = default_hosts(bind.unwrap_or(Ipv4Addr::UNSPECIFIED.into()));
        let address = r.field("--healthz-bind-address", "healthzBindAddress", &self.healthz_bind_address);
        let port = r.field("--healthz-port", "healthzBindAddress", &self.healthz_port);
        config.healthz_bind_address = with_port(address, port, healthz);
        let address = r.field("--metrics-bind-address", "metricsBindAddress", &self.metrics_bind_address);
        let port = r.field("--metrics-port", "metricsBindAddress", &self.metrics_port);
        config.metrics_bind_address = with_port(address, port, metrics);
    }

    fn modes(&self, r: &mut Recorder, config: &mut FileConfig) {
        let detect = &mut config.detect_local;
        detect.bridge_interface =
            r.field("--pod-bridge-interface", "detectLocal.bridgeInterface", &self.pod_bridge_interface);
        detect.interface_name_prefix = r.field(
            "--pod-interface-name-prefix",
            "detectLocal.interfaceNamePrefix",
            &self.pod_interface_name_prefix,
        );

        let iptables = &mut config.iptables;
        iptables.masquerade_all = r.field("--masquerade-all", "nftables.masqueradeAll", &self.masquerade_all);
        iptables.masquerade_bit =
            r.field("--iptables-masquerade-bit", "iptables.masqueradeBit", &self.iptables_masquerade_bit);
        iptables.localhost_node_ports = r.field(
            "--iptables-localhost-nodeports",
            "iptables.localhostNodePorts",
            &self.iptables_localhost_nodeports,
        );
        iptables.sync_period =
            r.field("--iptables-sync-period", "iptables.syncPeriod", &self.iptables_sync_period);
        iptables.min_sync_period =
            r.field("--iptables-min-sync-period", "iptables.minSyncPeriod", &self.iptables_min_sync_period);

        // --masquerade-all is for every mode, and upstream hears --iptables-(min-)sync-period in nftables mode
        // too, having had no flags for it.
        let nftables = &mut config.nftables;
        nftables.masquerade_all = iptables.masquerade_all.clone();
        nftables.masquerade_bit =
            r.field("--nftables-masquerade-bit", "nftables.masqueradeBit", &self.nftables_masquerade_bit);
        nftables.sync_period = r
            .field("--nftables-sync-period", "nftables.syncPeriod", &self.nftables_sync_period)
            .or_else(|| iptables.sync_period.clone());
        nftables.min_sync_period = r
            .field("--nftables-min-sync-period", "nftables.minSyncPeriod", &self.nftables_min_sync_period)
            .or_else(|| iptables.min_sync_period.clone());

        let ipvs = &mut config.ipvs;
        ipvs.sync_period = r.field("--ipvs-sync-period", "ipvs.syncPeriod", &self.ipvs_sync_period);
        ipvs.min_sync_period =
            r.field("--ipvs-min-sync-period", "ipvs.minSyncPeriod", &self.ipvs_min_sync_period);
        ipvs.scheduler = r.field("--ipvs-scheduler", "ipvs.scheduler", &self.ipvs_scheduler);
        ipvs.exclude_cidrs = r.list("--ipvs-exclude-cidrs", "ipvs.excludeCIDRs", &self.ipvs_exclude_cidrs);
        ipvs.strict_arp = r.field("--ipvs-strict-arp", "ipvs.strictARP", &self.ipvs_strict_arp);
        ipvs.tcp_timeout = r.field("--ipvs-tcp-timeout", "ipvs.tcpTimeout", &self.ipvs_tcp_timeout);
        ipvs.tcp_fin_timeout =
            r.field("--ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", &self.ipvs_tcpfin_timeout);
        ipvs.udp_timeout = r.field("--ipvs-udp-timeout", "ipvs.udpTimeout", &self.ipvs_udp_timeout);
    }

    fn userspace(&self, r: &mut Recorder, config: &mut FileConfig) {
        let userspace = &mut config.userspace;
        userspace.balancing =
            r.field("--userspace-balancing", "userspace.balancing", &self.userspace_balancing);
        userspace.connect_timeout = r.field(
            "--userspace-connect-timeout",
            "userspace.connectTimeout",
            &self.userspace_connect_timeout,
        );
        userspace.connect_attempts = r.field(
            "--userspace-connect-attempts",
            "userspace.connectAttempts",
            &self.userspace_connect_attempts,
        );
        userspace.drain_timeout =
            r.field("--userspace-drain-timeout", "userspace.drainTimeout", &self.userspace_drain_timeout);
        userspace.stop_timeout =
            r.field("--userspace-stop-timeout", "userspace.stopTimeout", &self.userspace_stop_timeout);
        userspace.udp_idle_timeout = r.field(
            "--userspace-udp-idle-timeout",
            "userspace.udpIdleTimeout",
            &self.userspace_udp_idle_timeout,
        );
        userspace.max_udp_sessions = r.field(
            "--userspace-max-udp-sessions",
            "userspace.maxUDPSessions",
            &self.userspace_max_udp_sessions,
        );
        userspace.sync_period =
            r.field("--userspace-sync-period", "userspace.syncPeriod", &self.userspace_sync_period);
        userspace.min_sync_period = r.field(
            "--userspace-min-sync-period",
            "userspace.minSyncPeriod",
            &self.userspace_min_sync_period,
        );
    }

    fn conntrack(&self, r: &mut Recorder, config: &mut FileConfig) {
        let conntrack = &mut config.conntrack;
        conntrack.max_per_core =
            r.field("--conntrack-max-per-core", "conntrack.maxPerCore", &self.conntrack_max_per_core);
        conntrack.min = r.field("--conntrack-min", "conntrack.min", &self.conntrack_min);
        conntrack.tcp_established_timeout = r.field(
            "--conntrack-tcp-timeout-established",
            "conntrack.tcpEstablishedTimeout",
            &self.conntrack_tcp_timeout_established,
        );
        conntrack.tcp_close_wait_timeout = r.field(
            "--conntrack-tcp-timeout-close-wait",
            "conntrack.tcpCloseWaitTimeout",
            &self.conntrack_tcp_timeout_close_wait,
        );
        conntrack.tcp_be_liberal =
            r.field("--conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", &self.conntrack_tcp_be_liberal);
        conntrack.udp_timeout =
            r.field("--conntrack-udp-timeout", "conntrack.udpTimeout", &self.conntrack_udp_timeout);
        conntrack.udp_stream_timeout = r.field(
            "--conntrack-udp-timeout-stream",
            "conntrack.udpStreamTimeout",
            &self.conntrack_udp_timeout_stream,
        );
    }

    fn logging(&self, r: &mut Recorder, config: &mut FileConfig) {
        let logging = &mut config.logging;
        logging.verbosity = r.field("--v", "logging.verbosity", &self.v);
        logging.vmodule = r.list("--vmodule", "logging.vmodule", &self.vmodule);
        logging.format = r.field("--logging-format", "logging.format", &self.logging_format);
        logging.flush_frequency =
            r.field("--log-flush-frequency", "logging.flushFrequency", &self.log_flush_frequency);
    }
}

/// The deprecated port flags: zero turns the server off, another value is the port of an address without one.
fn with_port(address: Field<String>, port: Field<u16>, host: IpAddr) -> Field<String> {
    let Some(Given { value: port, origin }) = port else { return address };
    if port == 0 {
        return Some(Given { value: String::new(), origin });
    }
    match address {
        None => Some(Given { value: SocketAddr::new(host, port).to_string(), origin }),
        Some(given) => {
            let bare = given.value.parse::<IpAddr>().ok();
            let value = bare.map_or(given.value, |ip| SocketAddr::new(ip, port).to_string());
            Some(Given { value, origin: given.origin })
        }
    }
}
