//! Tests of `resolve`.

use super::*;
use crate::config::domain::{Masquerade, UserspaceSettings};
use crate::config::{API_VERSION, KIND, parse};
use std::time::Duration;

fn resolve_text(body: &str) -> Result<Config, Vec<String>> {
    let file = parse("c", &format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}")).expect("parses");
    resolve(file).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn config(body: &str) -> Config {
    resolve_text(body).unwrap_or_else(|errors| panic!("rejected: {errors:?}"))
}

fn errors(body: &str) -> Vec<String> {
    resolve_text(body).expect_err("must be rejected")
}

#[test]
fn the_defaults_are_upstreams() {
    let config = config(include_str!("../tests/kubeadm.yaml"));
    assert_eq!(config.mode.as_str(), "nftables");
    assert_eq!(config.healthz, Some("0.0.0.0:10256".parse().expect("an address")));
    assert_eq!(config.metrics, Some("127.0.0.1:10249".parse().expect("an address")));
    assert_eq!(config.node_ip_override(), None);
    assert_eq!(
        config.local_detection,
        LocalDetection::ClusterCidr(vec!["10.244.0.0/16".parse().expect("a CIDR")])
    );
    // As in kube-proxy's default mode, node ports answer on every address, and on 127.0.0.1.
    assert_eq!(print_addresses(&config), ["localhost", "0.0.0.0/0", "::/0"]);
    assert!(config.localhost_node_ports());
    assert_eq!(config.masquerade(), Masquerade { all: false, bit: 14 });
    assert_eq!(config.sync(), SyncPeriods { period: Duration::from_secs(30), min: None });
    assert_eq!(config.health_timeout(), Duration::from_secs(60));
    assert_eq!(config.config_sync_period, Duration::from_secs(900));
    assert_eq!(config.oom_score_adj, -999);
    assert_eq!((config.client.qps, config.client.burst), (5.0, 10));
    assert_eq!(config.client.kubeconfig, Some("/var/lib/kube-proxy/kubeconfig.conf".into()));
    let conntrack = config.conntrack;
    assert_eq!((conntrack.max_per_core, conntrack.min), (32768, 131_072));
    assert_eq!(conntrack.tcp_established, Some(Duration::from_secs(86400)));
    assert_eq!(conntrack.tcp_close_wait, Some(Duration::from_secs(3600)));
    assert_eq!((conntrack.udp, conntrack.udp_stream), (None, None));
    assert!(config.iptables.localhost_node_ports);
}

#[test]
fn an_ipv6_bind_address_moves_the_servers_to_ipv6() {
    let config = config("bindAddress: '::'");
    assert_eq!(config.healthz, Some("[::]:10256".parse().expect("an address")));
    assert_eq!(config.metrics, Some("[::1]:10249".parse().expect("an address")));
}

#[test]
fn every_mode_is_accepted_and_unknown_modes_are_rejected() {
    for mode in crate::modes::MODES {
        assert_eq!(config(&format!("mode: {}", mode.name())).mode.as_str(), mode.name());
    }
    let scheduler = &errors("mode: ipvs\nipvs:\n  scheduler: fastest")[0];
    assert!(scheduler.contains("ipvs.scheduler") && scheduler.contains("rr, wrr, lc"), "{scheduler}");
    let windows = &errors("mode: kernelspace")[0];
    assert!(windows.contains("Windows") && windows.contains("iptables, ipvs or userspace"), "{windows}");
    assert_eq!(
        errors("mode: nft"),
        [r#"c:3: mode: "nft" is not a proxy mode: this release has nftables, iptables, ipvs and userspace"#]
    );
}

#[test]
fn userspace_has_its_own_defaults_and_sync_periods() {
    let defaults = config("mode: userspace\nuserspace: {}");
    let default = portway_dataplane::UserspaceSettings::default();
    assert_eq!(
        defaults.userspace,
        UserspaceSettings {
            balancing: default.balancing,
            connect_timeout: default.connect_timeout,
            connect_attempts: default.connect_attempts,
            drain_timeout: default.drain_timeout,
            stop_timeout: default.stop_timeout,
            udp_timeout: default.udp_timeout,
            udp_sessions: default.udp_sessions,
            sync: SyncPeriods { period: Duration::from_secs(30), min: None },
        }
    );
    let periods = "iptables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 50s}\n\
        userspace: {syncPeriod: 40s, minSyncPeriod: 2s}\n";
    let own = config(&format!("{periods}mode: userspace\n"));
    assert_eq!(
        own.sync(),
        SyncPeriods { period: Duration::from_secs(40), min: Some(Duration::from_secs(2)) }
    );
    assert_eq!(own.health_timeout(), Duration::from_secs(80));
    assert_eq!(own.masquerade(), Masquerade { all: true, bit: 3 });
    assert_eq!(config(&format!("{periods}mode: iptables\n")).sync().period, Duration::from_secs(50));
}

#[test]
fn zero_in_the_userspace_section_is_kept_or_rejected() {
    let zeros = config("userspace: {drainTimeout: 0s, stopTimeout: 0s, syncPeriod: 0s, minSyncPeriod: 0s}");
    assert_eq!(
        (zeros.userspace.drain_timeout, zeros.userspace.stop_timeout),
        (Duration::ZERO, Duration::ZERO)
    );
    assert_eq!(zeros.userspace.sync, SyncPeriods { period: Duration::from_secs(30), min: None });
    let body = "\
userspace:
  balancing: fair
  connectTimeout: 0s
  connectAttempts: 101
  udpIdleTimeout: 0s
  maxUDPSessions: 0
  syncPeriod: 1s
  minSyncPeriod: 2s
";
    assert_eq!(
        errors(body),
        [
            r#"c:4: userspace.balancing: "fair" is not a way of balancing: round-robin or least-connections"#,
            r#"c:5: userspace.connectTimeout: "0" must be greater than zero"#,
            r#"c:6: userspace.connectAttempts: "101" must be between 1 and 100"#,
            r#"c:7: userspace.udpIdleTimeout: "0" must be greater than zero"#,
            r#"c:8: userspace.maxUDPSessions: "0" must be between 1 and 1000000"#,
            r#"c:10: userspace.minSyncPeriod: "2s" must not be longer than the sync period, 1s"#,
        ]
    );
    for edge in ["{connectAttempts: 1, maxUDPSessions: 1000000}", "{connectAttempts: 100, maxUDPSessions: 1}"]
    {
        config(&format!("userspace: {edge}"));
    }
}

#[test]
fn without_a_mode_the_iptables_section_applies_to_nftables() {
    let iptables = "iptables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 50s, minSyncPeriod: 2s}\n";
    let no_mode = config(iptables);
    assert_eq!(no_mode.masquerade(), Masquerade { all: true, bit: 3 });
    assert_eq!(
        no_mode.sync(),
        SyncPeriods { period: Duration::from_secs(50), min: Some(Duration::from_secs(2)) }
    );
    let own = config(&format!("{iptables}nftables: {{masqueradeBit: 4, syncPeriod: 1m}}\n"));
    assert_eq!((own.masquerade().bit, own.sync().period), (4, Duration::from_secs(60)));
    let named = config(&format!("{iptables}mode: nftables\n"));
    assert_eq!(named.masquerade(), Masquerade { all: false, bit: 14 });
    assert_eq!(named.sync(), SyncPeriods { period: Duration::from_secs(30), min: None });
}

#[test]
fn local_detection_follows_its_mode() {
    assert_eq!(config("").local_detection, LocalDetection::None);
    assert_eq!(
        config("detectLocalMode: NodeCIDR\nclusterCIDR: nonsense").local_detection,
        LocalDetection::NodeCidr
    );
    assert_eq!(
        config("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}").local_detection,
        LocalDetection::BridgeInterface("cni0".to_owned())
    );
    assert_eq!(
        config("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}")
            .local_detection,
        LocalDetection::InterfaceNamePrefix("veth".to_owned())
    );
    assert_eq!(
        errors("detectLocalMode: BridgeInterface"),
        [r#"c:3: detectLocalMode: "BridgeInterface" needs detectLocal.bridgeInterface"#]
    );
    assert!(errors("detectLocalMode: clusterCIDR")[0].contains("is not one of ClusterCIDR"));
    assert!(errors("clusterCIDR: 10.0.0.0/8,11.0.0.0/8")[0].contains("one IPv4 and one IPv6"));
}

#[test]
fn node_port_addresses_are_keywords_and_ranges() {
    for (given, addresses, localhost) in [
        ("mode: nftables", &["primary"][..], false),
        ("mode: iptables", &[], true),
        ("mode: ipvs", &[], false),
        ("", &["localhost", "0.0.0.0/0", "::/0"], true),
        ("iptables: {localhostNodePorts: false}", &["0.0.0.0/0", "::/0"], false),
        ("mode: iptables\niptables: {localhostNodePorts: false}", &[], false),
        ("nodePortAddresses: [primary]", &["primary"], false),
        ("nodePortAddresses: [10.0.0.0/8]", &["10.0.0.0/8"], false),
        ("nodePortAddresses: [127.0.0.0/8]", &["localhost", "127.0.0.0/8", "::/0"], true),
        ("mode: iptables\nnodePortAddresses: [10.0.0.0/8]", &["10.0.0.0/8"], false),
        ("mode: nftables\nnodePortAddresses: [all]", &["0.0.0.0/0", "::/0"], false),
        ("mode: nftables\nnodePortAddresses: [localhost]", &["localhost"], true),
        (
            "mode: nftables\nnodePortAddresses: [localhost, primary, 10.0.0.0/8]",
            &["primary", "localhost", "10.0.0.0/8"],
            true,
        ),
        (
            "mode: nftables\nnodePortAddresses: [localhost]\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: false}",
            &["localhost"],
            false,
        ),
    ] {
        let config = config(given);
        assert_eq!(print_addresses(&config), addresses, "{given}");
        assert_eq!(config.localhost_node_ports(), localhost, "{given}");
    }
    assert_eq!(
        errors("nodePortAddresses:\n- primary\n- 10.0.0.0/8\n- 10.0.0.1\n"),
        [concat!(
            r#"c:6: nodePortAddresses[2]: "10.0.0.1" is not a range such as 10.244.0.0/16 or fd00:10:244::/56, "#,
            "nor one of the keywords primary, localhost and all"
        )]
    );
}

fn print_addresses(config: &Config) -> Vec<String> {
    let printed = crate::config::print::to_json(config)["nodePortAddresses"].clone();
    serde_json::from_value(printed).expect("a list of texts")
}

#[test]
fn feature_gates_of_kube_proxy_are_known() {
    let config =
        config("featureGates: {AllAlpha: false, AllowServiceExternalIPs: false, WatchListClient: true}");
    assert!(!config.gate(crate::config::ALLOW_EXTERNAL_IPS, true));
    assert_eq!(
        errors("featureGates:\n  AllowServiceExternalIP: false\n  NoSuchGate: true\n"),
        [
            r#"c:4: featureGates: "AllowServiceExternalIP=false" is an unknown feature gate, did you mean AllowServiceExternalIPs?"#,
            r#"c:5: featureGates: "NoSuchGate=true" is an unknown feature gate"#,
        ]
    );
    assert_eq!(
        errors("mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}"),
        [r#"c:3: mode: "ipvs" is forbidden by the feature gate KubeProxyIPVS=false"#]
    );
}

#[test]
fn every_invalid_value_is_reported() {
    let body = "\
bindAddress: here
healthzBindAddress: 0.0.0.0:0
hostnameOverride: ' '
oomScoreAdj: 1001
mode: nftables
nftables: {masqueradeBit: 32, syncPeriod: 10s, minSyncPeriod: 11s}
conntrack: {maxPerCore: -1, min: 99999999999}
clientConnection: {burst: -1}
logging: {format: xml, verbosity: -2}
ipvs: {excludeCIDRs: [1.2.3.4]}
";
    let found = errors(body);
    for wanted in [
        r#"c:3: bindAddress: "here" is not an IP address"#,
        r#"c:4: healthzBindAddress: "0.0.0.0:0" needs a port from 1 to 65535"#,
        r#"c:5: hostnameOverride: " " is empty: give a node's name, or leave it out"#,
        r#"c:6: oomScoreAdj: "1001" must be between -1000 and 1000"#,
        r#"c:8: nftables.masqueradeBit: "32" must be between 0 and 31"#,
        r#"c:8: nftables.minSyncPeriod: "11s" must not be longer than the sync period, 10s"#,
        r#"c:9: conntrack.maxPerCore: "-1" must be at least 0"#,
        r#"c:9: conntrack.min: "99999999999" must be at most 2147483647"#,
        r#"c:10: clientConnection.burst: "-1" must be at least 0"#,
        r#"c:11: logging.format: "xml" is not a log format: text or json"#,
        r#"c:11: logging.verbosity: "-2" must be at least 0"#,
        r#"c:12: ipvs.excludeCIDRs[0]: "1.2.3.4" is not a range such as 10.244.0.0/16 or fd00:10:244::/56"#,
    ] {
        assert!(found.iter().any(|error| error == wanted), "{wanted}\nnot in {found:#?}");
    }
    assert_eq!(found.len(), 12, "{found:#?}");
}

#[test]
fn names_are_trimmed_and_in_lower_case() {
    assert_eq!(config("hostnameOverride: ' Node-1 '").hostname_override.as_deref(), Some("node-1"));
}
