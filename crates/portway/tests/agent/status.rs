//! The pages of the agent (docs/semantics.md, section 7) and its metrics (section 8).

use crate::agent_lab::{AgentLab, STATUS, patience};
use crate::http::Page;
use crate::metrics::Metrics;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Conversation, Probe, Protocol, eventually};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("healthz_and_livez_report_both_families", health_pages),
    ("healthz_fails_when_the_node_is_tainted_or_deleted", leaving),
    ("status_pages_are_served_on_localhost_only", status_pages),
    ("metrics_follow_changes", metrics_move),
    ("a_deleted_udp_flow_is_counted", flows_counted),
];

fn health_pages(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let page = eventually(patience(), || expect(world, "/healthz", 200))?;
    is_page(&page, "application/json")?;
    let body = page.json()?;
    let fields = ["lastUpdated", "currentTime", "nodeEligible", "healthy", "status"];
    ensure(has_exactly(&body, &fields), || format!("other fields than {fields:?}: {body}"))?;
    ensure(body["nodeEligible"] == true && body["healthy"] == true, || body.to_string())?;
    for family in ["IPv4", "IPv6"] {
        let status = &body["status"][family];
        let well = has_exactly(status, &["lastUpdated", "healthy"]) && status["healthy"] == true;
        ensure(well && is_time(&status["lastUpdated"]), || body.to_string())?;
    }
    ensure(is_time(&body["lastUpdated"]) && is_time(&body["currentTime"]), || body.to_string())?;

    let page = expect(world, "/livez", 200)?;
    is_page(&page, "application/json")?;
    let body = page.json()?;
    let fields = ["lastUpdated", "currentTime", "healthy", "status"];
    ensure(has_exactly(&body, &fields), || format!("other fields than {fields:?}: {body}"))?;
    expect(world, "/other", 404)?;

    let metrics = world.metrics()?;
    for (series, least) in [("proxy_healthz_total", 1.0), ("proxy_livez_total", 1.0)] {
        let value = metrics.value(&format!("kubeproxy_{series}{{code=\"200\"}}"));
        ensure(value >= least, || format!("{series} is {value}"))?;
    }
    Ok(())
}

fn leaving(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let here = objects::node(&world.node_ips(), "");
    let doomed = "taints:\n- {key: ToBeDeletedByClusterAutoscaler, value: '1', effect: NoSchedule}";
    let doomed = objects::node(&world.node_ips(), doomed);
    let deleting =
        here.replace("  name: node1\n", "  name: node1\n  deletionTimestamp: '2024-01-02T03:04:05Z'\n");
    eventually(patience(), || expect(world, "/healthz", 200))?;
    for (why, node) in [("tainted", Some(doomed)), ("being deleted", Some(deleting)), ("missing", None)] {
        match node {
            Some(node) => world.apply("node1.yaml", &node),
            None => world.delete("node1.yaml"),
        }
        let page =
            eventually(patience(), || expect(world, "/healthz", 503)).map_err(|e| format!("{why}: {e}"))?;
        let body = page.json()?;
        ensure(body["nodeEligible"] == false && body["healthy"] == true, || format!("{why}: {body}"))?;
        expect(world, "/livez", 200).map_err(|e| format!("{why}: {e}"))?;
        world.apply("node1.yaml", &here);
        eventually(patience(), || expect(world, "/healthz", 200))
            .map_err(|e| format!("no longer {why}: {e}"))?;
    }
    world.metric("kubeproxy_proxy_healthz_total{code=\"503\"}", |n| n >= 3.0)?;
    world.web_works()
}

fn status_pages(world: &mut AgentLab) -> Outcome {
    world.start(&["--cluster-cidr=10.244.0.0/16,fd10:244::/32"])?;
    world.web_works()?;
    let ask = |path: &str| world.status(path);
    for (path, body) in [("/healthz", "ok"), ("/proxyMode", "nftables")] {
        let page = ask(path)?;
        ensure(page.status == 200 && page.body == body, || format!("{path}: {page:?}"))?;
        is_page(&page, "text/plain; charset=utf-8")?;
    }
    let page = ask("/configz")?;
    is_page(&page, "application/json")?;
    let body = page.json()?;
    let config = &body["kubeproxy.config.k8s.io"];
    for (field, value) in [
        ("kind", "KubeProxyConfiguration"),
        ("mode", "nftables"),
        ("clusterCIDR", "10.244.0.0/16,fd10:244::/32"),
        ("hostnameOverride", "node1"),
        ("metricsBindAddress", "127.0.0.1:10249"),
    ] {
        ensure(config[field] == value, || format!("{field} is {}, not {value}", config[field]))?;
    }
    let page = ask("/metrics")?;
    is_page(&page, "text/plain; version=0.0.4; charset=utf-8")?;
    // They are not served outside of the node.
    let elsewhere = SocketAddr::new(world.node_ips()[0], STATUS.port());
    let outcome = Probe::tcp(world.client(), elsewhere).run();
    ensure(outcome.all_refused(), || format!("the status pages from outside: {outcome}"))
}

