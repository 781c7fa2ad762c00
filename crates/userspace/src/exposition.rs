//! The relay's counters of each Service port, in Prometheus' text format.
//!
//! A port appears after its first connection, so that the idle Services of a large cluster add no series.

use crate::balance::PortId;
use crate::loopback::LoopbackCounts;
use crate::relay_client::RelayClient;
use crate::stats::{BUCKETS, Counts};
use portway_dataplane::CounterSource;
use portway_model::Family;
use std::fmt::Write;

impl CounterSource for RelayClient {
    fn exposition(&self) -> String {
        text(&self.counts()) + &relay(self)
    }
}

type Number = fn(&Counts) -> u64;

/// Counters and gauges: name, kind, help, value.
const SERIES: [(&str, &str, &str, Number); 6] = [
    ("connections_total", "counter", "Connections accepted and UDP sessions begun", |c| c.connections),
    ("connections_open", "gauge", "Connections and UDP sessions that are open", |c| c.open),
    ("received_bytes_total", "counter", "Bytes from clients that were delivered", |c| c.received),
    ("sent_bytes_total", "counter", "Bytes to clients that were delivered", |c| c.sent),
    ("retries_total", "counter", "Endpoints tried after another one did not accept", |c| c.retries),
    ("failures_total", "counter", "Connections and UDP sessions that no endpoint accepted", |c| c.failures),
];
const PREFIX: &str = "portway_userspace_";

/// The exposition of these counters.
fn text(counts: &[(PortId, Counts)]) -> String {
    let mut used: Vec<(String, &Counts)> = counts
        .iter()
        .filter(|(_, counts)| counts.connections + counts.failures > 0)
        .map(|(id, counts)| (labels(id), counts))
        .collect();
    used.sort_by(|a, b| a.0.cmp(&b.0));
    let mut text = String::new();
    for (name, kind, help, number) in SERIES {
        declare(&mut text, name, kind, help);
        for (labels, counts) in &used {
            _ = writeln!(text, "{PREFIX}{name}{{{labels}}} {}", number(counts));
        }
    }
    let name = "connect_duration_seconds";
    declare(&mut text, name, "histogram", "How long the endpoint that accepted took to do so");
    for (labels, counts) in &used {
        let mut sum = 0;
        for (i, count) in counts.connect_buckets.iter().enumerate() {
            sum += count;
            let bound = BUCKETS.get(i).map_or("+Inf".to_owned(), ToString::to_string);
            _ = writeln!(text, "{PREFIX}{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
        }
        _ = writeln!(text, "{PREFIX}{name}_sum{{{labels}}} {}", counts.connect_seconds);
        _ = writeln!(text, "{PREFIX}{name}_count{{{labels}}} {sum}");
    }
    text
}

/// The exposition of the numbers that every mode with a relay has.
pub(crate) fn relay(client: &RelayClient) -> String {
    let name = "portway_relay_ended_total";
    let help = "Relay processes that ended unexpectedly, and their connections with them.";
    loopback(client.loopback_counts())
        + &format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {}\n", client.ended())
}

/// The exposition of the numbers of listeners at loopback addresses, with the names of kube-proxy v1.37.
fn loopback(counts: LoopbackCounts) -> String {
    let mut text = String::new();
    for (name, kind, help, numbers) in [
        (
            "kubeproxy_nftables_localhost_nodeport_listeners",
            "gauge",
            "Open listeners at node ports of loopback addresses.",
            counts.listeners,
        ),
        (
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
            "counter",
            "Listeners at node ports of loopback addresses that could not be opened.",
            counts.failures,
        ),
    ] {
        _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for family in Family::ALL {
            _ = writeln!(text, "{name}{{ip_family=\"{family}\"}} {}", numbers[family as usize]);
        }
    }
    // kube-proxy counts the first packet of each connection.
    let accepted = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total";
    _ = writeln!(
        text,
        "# HELP {accepted} Connections to node ports at loopback addresses that were accepted."
    );
    _ = writeln!(text, "# TYPE {accepted} counter");
    _ = writeln!(text, "{accepted} {}", counts.accepted);
    text
}

fn declare(text: &mut String, name: &str, kind: &str, help: &str) {
    _ = writeln!(text, "# HELP {PREFIX}{name} {help}.\n# TYPE {PREFIX}{name} {kind}");
}

/// Kubernetes names contain no character that needs escaping.
fn labels(id: &PortId) -> String {
    format!(
        "namespace=\"{}\",service=\"{}\",port=\"{}\",protocol=\"{}\",ip_family=\"{}\"",
        id.service.namespace(),
        id.service.name(),
        id.port,
        id.protocol,
        id.family
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_model::{Family, Protocol, ServiceName};

    fn id(name: &str) -> PortId {
        let service = ServiceName::new("default", name);
        PortId { service, port: "http".into(), protocol: Protocol::Tcp, family: Family::V4 }
    }

    #[test]
    fn used_ports_are_exposed_and_idle_ones_are_not() {
        let mut counts =
            Counts { connections: 3, open: 1, received: 10, sent: 20, retries: 2, ..Counts::default() };
        counts.connect_buckets[0] = 2;
        counts.connect_buckets[BUCKETS.len()] = 1;
        counts.connect_seconds = 7.5;
        let text = text(&[(id("web"), counts), (id("idle"), Counts::default())]);
        let of = r#"namespace="default",service="web",port="http",protocol="TCP",ip_family="IPv4""#;
        for line in [
            format!("portway_userspace_connections_total{{{of}}} 3"),
            format!("portway_userspace_connections_open{{{of}}} 1"),
            format!("portway_userspace_received_bytes_total{{{of}}} 10"),
            format!("portway_userspace_sent_bytes_total{{{of}}} 20"),
            format!("portway_userspace_retries_total{{{of}}} 2"),
            format!("portway_userspace_failures_total{{{of}}} 0"),
            format!("portway_userspace_connect_duration_seconds_bucket{{{of},le=\"0.0001\"}} 2"),
            format!("portway_userspace_connect_duration_seconds_bucket{{{of},le=\"5\"}} 2"),
            format!("portway_userspace_connect_duration_seconds_bucket{{{of},le=\"+Inf\"}} 3"),
            format!("portway_userspace_connect_duration_seconds_sum{{{of}}} 7.5"),
            format!("portway_userspace_connect_duration_seconds_count{{{of}}} 3"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("idle"));
    }

    #[test]
    fn listeners_at_loopback_addresses_have_kube_proxys_labels() {
        let text = loopback(LoopbackCounts { listeners: [2, 1], failures: [0, 3], accepted: 7 });
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let wanted = [
            r#"kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv4"} 2"#,
            r#"kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv6"} 1"#,
            r#"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv4"} 0"#,
            r#"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv6"} 3"#,
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total 7",
        ];
        assert_eq!(lines, wanted);
    }
}
