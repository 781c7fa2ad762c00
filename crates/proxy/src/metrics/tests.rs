//! Tests of `metrics`.

use super::*;
use portway_model::api::Resource;
use std::collections::{BTreeMap, BTreeSet};

/// kube-proxy's metrics and Portway's, with their labels except `le`.
const WANTED: &str = "
kubeproxy_sync_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_full_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_partial_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge ip_family
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge ip_family
kubeproxy_network_programming_duration_seconds histogram ip_family
kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge
kubeproxy_sync_proxy_rules_endpoint_changes_total counter
kubeproxy_sync_proxy_rules_service_changes_pending gauge
kubeproxy_sync_proxy_rules_service_changes_total counter
kubeproxy_sync_proxy_rules_iptables_restore_failures_total counter ip_family
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total counter ip_family
kubeproxy_sync_proxy_rules_iptables_total gauge ip_family,table
kubeproxy_sync_proxy_rules_iptables_last gauge ip_family,table
kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter ip_family
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter ip_family
kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge ip_family,traffic_policy
kubeproxy_proxy_healthz_total counter code
kubeproxy_proxy_livez_total counter code
kubeproxy_conntrack_reconciler_sync_duration_seconds histogram ip_family
kubeproxy_conntrack_reconciler_deleted_entries_total counter ip_family
process_cpu_seconds_total counter
process_resident_memory_bytes gauge
process_virtual_memory_bytes gauge
process_open_fds gauge
process_max_fds gauge
process_start_time_seconds gauge
portway_drift_repairs_total counter ip_family
portway_drift_objects_total counter change,ip_family
portway_rejected_objects_total counter kind,reason
portway_rejected_objects gauge kind
portway_api_connected gauge
portway_build_info gauge version
portway_mode_active gauge
portway_other_agents gauge
portway_condition gauge condition
portway_conntrack_entries gauge
portway_conntrack_limit gauge
portway_conntrack_dropped_packets_total counter
kubernetes_build_info gauge build_date,compiler,git_commit,git_tree_state,git_version,go_version,major,minor,platform
kubernetes_feature_enabled gauge name,stage
";

fn populated() -> Metrics {
    let metrics = Metrics::new("1.2.3");
    let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
    metrics.sync_done(Family::V4, SyncKind::Full, Duration::from_millis(3), at);
    metrics.sync_done(Family::V6, SyncKind::Partial, Duration::from_millis(1), at);
    metrics.sync_queued(Family::V4, at);
    metrics.feature_gates(&[("AllowServiceExternalIPs".to_owned(), false)].into());
    metrics.sync_failed("sync_proxy_rules_nftables_sync_failures_total", Family::V4);
    metrics.cleanup_failed(Family::V6);
    metrics.network_programmed(Family::V4, Duration::from_millis(700));
    metrics.endpoint_changes(5);
    metrics.condition(Condition::NodeMissing, true);
    metrics.endpoint_changes_pending(2);
    metrics.service_changes(3);
    metrics.service_changes_pending(1);
    metrics.no_local_endpoints(Family::V4, Traffic::External, 4);
    metrics.conntrack_reconciled(Family::V4, Duration::from_millis(2), 9);
    metrics.healthz(true);
    metrics.livez(false);
    metrics.drift_repaired(Family::V4, Drift { missing: 2, altered: 0, foreign: 1 });
    metrics.rejected(Some(portway_model::api::Service::TYPE), "port");
    metrics.rejected_now(portway_model::api::Service::TYPE, 1);
    metrics.api_connected(true);
    metrics
}

#[test]
fn exposed_metrics_have_the_expected_names_types_and_labels() {
    let families = parse(&populated().encode()).unwrap_or_else(|error| panic!("{error}"));
    let exposed: BTreeSet<String> = families
        .iter()
        .map(|(name, family)| {
            let labels: BTreeSet<&str> =
                family.samples.keys().flat_map(|key| key.labels.keys()).map(String::as_str).collect();
            let labels: Vec<&str> = labels.into_iter().filter(|label| *label != "le").collect();
            format!("{name} {} {}", family.kind, labels.join(",")).trim_end().to_owned()
        })
        .collect();
    let wanted: BTreeSet<String> =
        WANTED.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let missing: Vec<_> = wanted.difference(&exposed).collect();
    let surplus: Vec<_> = exposed.difference(&wanted).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:#?}\nsurplus {surplus:#?}");
}

