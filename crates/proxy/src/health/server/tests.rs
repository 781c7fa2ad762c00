//! Tests of `server`.

use super::super::probe::{free_port, get};
use super::super::serving::Serving;
use super::*;
use crate::config::{ProxyFlags, merge};
use crate::health::HealthState;
use portway_model::{Family, NodeState};

fn config(args: &[&str]) -> Arc<Config> {
    use clap::Parser;
    let flags = ProxyFlags::try_parse_from(std::iter::once("kube-proxy").chain(args.iter().copied()));
    Arc::new(merge(&flags.expect("flags"), None).expect("a configuration").0)
}

fn start(router: Router) -> Serving {
    let any_port = "127.0.0.1:0".parse().expect("an address");
    Serving::start(listen(any_port, DualStack::Yes).expect("a port"), router).expect("a server")
}

fn health() -> Health {
    Health::new(HealthState::new(Duration::from_secs(60)))
}

#[tokio::test]
async fn health_pages_tell_and_count() {
    let (health, metrics) = (health(), Metrics::new("test"));
    let server = start(healthz_router(health.clone(), metrics.clone()));
    let address = server.address();
    let ask = |path: &'static str| async move { get(address, path).await.expect("an answer") };
    let sick = ask("/healthz").await;
    assert_eq!(sick.status, 503, "no Node has been seen");
    assert_eq!(sick.header("content-type"), Some("application/json"));
    assert_eq!(sick.header("x-content-type-options"), Some("nosniff"));
    assert!(sick.body.contains(r#""nodeEligible":false"#), "{}", sick.body);
    assert_eq!(ask("/livez").await.status, 200);
    health.lock().node(NodeState::Present);
    health.lock().synced(Moment::now(), Family::V4);
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
async fn status_pages_show_what_runs_now() {
    let (change, watched) = watch::channel(config(&["--cluster-cidr=10.1.0.0/16"]));
    let server = start(metrics_router(StatusPages { metrics: Metrics::new("test"), config: watched }));
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

    let shown = |body: &str| -> serde_json::Value { serde_json::from_str(body).expect("JSON") };
    let before = shown(&ask("/configz").await.body);
    assert_eq!(before[CONFIGZ_KEY]["clusterCIDR"], "10.1.0.0/16");
    assert_eq!(before[CONFIGZ_KEY]["kind"], "KubeProxyConfiguration");
    change.send(config(&["--cluster-cidr=10.2.0.0/16"])).expect("a listener");
    assert_eq!(shown(&ask("/configz").await.body)[CONFIGZ_KEY]["clusterCIDR"], "10.2.0.0/16");
}

#[tokio::test]
async fn an_address_in_use_can_be_fatal_and_names_its_flag() {
    let squatter = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = squatter.local_addr().expect("an address");
    let error = serve_healthz(address, true, health(), Metrics::new("test")).await.expect_err("in use");
    assert_eq!(
        error.to_string(),
        format!(
            "/healthz cannot be served on {address}: the address is in use; choose another address with \
             --healthz-bind-address (healthzBindAddress in the configuration file)"
        )
    );
    let pages = StatusPages { metrics: Metrics::new("test"), config: watch::channel(config(&[])).1 };
    let error = serve_metrics(address, true, pages).await.expect_err("in use");
    assert!(error.to_string().contains("--metrics-bind-address (metricsBindAddress"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_address_in_use_is_tried_again_until_it_is_free() {
    let squatter = std::net::TcpListener::bind(("127.0.0.1", free_port())).expect("a port");
    let address = squatter.local_addr().expect("an address");
    let server = tokio::spawn(serve_healthz(address, false, health(), Metrics::new("test")));
    // The clock stands still and leaps ahead whenever nothing else can run, so this takes no time.
    tokio::time::sleep(RETRY * 3).await;
    assert!(!server.is_finished(), "gave up");
    drop(squatter);
    tokio::time::sleep(RETRY).await;
    assert_eq!(get(address, "/livez").await.expect("an answer").status, 200);
    server.abort();
}
