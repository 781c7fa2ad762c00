//! Which changes of the configuration a running proxy can take on, and which need it to start again.

use super::domain::{
    ClientSettings, Config, IptablesSettings, Logging, Masquerade, NftablesSettings, UserspaceSettings,
};

/// What became of a changed configuration: the fields that changed, by what it takes to apply them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveChange {
    /// Fields that take effect at once.
    pub applied: Vec<&'static str>,
    /// Fields that take effect when the proxy is started again.
    pub needs_restart: Vec<&'static str>,
}

impl LiveChange {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.needs_restart.is_empty()
    }
}

/// Compares two configurations field by field.
pub fn diff_live(old: &Config, new: &Config) -> LiveChange {
    // Taken apart without `..`, so that a new field does not compile until it has found its place here.
    let Config {
        mode,
        hostname_override,
        bind_address,
        healthz,
        metrics,
        bind_hard_fail,
        profiling,
        show_hidden_metrics_for_version,
        client: ClientSettings { kubeconfig, master, accept_content_types, content_type, qps, burst },
        local_detection,
        node_port_addresses,
        config_sync_period,
        conntrack,
        oom_score_adj,
        logging,
        feature_gates,
        nftables,
        iptables,
        ipvs,
        userspace,
    } = new;
    let live = [
        (*mode != old.mode, "mode"),
        (nftables.masquerade.all != old.nftables.masquerade.all, "nftables.masqueradeAll"),
        (iptables.masquerade.all != old.iptables.masquerade.all, "iptables.masqueradeAll"),
        (iptables.localhost_node_ports != old.iptables.localhost_node_ports, "iptables.localhostNodePorts"),
        (*node_port_addresses != old.node_port_addresses, "nodePortAddresses"),
        (*local_detection != old.local_detection, "clusterCIDR, detectLocalMode, detectLocal"),
        (nftables.sync.period != old.nftables.sync.period, "nftables.syncPeriod"),
        (nftables.sync.min != old.nftables.sync.min, "nftables.minSyncPeriod"),
        (iptables.sync.period != old.iptables.sync.period, "iptables.syncPeriod"),
        (iptables.sync.min != old.iptables.sync.min, "iptables.minSyncPeriod"),
        (ipvs.scheduler != old.ipvs.scheduler, "ipvs.scheduler"),
        (ipvs.exclude_cidrs != old.ipvs.exclude_cidrs, "ipvs.excludeCIDRs"),
        (ipvs.strict_arp != old.ipvs.strict_arp, "ipvs.strictARP"),
        (ipvs.tcp_timeout != old.ipvs.tcp_timeout, "ipvs.tcpTimeout"),
        (ipvs.tcp_fin_timeout != old.ipvs.tcp_fin_timeout, "ipvs.tcpFinTimeout"),
        (ipvs.udp_timeout != old.ipvs.udp_timeout, "ipvs.udpTimeout"),
        (ipvs.sync.period != old.ipvs.sync.period, "ipvs.syncPeriod"),
        (ipvs.sync.min != old.ipvs.sync.min, "ipvs.minSyncPeriod"),
        (*conntrack != old.conntrack, "conntrack"),
        (*oom_score_adj != old.oom_score_adj, "oomScoreAdj"),
        (logging.verbosity != old.logging.verbosity, "logging.verbosity"),
        (logging.vmodule != old.logging.vmodule, "logging.vmodule"),
    ];
    let restart = [
        (*hostname_override != old.hostname_override, "hostnameOverride"),
        (*bind_address != old.bind_address, "bindAddress"),
        (*healthz != old.healthz, "healthzBindAddress"),
        (*metrics != old.metrics, "metricsBindAddress"),
        (*bind_hard_fail != old.bind_hard_fail, "bindAddressHardFail"),
        (*profiling != old.profiling, "enableProfiling"),
        (
            *show_hidden_metrics_for_version != old.show_hidden_metrics_for_version,
            "showHiddenMetricsForVersion",
        ),
        (*kubeconfig != old.client.kubeconfig, "clientConnection.kubeconfig"),
        (*master != old.client.master, "--master"),
        (*accept_content_types != old.client.accept_content_types, "clientConnection.acceptContentTypes"),
        (*content_type != old.client.content_type, "clientConnection.contentType"),
        (*qps != old.client.qps, "clientConnection.qps"),
        (*burst != old.client.burst, "clientConnection.burst"),
        // The mark is in rules that packets are passing through; it is not worth a moment of half of each.
        (nftables.masquerade.bit != old.nftables.masquerade.bit, "nftables.masqueradeBit"),
        (iptables.masquerade.bit != old.iptables.masquerade.bit, "iptables.masqueradeBit"),
        (*config_sync_period != old.config_sync_period, "configSyncPeriod"),
        (logging.format != old.logging.format, "logging.format"),
        (logging.flush_frequency != old.logging.flush_frequency, "logging.flushFrequency"),
        (*feature_gates != old.feature_gates, "featureGates"),
    ];
    let changed = |fields: &[(bool, &'static str)]| fields.iter().filter(|f| f.0).map(|f| f.1).collect();
    let live = [&live[..], &diff_userspace(&old.userspace, userspace)].concat();
    LiveChange { applied: changed(&live), needs_restart: changed(&restart) }
}

/// What changed for userspace mode; all of it takes effect at once.
fn diff_userspace(old: &UserspaceSettings, new: &UserspaceSettings) -> [(bool, &'static str); 9] {
    let UserspaceSettings {
        balancing,
        connect_timeout,
        connect_attempts,
        drain_timeout,
        stop_timeout,
        udp_timeout,
        udp_sessions,
        sync,
    } = new;
    [
        (*balancing != old.balancing, "userspace.balancing"),
        (*connect_timeout != old.connect_timeout, "userspace.connectTimeout"),
        (*connect_attempts != old.connect_attempts, "userspace.connectAttempts"),
        (*drain_timeout != old.drain_timeout, "userspace.drainTimeout"),
        (*stop_timeout != old.stop_timeout, "userspace.stopTimeout"),
        (*udp_timeout != old.udp_timeout, "userspace.udpIdleTimeout"),
        (*udp_sessions != old.udp_sessions, "userspace.maxUDPSessions"),
        (sync.period != old.sync.period, "userspace.syncPeriod"),
        (sync.min != old.sync.min, "userspace.minSyncPeriod"),
    ]
}

/// The new configuration as far as a running proxy can take it on; what needs a restart is as it was started with.
pub fn keep_started(started: &Config, new: Config) -> Config {
    let logging = Logging {
        format: started.logging.format,
        flush_frequency: started.logging.flush_frequency,
        ..new.logging
    };
    let masquerade = |new: Masquerade, started: Masquerade| Masquerade { all: new.all, bit: started.bit };
    let nftables = NftablesSettings {
        masquerade: masquerade(new.nftables.masquerade, started.nftables.masquerade),
        ..new.nftables
    };
    let iptables = IptablesSettings {
        masquerade: masquerade(new.iptables.masquerade, started.iptables.masquerade),
        ..new.iptables
    };
    Config {
        mode: new.mode,
        local_detection: new.local_detection,
        node_port_addresses: new.node_port_addresses,
        conntrack: new.conntrack,
        oom_score_adj: new.oom_score_adj,
        logging,
        nftables,
        iptables,
        ipvs: new.ipvs,
        userspace: new.userspace,
        ..started.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ProxyFlags, merge, parse};

    fn config(fields: &str) -> Config {
        let text =
            format!("apiVersion: {}\nkind: {}\n{fields}", crate::config::API_VERSION, crate::config::KIND);
        let file = parse("test.yaml", &text).expect("parses");
        merge(&ProxyFlags::default(), Some(file)).expect("means something").0
    }

    #[test]
    fn nothing_changed() {
        assert!(diff_live(&config(""), &config("mode: nftables\n")).is_empty());
    }

    #[test]
    fn each_change_is_named_once_on_its_side() {
        let old = config("");
        for (fields, applied, restart) in [
            ("nftables: {masqueradeAll: true}", &["nftables.masqueradeAll"][..], &[][..]),
            ("nodePortAddresses: [10.0.0.0/8]", &["nodePortAddresses"], &[]),
            ("clusterCIDR: 10.0.0.0/8", &["clusterCIDR, detectLocalMode, detectLocal"], &[]),
            (
                "nftables: {syncPeriod: 1m, minSyncPeriod: 2s}",
                &["nftables.syncPeriod", "nftables.minSyncPeriod"],
                &[],
            ),
            ("conntrack: {tcpBeLiberal: true}", &["conntrack"], &[]),
            ("oomScoreAdj: 5", &["oomScoreAdj"], &[]),
            ("logging: {verbosity: 4}", &["logging.verbosity"], &[]),
            ("mode: userspace\nnodePortAddresses: [primary]", &["mode"], &[]),
            (
                "userspace: {balancing: least-connections, connectTimeout: 2s, connectAttempts: 5}",
                &["userspace.balancing", "userspace.connectTimeout", "userspace.connectAttempts"],
                &[],
            ),
            (
                "userspace: {drainTimeout: 0s, stopTimeout: 1s, udpIdleTimeout: 1m, maxUDPSessions: 1}",
                &[
                    "userspace.drainTimeout",
                    "userspace.stopTimeout",
                    "userspace.udpIdleTimeout",
                    "userspace.maxUDPSessions",
                ],
                &[],
            ),
            (
                "userspace: {syncPeriod: 1m, minSyncPeriod: 2s}",
                &["userspace.syncPeriod", "userspace.minSyncPeriod"],
                &[],
            ),
            ("hostnameOverride: other", &[], &["hostnameOverride"]),
            ("healthzBindAddress: 1.2.3.4:5", &[], &["healthzBindAddress"]),
            ("clientConnection: {kubeconfig: /x}", &[], &["clientConnection.kubeconfig"]),
            ("nftables: {masqueradeBit: 3}\noomScoreAdj: 5", &["oomScoreAdj"], &["nftables.masqueradeBit"]),
        ] {
            let change = diff_live(&old, &config(fields));
            assert_eq!(
                (change.applied.as_slice(), change.needs_restart.as_slice()),
                (applied, restart),
                "{fields}"
            );
            let kept = keep_started(&old, config(fields));
            let left = diff_live(&kept, &config(fields));
            assert_eq!(
                (left.applied.as_slice(), left.needs_restart.as_slice()),
                (&[][..], restart),
                "{fields}"
            );
        }
    }
}