fn metrics_move(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let before = world.metrics()?;
    let connected = before.value("portway_api_connected");
    ensure(connected == 1.0, || {
        format!("portway_api_connected is {connected} though all objects were listed")
    })?;
    for name in ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"] {
        ensure(before.value(name) > 0.0, || format!("{name} is {}", before.value(name)))?;
    }
    let full = "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    ensure(before.value(full) == 1.0, || {
        format!("the first sync is not the full one: {}", before.value(full))
    })?;

    // One slice changes, as its controller would write it; then one Service that wants endpoints here and has none.
    let slice = objects::slice("web", "web-v4", &world.pod_ips("pod1a")[..1]);
    let trigger = "  annotations: {endpoints.kubernetes.io/last-change-trigger-time: '2024-01-02T03:04:05Z'}\n  labels:";
    world.apply("web-v4.yaml", &slice.replace("  labels:", trigger));
    world.reaches("10.96.0.1:80".parse()?, &["pod1a"])?;
    let lonely = objects::service("lonely", "10.96.0.2", "internalTrafficPolicy: Local");
    world.apply("lonely.yaml", &lonely);
    let elsewhere = objects::slice("lonely", "lonely", &world.pod_ips("pod1b")[..1]);
    world.apply("lonely-slice.yaml", &elsewhere.replace("nodeName: node1", "nodeName: node2"));
    let lacking =
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"}";
    world.metric(lacking, |n| n == 1.0)?;

    let after = world.metrics()?;
    let moved = |series: &str, least: f64| more(&before, &after, series, least);
    for family in ["IPv4", "IPv6"] {
        let of = |name: &str| format!("kubeproxy_{name}{{ip_family=\"{family}\"}}");
        moved(&of("sync_proxy_rules_duration_seconds_count"), 1.0)?;
        moved(&of("sync_partial_proxy_rules_duration_seconds_count"), 1.0)?;
        moved(&of("sync_proxy_rules_last_timestamp_seconds"), f64::MIN_POSITIVE)?;
        moved(&of("sync_proxy_rules_last_queued_timestamp_seconds"), f64::MIN_POSITIVE)?;
    }
    moved("kubeproxy_sync_proxy_rules_endpoint_changes_total", 2.0)?;
    moved("kubeproxy_sync_proxy_rules_service_changes_total", 1.0)?;
    moved("kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}", 1.0)?;
    for pending in ["endpoint_changes_pending", "service_changes_pending"] {
        world.metric(&format!("kubeproxy_sync_proxy_rules_{pending}"), |n| n == 0.0)?;
    }
    ensure(after.value(full) == 1.0, || "a change was synced by looking at everything".to_owned())
}

fn flows_counted(world: &mut AgentLab) -> Outcome {
    let udp = objects::service("udp", "10.96.0.3", "").replace("port: 80", "name: udp\n    port: 53");
    world.apply("udp.yaml", &udp.replace("TCP", "UDP"));
    world.apply("udp-slice.yaml", &objects::slice("udp", "udp", &world.pod_ips("pod1a")[..1]));
    world.start(&[])?;
    let to = "10.96.0.3:53".parse()?;
    let begin = || Conversation::begin(world.client(), Protocol::Udp, to, Duration::from_millis(250));
    let mut flow = eventually(patience(), || {
        let mut flow = begin()?;
        flow.ask("hello").map(|_| flow)
    })?;
    let deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
    let before = world.metrics()?.value(deleted);
    world.apply("udp-slice.yaml", &objects::slice("udp", "udp", &world.pod_ips("pod1b")[..1]));
    world.metric(deleted, |n| n > before)?;
    let reply = eventually(patience(), || flow.ask("again"))?;
    ensure(reply.server == "pod1b", || format!("the flow still leads to {}", reply.server))
}

fn more(before: &Metrics, after: &Metrics, series: &str, least: f64) -> Outcome {
    let (before, after) = (before.value(series), after.value(series));
    ensure(after - before >= least, || format!("{series} went from {before} to {after}, not by {least}"))
}

fn expect(world: &AgentLab, path: &str, status: u16) -> Result<Page, String> {
    let page = world.health(path)?;
    if page.status == status { Ok(page) } else { Err(format!("{path}: {page:?}")) }
}

fn is_page(page: &Page, content_type: &str) -> Outcome {
    let right =
        page.header("content-type") == content_type && page.header("x-content-type-options") == "nosniff";
    ensure(right, || format!("other headers than {content_type}, nosniff: {page:?}"))
}

fn has_exactly(value: &Value, fields: &[&str]) -> bool {
    let has = |object: &serde_json::Map<_, _>| {
        object.len() == fields.len() && fields.iter().all(|f| object.contains_key(*f))
    };
    value.as_object().is_some_and(has)
}

/// Whether it is a time of this century.
fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.starts_with("20") && text.ends_with('Z') && text.contains('T'))
}
