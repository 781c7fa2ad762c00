//! Printed configurations parse back to the same configuration.

use super::*;
use crate::config::print::to_yaml;
use portway_dataplane::Balancing;
use proptest::prelude::*;
use std::time::Duration;

fn from_yaml(text: &str) -> Config {
    let file = parse("written.yaml", text).unwrap_or_else(|errors| panic!("{text}\n{errors:?}"));
    merge(&ProxyFlags::default(), Some(file)).unwrap_or_else(|errors| panic!("{text}\n{errors:?}")).0
}

fn assert_reads_back(config: &Config) {
    let text = to_yaml(config).expect("prints");
    assert_eq!(&from_yaml(&text), config, "{text}");
}

#[test]
fn written_configurations_read_back() {
    assert_reads_back(&config(""));
    assert_reads_back(&config(include_str!("kubeadm.yaml")));
    assert_reads_back(&config(include_str!("every_field.yaml")));
}

#[test]
fn every_default_is_written() {
    let text = to_yaml(&config("")).expect("prints");
    for line in [
        "mode: nftables",
        "syncPeriod: 30s",
        "tcpEstablishedTimeout: 24h0m0s",
        "oomScoreAdj: -999",
        "balancing: round-robin",
        "drainTimeout: 10m0s",
        "maxUDPSessions: 16384",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

proptest! {
    #[test]
    fn any_configuration_reads_back(
        bit in 0..32u8,
        all: bool,
        period in 1..u64::from(u32::MAX),
        min in proptest::option::of(0.0..1.0f64),
        established in 0..100_000u64,
        detection in prop_oneof![
            Just("detectLocalMode: NodeCIDR".to_owned()),
            "[a-z0-9.-]{1,15}".prop_map(|name| format!("detectLocalMode: BridgeInterface\ndetectLocal: {{bridgeInterface: '{name}'}}")),
            "[a-z]{1,15}".prop_map(|name| format!("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {{interfaceNamePrefix: '{name}'}}")),
            any::<[u8; 4]>().prop_map(|ip| format!("clusterCIDR: {}.{}.{}.{}/16", ip[0], ip[1], ip[2], ip[3])),
        ],
        host in "[a-z0-9:~#][a-z0-9 :#-]{0,9}[a-z0-9]",
        addresses in proptest::collection::vec(any::<[u8; 4]>(), 0..4),
        level in 0..10u32,
        fewest: bool,
        (connect, idle) in (1..u64::from(u32::MAX), 1..u64::from(u32::MAX)),
        (drain, stop) in (0..u64::from(u32::MAX), 0..u64::from(u32::MAX)),
        (attempts, sessions) in (1..=100u32, 1..=1_000_000u32),
    ) {
        let addresses: Vec<String> =
            addresses.iter().map(|ip| format!("{}.{}.{}.{}/24", ip[0], ip[1], ip[2], ip[3])).collect();
        let mut config = super::config(&format!("{detection}\nnodePortAddresses: [{}]\n", addresses.join(", ")));
        config.nftables.masquerade.bit = bit;
        config.nftables.masquerade.all = all;
        config.nftables.sync.period = Duration::from_millis(period);
        config.nftables.sync.min = min.map(|part| config.nftables.sync.period.mul_f64(part)).filter(|min| !min.is_zero());
        config.conntrack.tcp_established = Some(Duration::from_secs(established)).filter(|t| !t.is_zero());
        config.hostname_override = Some(host);
        config.logging.verbosity = level;
        config.mode = ModeName::parse("userspace").expect("a mode");
        config.userspace = UserspaceSettings {
            balancing: if fewest { Balancing::LeastConnections } else { Balancing::RoundRobin },
            connect_timeout: Duration::from_millis(connect),
            connect_attempts: attempts,
            drain_timeout: Duration::from_millis(drain),
            stop_timeout: Duration::from_millis(stop),
            udp_timeout: Duration::from_millis(idle),
            udp_sessions: sessions,
            sync: config.nftables.sync,
        };
        assert_reads_back(&config);
    }
}
