//! The health and status pages of the agent (docs/semantics.md, section 7) and its metrics (section 8).

use crate::agent_lab::{AgentLab, STATUS, wait_timeout};
use crate::http::Page;
use crate::metrics::Metrics;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Conversation, Probe, Protocol, eventually};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("slow_clients_keep_neither_syncs_nor_probes_waiting", slow_clients),
    ("healthz_and_livez_report_both_families", health_pages),
    ("healthz_fails_while_the_node_is_tainted_or_being_deleted", ineligible_node),
    ("status_pages_are_served_on_localhost_only", status_pages),
    ("metrics_follow_changes", metrics_change),
    ("a_deleted_udp_flow_is_counted", deleted_flow),
];

fn health_pages(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let page = eventually(wait_timeout(), || expect(lab, "/healthz", 200))?;
    has_headers(&page, "application/json")?;
    let body = page.json()?;
    let fields = ["lastUpdated", "currentTime", "nodeEligible", "healthy", "status"];
    ensure(has_exactly(&body, &fields), || format!("other fields than {fields:?}: {body}"))?;
    ensure(body["nodeEligible"] == true && body["healthy"] == true, || body.to_string())?;
    for family in ["IPv4", "IPv6"] {
        let status = &body["status"][family];
        let healthy = has_exactly(status, &["lastUpdated", "healthy"]) && status["healthy"] == true;
        ensure(healthy && is_time(&status["lastUpdated"]), || body.to_string())?;
    }
    ensure(is_time(&body["lastUpdated"]) && is_time(&body["currentTime"]), || body.to_string())?;

    let page = expect(lab, "/livez", 200)?;
    has_headers(&page, "application/json")?;
    let body = page.json()?;
    let fields = ["lastUpdated", "currentTime", "healthy", "status"];
    ensure(has_exactly(&body, &fields), || format!("other fields than {fields:?}: {body}"))?;
    expect(lab, "/other", 404)?;

    let metrics = lab.metrics()?;
    for (series, least) in [("proxy_healthz_total", 1.0), ("proxy_livez_total", 1.0)] {
        let value = metrics.value(&format!("kubeproxy_{series}{{code=\"200\"}}"));
        ensure(value >= least, || format!("{series} is {value}"))?;
    }
    Ok(())
}

fn ineligible_node(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let normal = objects::node(&lab.node_ips(), "");
    let taint = "taints:\n- {key: ToBeDeletedByClusterAutoscaler, value: '1', effect: NoSchedule}";
    let tainted = objects::node(&lab.node_ips(), taint);
    let deleting =
        normal.replace("  name: node1\n", "  name: node1\n  deletionTimestamp: '2024-01-02T03:04:05Z'\n");
    eventually(wait_timeout(), || expect(lab, "/healthz", 200))?;
    for (state, node) in [("tainted", tainted), ("being deleted", deleting)] {
        lab.apply("node1.yaml", &node);
        let page = eventually(wait_timeout(), || expect(lab, "/healthz", 503))
            .map_err(|e| format!("{state}: {e}"))?;
        let body = page.json()?;
        ensure(body["nodeEligible"] == false && body["healthy"] == true, || format!("{state}: {body}"))?;
        expect(lab, "/livez", 200).map_err(|e| format!("{state}: {e}"))?;
        lab.apply("node1.yaml", &normal);
        eventually(wait_timeout(), || expect(lab, "/healthz", 200))
            .map_err(|e| format!("no longer {state}: {e}"))?;
    }
    lab.metric("kubeproxy_proxy_healthz_total{code=\"503\"}", |n| n >= 2.0)?;
    lab.web_works()
}

fn status_pages(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--cluster-cidr=10.244.0.0/16,fd10:244::/32"])?;
    lab.web_works()?;
    let ask = |path: &str| lab.status(path);
    for (path, body) in [("/healthz", "ok"), ("/proxyMode", "nftables")] {
        let page = ask(path)?;
        ensure(page.status == 200 && page.body == body, || format!("{path}: {page:?}"))?;
        has_headers(&page, "text/plain; charset=utf-8")?;
    }
    let page = ask("/configz")?;
    has_headers(&page, "application/json")?;
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
    has_headers(&page, "text/plain; version=0.0.4; charset=utf-8")?;
    // They are not served to other hosts.
    let external = SocketAddr::new(lab.node_ips()[0], STATUS.port());
    let outcome = Probe::tcp(lab.client(), external).run();
    ensure(outcome.all_refused(), || format!("status pages requested by the client: {outcome}"))
}

