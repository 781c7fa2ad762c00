//! Tests of `server`.

use super::*;
use crate::config::{ProxyFlags, merge};
use portway_model::Family;
use portway_serve::{DualStack, HealthState, Limits, Server, get, listen};
use std::time::Duration;

fn config(args: &[&str]) -> Arc<Config> {
    use clap::Parser;
    let flags = ProxyFlags::try_parse_from(std::iter::once("kube-proxy").chain(args.iter().copied()));
    Arc::new(merge(&flags.expect("flags"), None).expect("a configuration").0)
}

fn start(router: Router) -> Server {
    let listener = listen("127.0.0.1:0".parse().expect("an address"), DualStack::Yes).expect("a port");
    Server::start(listener, router, Limits::default()).expect("a server")
}

fn pages(config: watch::Receiver<Arc<Config>>) -> MetricsPages {
    let (metrics, rejections) = (Metrics::new("test"), watch::channel(Vec::new()).1);
    MetricsPages { metrics, config, health: health(), rejections, version: "test" }
}

fn health() -> Health {
    Health::new(HealthState::new(Duration::from_secs(60)))
}

#[tokio::test]
async fn health_pages_return_the_state_and_are_counted() {
    let (health, metrics) = (health(), Metrics::new("test"));
    let server = start(healthz_router(health.clone(), metrics.clone()));
    let address = server.address();
    let ask = |path: &'static str| async move { get(address, path).await.expect("an answer") };
    let unhealthy = ask("/healthz").await;
    assert_eq!(unhealthy.status, 503, "no Node has been seen");
    assert_eq!(unhealthy.header("content-type"), Some("application/json"));
    assert_eq!(unhealthy.header("x-content-type-options"), Some("nosniff"));
    assert!(unhealthy.body.contains(r#""nodeEligible":false"#), "{}", unhealthy.body);
    assert_eq!(ask("/livez").await.status, 200);
    health.lock().set_node_eligible(true);
    health.lock().synced(Timestamp::now(), Family::V4);
    assert_eq!(ask("/healthz").await.status, 200);
    assert_eq!(ask("/elsewhere").await.status, 404);
    let text = metrics.encode();
    for line in [
        r#"kubeproxy_proxy_healthz_total{code="200"} 1"#,
        r#"kubeproxy_proxy_healthz_total{code="503"} 1"#,
        r#"kubeproxy_proxy_livez_total{code="200"} 1"#,
    ] {
        assert!(text.contains(line), "{line}");
    }
}

#[tokio::test]
async fn pages_of_kube_proxy_are_there() {
    let (_change, watched) = watch::channel(config(&["--cluster-cidr=10.1.0.0/16", "--proxy-mode=iptables"]));
    let pages = pages(watched);
    let health = pages.health.clone();
    let server = start(metrics_router(pages));
    let address = server.address();
    let ask = |path: &'static str| async move { get(address, path).await.expect("an answer") };
    let flags = ask("/flagz").await;
    assert!(flags.body.starts_with("kube-proxy flagz\n"), "{}", flags.body);
    for line in ["cluster-cidr=10.1.0.0/16", "proxy-mode=iptables", "v=0", "oom-score-adj=-999"] {
        assert!(flags.body.lines().any(|l| l == line), "{line}\n{}", flags.body);
    }
    let healthy = "kubernetes_healthcheck{name=\"proxy\",type=\"healthz\"}";
    assert!(ask("/metrics/slis").await.body.contains(&format!("{healthy} 1")));
    let long_ago =
        Timestamp { instant: Timestamp::now().instant - Duration::from_secs(61), ..Timestamp::now() };
    health.lock().beat(long_ago);
    assert!(ask("/metrics/slis").await.body.contains(&format!("{healthy} 0")));
    let profile = ask("/debug/pprof/profile").await;
    assert_eq!(profile.status, 404);
    assert!(profile.body.contains("set enableProfiling"), "{}", profile.body);
}

#[tokio::test]
async fn status_pages_show_the_configuration_in_force() {
    let (change, watched) = watch::channel(config(&["--cluster-cidr=10.1.0.0/16"]));
    let server = start(metrics_router(pages(watched)));
    let address = server.address();
    let ask = |path: &'static str| async move { get(address, path).await.expect("an answer") };

    let metrics = ask("/metrics").await;
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(metrics.body.contains("\nprocess_resident_memory_bytes "), "{}", metrics.body);
    let healthz = ask("/healthz").await;
    assert_eq!((healthz.status, healthz.body.as_str()), (200, "ok"));
    let mode = ask("/proxyMode").await;
    assert_eq!(mode.body, "nftables");
    assert_eq!(mode.header("content-type"), Some("text/plain; charset=utf-8"));

    let parse = |body: &str| -> serde_json::Value { serde_json::from_str(body).expect("JSON") };
    let before = parse(&ask("/configz").await.body);
    assert_eq!(before[CONFIGZ_KEY]["clusterCIDR"], "10.1.0.0/16");
    assert_eq!(before[CONFIGZ_KEY]["kind"], "KubeProxyConfiguration");
    change.send(config(&["--cluster-cidr=10.2.0.0/16"])).expect("a listener");
    assert_eq!(parse(&ask("/configz").await.body)[CONFIGZ_KEY]["clusterCIDR"], "10.2.0.0/16");
}

#[tokio::test]
async fn the_status_page_shows_health_pending_changes_and_rejections() {
    let (health, metrics) = (health(), Metrics::new("test"));
    let (_rejections, rejections) = watch::channel(vec![RejectedObject {
        kind: "Service".to_owned(),
        namespace: "ns".to_owned(),
        name: "bad".to_owned(),
        field: "spec.ports[0].port".to_owned(),
        reason: "0 is not a port".to_owned(),
    }]);
    let (_config, config) = watch::channel(config(&[]));
    let pages =
        MetricsPages { metrics: metrics.clone(), config, health: health.clone(), rejections, version: "1.2" };
    let server = start(metrics_router(pages));
    let address = server.address();
    let ask = || async move {
        let page = get(address, "/statusz").await.expect("an answer");
        assert_eq!(page.header("content-type"), Some("application/json"));
        serde_json::from_str::<Status>(&page.body).expect("a status")
    };
    let status = ask().await;
    assert_eq!((status.version.as_str(), status.mode.as_str()), ("1.2", "nftables"));
    assert!(
        status.healthy && !status.node_eligible && !status.source.connected && status.families.is_empty()
    );
    assert_eq!(status.rejections[0].name, "bad");

    metrics.service_changes_pending(3);
    metrics.endpoint_changes_pending(4);
    metrics.api_connected(true);
    health.lock().set_node_eligible(true);
    health.lock().synced(Timestamp::now(), Family::V4);
    health.lock().queued(Timestamp::now(), Family::V6);
    let status = ask().await;
    assert_eq!(status.pending, portway_serve::Pending { services: 3, endpoints: 4 });
    assert!(status.node_eligible && status.source.connected);
    assert!(status.families["IPv4"].last_sync.is_some() && status.families["IPv4"].waiting_seconds.is_none());
    assert!(status.families["IPv6"].last_sync.is_none() && status.families["IPv6"].waiting_seconds.is_some());
}

#[tokio::test]
async fn an_address_in_use_names_the_flag_of_its_server() {
    let occupant = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = occupant.local_addr().expect("an address");
    let error = serve_healthz(address, true, health(), Metrics::new("test")).await.expect_err("in use");
    assert!(error.to_string().contains("--healthz-bind-address (healthzBindAddress"), "{error}");
    let error = serve_metrics(address, true, pages(watch::channel(config(&[])).1)).await.expect_err("in use");
    assert!(error.to_string().contains("--metrics-bind-address (metricsBindAddress"), "{error}");
}