#[test]
fn each_event_updates_its_series() {
    let text = populated().encode();
    for line in [
        r#"kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="0.004",ip_family="IPv4"} 1"#,
        r#"kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="0.002",ip_family="IPv4"} 0"#,
        r#"kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="16.384",ip_family="IPv4"} 1"#,
        r#"kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 0"#,
        r#"kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1"#,
        r#"kubeproxy_network_programming_duration_seconds_bucket{le="0.5",ip_family="IPv4"} 0"#,
        r#"kubeproxy_network_programming_duration_seconds_bucket{le="1.0",ip_family="IPv4"} 1"#,
        r#"kubeproxy_network_programming_duration_seconds_bucket{le="300.0",ip_family="IPv4"} 1"#,
        r#"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1700000000.25"#,
        r#"kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1"#,
        r#"kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 0"#,
        r#"kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="external",ip_family="IPv4"} 4"#,
        r#"kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 9"#,
        r#"kubeproxy_proxy_healthz_total{code="200"} 1"#,
        r#"kubeproxy_proxy_livez_total{code="503"} 1"#,
        r#"portway_drift_objects_total{ip_family="IPv4",change="foreign"} 1"#,
        r#"portway_rejected_objects_total{kind="Service",reason="port"} 1"#,
        r#"portway_build_info{version="1.2.3"} 1"#,
        "portway_api_connected 1",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total 5",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_timestamp_is_absent_before_the_first_sync() {
    assert!(!Metrics::new("x").encode().contains("last_timestamp_seconds"));
}

#[test]
fn the_parser_of_this_test_is_strict() {
    for wrong in [
        "a 1\n",
        "# TYPE a gauge\na x\n",
        "# TYPE a gauge\na{b=1} 1\n",
        "# TYPE a gauge\na{b=\"1} 1\n",
        "# TYPE a gauge\na 1\na 1\n",
        "# TYPE a gauge\n# TYPE a gauge\n",
        "# TYPE a counter\na 1\n# EOF\n",
        "# TYPE a blob\n",
        "# TYPE a counter\na 1\n",
        "# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        "# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# TYPE a gauge\na 1",
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

#[derive(Debug)]
struct Exposed {
    kind: String,
    samples: BTreeMap<Key, f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    name: String,
    labels: BTreeMap<String, String>,
}

/// Parses the text format 0.0.4, as strictly as its specification allows.
fn parse(text: &str) -> Result<BTreeMap<String, Exposed>, String> {
    let mut families: BTreeMap<String, Exposed> = BTreeMap::new();
    if !text.ends_with('\n') {
        return Err("no newline at the end".into());
    }
    for line in text.lines() {
        if line.strip_prefix("# HELP ").is_some_and(|rest| rest.contains(' ')) {
            continue;
        }
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').ok_or(format!("no type: {line}"))?;
            if !["counter", "gauge", "histogram"].contains(&kind) {
                return Err(format!("no such type: {line}"));
            }
            if kind == "counter" && !name.ends_with("_total") {
                return Err(format!("a counter without _total: {line}"));
            }
            let family = Exposed { kind: kind.into(), samples: BTreeMap::new() };
            if families.insert(name.into(), family).is_some() {
                return Err(format!("declared twice: {line}"));
            }
            continue;
        }
        if line.starts_with('#') {
            return Err(format!("neither HELP nor TYPE: {line}"));
        }
        let (key, value) = parse_sample(line)?;
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
            let base = key.name.strip_suffix(end)?;
            families.get(base).filter(|family| family.kind == "histogram").map(|_| base.to_owned())
        });
        let family =
            families.get_mut(base.as_ref().unwrap_or(&key.name)).ok_or(format!("not declared: {line}"))?;
        if family.samples.insert(key, value).is_some() {
            return Err(format!("twice: {line}"));
        }
    }
    families.iter().filter(|(_, family)| family.kind == "histogram").try_for_each(check_histogram)?;
    Ok(families)
}

fn parse_sample(line: &str) -> Result<(Key, f64), String> {
    let (series, value) = line.rsplit_once(' ').ok_or(format!("no value: {line}"))?;
    let value = value.parse().map_err(|_| format!("no number: {line}"))?;
    let (name, labels) = match series.split_once('{') {
        None => (series, ""),
        Some((name, rest)) => (name, rest.strip_suffix('}').ok_or(format!("labels do not end: {line}"))?),
    };
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':') {
        return Err(format!("not a name: {line}"));
    }
    let mut parsed = BTreeMap::new();
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (name, value) = label.split_once('=').ok_or(format!("not a label: {line}"))?;
        let value =
            value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).ok_or(format!("no quotes: {line}"))?;
        if value.contains(['"', '\\']) || parsed.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(format!("label: {line}"));
        }
    }
    Ok((Key { name: name.into(), labels: parsed }, value))
}

/// Checks that buckets are cumulative and end with +Inf, which equals the count.
fn check_histogram((name, family): (&String, &Exposed)) -> Result<(), String> {
    let mut buckets: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for (key, value) in &family.samples {
        let mut labels = key.labels.clone();
        if let Some(le) = labels.remove("le") {
            let le = le.parse().map_err(|_| format!("le {le} of {name}"))?;
            buckets.entry(labels).or_default().push((le, *value));
        }
    }
    for (labels, mut series) in buckets {
        series.sort_by(|a, b| a.0.total_cmp(&b.0));
        if !series.is_sorted_by(|a, b| a.1 <= b.1) {
            return Err(format!("{name}: buckets shrink"));
        }
        let count = family.samples.get(&Key { name: format!("{name}_count"), labels });
        if series.last().map(|(le, count)| (*le, *count)) != count.map(|count| (f64::INFINITY, *count)) {
            return Err(format!("{name}: +Inf is not the count"));
        }
    }
    Ok(())
}
