//! The health server, by default on `:10256`, and the metrics server with the status pages, by default on
//! `127.0.0.1:10249`.
//!
//! The pages are plain routers, so that tests need no fixed port.

use crate::config::{Config, print, table};
use crate::metrics::Metrics;
use axum::Router;
use axum::routing::any;
use portway_serve::metrics::CONTENT_TYPE;
use portway_serve::{
    BindError, Health, HealthPage, RejectedObject, ServerName, Status, Timestamp, health_router, page,
    profile_router, serve_at,
};
use serde_json::json;
use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// The key of the configuration on `/configz`.
const CONFIGZ_KEY: &str = "kubeproxy.config.k8s.io";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

const HEALTHZ: ServerName =
    ServerName { page: "/healthz", flag: "--healthz-bind-address", field: "healthzBindAddress" };
const METRICS: ServerName =
    ServerName { page: "/metrics", flag: "--metrics-bind-address", field: "metricsBindAddress" };

/// The sources of the metrics server's pages.
#[derive(Clone, Debug)]
pub struct MetricsPages {
    /// For `/metrics` and `/statusz`.
    pub metrics: Metrics,
    /// For `/configz`, `/proxyMode` and `/statusz`; the configuration may change while the proxy runs.
    pub config: watch::Receiver<Arc<Config>>,
    /// For `/statusz`.
    pub health: Health,
    /// For `/statusz`: the objects that are rejected.
    pub rejections: watch::Receiver<Vec<RejectedObject>>,
    /// For `/statusz`.
    pub version: &'static str,
}

impl MetricsPages {
    fn status(&self) -> Status {
        let status = Status {
            version: self.version.to_owned(),
            mode: self.config.borrow().mode.as_str().to_owned(),
            pending: self.metrics.pending(),
            rejections: self.rejections.borrow().clone(),
            source: self.metrics.source(),
            ..Status::default()
        };
        status.with_health(&self.health.lock(), Timestamp::now())
    }
}

/// Serves `/healthz` and `/livez`; ends only if the address cannot be bound and `hard_fail` makes that fatal.
pub async fn serve_healthz(
    address: SocketAddr,
    hard_fail: bool,
    health: Health,
    metrics: Metrics,
) -> Result<Infallible, BindError> {
    serve_at(HEALTHZ, address, hard_fail, healthz_router(health, metrics)).await
}

/// Serves the pages of the metrics server; ends as [`serve_healthz`] does.
pub async fn serve_metrics(
    address: SocketAddr,
    hard_fail: bool,
    pages: MetricsPages,
) -> Result<Infallible, BindError> {
    serve_at(METRICS, address, hard_fail, metrics_router(pages)).await
}

/// The pages of the health server.
pub fn healthz_router(health: Health, metrics: Metrics) -> Router {
    health_router(health, move |page, healthy| match page {
        HealthPage::Healthz => metrics.healthz(healthy),
        HealthPage::Livez => metrics.livez(healthy),
    })
}

/// The pages of the metrics server: `/metrics`, `/metrics/slis`, `/healthz`, `/proxyMode`, `/configz`, `/flagz`,
/// `/statusz` and `/debug/pprof`.
pub fn metrics_router(pages: MetricsPages) -> Router {
    let MetricsPages { metrics, config, .. } = pages.clone();
    let (mode_config, flags_config, profile_config) = (config.clone(), config.clone(), config.clone());
    let health = pages.health.clone();
    let mode = move || ready(page(TEXT, mode_config.borrow().mode.as_str().to_owned()));
    let configz = move || {
        let config = json!({ CONFIGZ_KEY: print::to_json(&config.borrow()) });
        ready(page(JSON, config.to_string()))
    };
    let flagz = move || ready(page(TEXT, flagz(&flags_config.borrow())));
    let slis = move || {
        let healthy = health.lock().is_healthy(Timestamp::now());
        ready(page(CONTENT_TYPE, slis(healthy)))
    };
    // Strings, numbers, booleans and maps with string keys always serialize.
    let statusz = move || ready(page(JSON, serde_json::to_string(&pages.status()).unwrap_or_default()));
    Router::new()
        .route("/metrics", any(move || ready(page(CONTENT_TYPE, metrics.encode()))))
        .route("/healthz", any(|| ready(page(TEXT, "ok".to_owned()))))
        .route("/proxyMode", any(mode))
        .route("/configz", any(configz))
        .route("/statusz", any(statusz))
        .route("/flagz", any(flagz))
        .route("/metrics/slis", any(slis))
        .merge(profile_router(move || profile_config.borrow().profiling, "enableProfiling"))
}

/// The flags and their values, in kube-proxy's format.
fn flagz(config: &Config) -> String {
    let mut lines: Vec<String> = table()
        .flag_values(config)
        .into_iter()
        .map(|(flag, value)| format!("{}={value}", flag.trim_start_matches('-')))
        .collect();
    lines.sort();
    format!("kube-proxy flagz\n\n{}\n", lines.join("\n"))
}

/// The service level indicators: whether the health check succeeds.
fn slis(healthy: bool) -> String {
    let name = "kubernetes_healthcheck";
    let value = u8::from(healthy);
    format!(
        "# HELP {name} Whether a health check succeeds.\n# TYPE {name} gauge\n{name}{{name=\"proxy\",type=\"healthz\"}} {value}\n"
    )
}

#[cfg(test)]
mod tests;