fn metrics_change(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let full = "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    // Rules are in force a moment before their sync is counted.
    lab.metric(full, |n| n >= 1.0)?;
    let before = lab.metrics()?;
    let connected = before.value("portway_api_connected");
    ensure(connected == 1.0, || {
        format!("portway_api_connected is {connected} though all objects were listed")
    })?;
    for name in ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"] {
        ensure(before.value(name) > 0.0, || format!("{name} is {}", before.value(name)))?;
    }
    ensure(before.value(full) == 1.0, || {
        format!("the number of full syncs is not 1: {}", before.value(full))
    })?;

    // A slice changes, with the annotation of its controller. Then a Service with policy Local has no local endpoints.
    let slice = objects::slice("web", "web-v4", &lab.pod_ips("pod1a")[..1]);
    let trigger = "  annotations: {endpoints.kubernetes.io/last-change-trigger-time: '2024-01-02T03:04:05Z'}\n  labels:";
    lab.apply("web-v4.yaml", &slice.replace("  labels:", trigger));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1a"])?;
    let local = objects::service("local", "10.96.0.2", "internalTrafficPolicy: Local");
    // Two ports, each of which counts.
    let ports = "protocol: TCP\n  - {name: udp, port: 53, protocol: UDP}";
    lab.apply("local.yaml", &local.replace("protocol: TCP", ports));
    let remote = objects::slice("local", "local", &lab.pod_ips("pod1b")[..1]);
    lab.apply("local-slice.yaml", &remote.replace("nodeName: node1", "nodeName: node2"));
    let without_endpoints =
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"}";
    lab.metric(without_endpoints, |n| n == 2.0)?;

    let after = lab.metrics()?;
    let grew = |series: &str, least: f64| check_growth(&before, &after, series, least);
    for family in ["IPv4", "IPv6"] {
        let of = |name: &str| format!("kubeproxy_{name}{{ip_family=\"{family}\"}}");
        grew(&of("sync_proxy_rules_duration_seconds_count"), 1.0)?;
        grew(&of("sync_partial_proxy_rules_duration_seconds_count"), 1.0)?;
        grew(&of("sync_proxy_rules_last_timestamp_seconds"), f64::MIN_POSITIVE)?;
        grew(&of("sync_proxy_rules_last_queued_timestamp_seconds"), f64::MIN_POSITIVE)?;
    }
    grew("kubeproxy_sync_proxy_rules_endpoint_changes_total", 2.0)?;
    grew("kubeproxy_sync_proxy_rules_service_changes_total", 1.0)?;
    grew("kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}", 1.0)?;
    let of_ipv6 = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv6\"}";
    ensure(after.value(of_ipv6) == before.value(of_ipv6), || "a slice of IPv4 counted for IPv6".to_owned())?;
    for pending in ["endpoint_changes_pending", "service_changes_pending"] {
        lab.metric(&format!("kubeproxy_sync_proxy_rules_{pending}"), |n| n == 0.0)?;
    }
    ensure(after.value(full) == 1.0, || "a change caused a full sync".to_owned())
}

fn deleted_flow(lab: &mut AgentLab) -> Outcome {
    let udp = objects::service("udp", "10.96.0.3", "").replace("port: 80", "name: udp\n    port: 53");
    lab.apply("udp.yaml", &udp.replace("TCP", "UDP"));
    lab.apply("udp-slice.yaml", &objects::slice("udp", "udp", &lab.pod_ips("pod1a")[..1]));
    lab.start(&[])?;
    let to = "10.96.0.3:53".parse()?;
    let begin = || Conversation::begin(lab.client(), Protocol::Udp, to, Duration::from_millis(250));
    let mut flow = eventually(wait_timeout(), || {
        let mut flow = begin()?;
        flow.ask("hello").map(|_| flow)
    })?;
    let deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
    let before = lab.metrics()?.value(deleted);
    lab.apply("udp-slice.yaml", &objects::slice("udp", "udp", &lab.pod_ips("pod1b")[..1]));
    lab.metric(deleted, |n| n > before)?;
    let reply = eventually(wait_timeout(), || flow.ask("again"))?;
    ensure(reply.server == "pod1b", || format!("the flow is still answered by {}", reply.server))
}

fn check_growth(before: &Metrics, after: &Metrics, series: &str, least: f64) -> Outcome {
    let (before, after) = (before.value(series), after.value(series));
    ensure(after - before >= least, || {
        format!("{series} went from {before} to {after}, which is less than {least} more")
    })
}

/// The page, if it has this status.
fn expect(lab: &AgentLab, path: &str, status: u16) -> Result<Page, String> {
    let page = lab.health(path)?;
    if page.status == status { Ok(page) } else { Err(format!("{path}: {page:?}")) }
}

fn has_headers(page: &Page, content_type: &str) -> Outcome {
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

/// 2,000 clients that never finish their request, with few descriptors for the agent.
fn slow_clients(lab: &mut AgentLab) -> Outcome {
    const CLIENTS: usize = 2000;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard })?;
    let mut limited = std::process::Command::new("prlimit");
    limited.arg("--nofile=512:1024").arg(env!("CARGO_BIN_EXE_portway")).arg("proxy").args(lab.flags());
    limited.arg("--proxy-mode=iptables");
    lab.start_as(limited)?;
    lab.web_works()?;
    let health = std::net::SocketAddr::new(lab.node_ips()[0], 10256);
    let mut open = Vec::new();
    for _ in 0..CLIENTS {
        let client = lab.client().run(|| -> std::io::Result<std::net::TcpStream> {
            let mut client = std::net::TcpStream::connect(health)?;
            std::io::Write::write_all(&mut client, b"GET /healthz HTTP/1.1\r\nHost: slow\r\nX-Slow: ")?;
            Ok(client)
        });
        // The agent may have closed it already.
        open.extend(client.ok());
    }
    let page = eventually(wait_timeout(), || lab.health("/healthz"))?;
    ensure(page.status == 200, || format!("{page:?}"))?;
    // The iptables mode needs descriptors for its tools.
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let log = lab.stop()?;
    ensure(!log.contains("Too many open files"), || log.tail(20))
}
