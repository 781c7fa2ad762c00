//! The two servers of a node: health on `:10256`, metrics and status pages on `127.0.0.1:10249`.
//!
//! An address in use is retried every five seconds, as upstream does, or with `bindAddressHardFail` is the end; the
//! message says which address and which flag. The pages are plain routers, so tests need no fixed port.

use super::listen::{DualStack, listen};
use super::node::{Answer, Health, Moment};
use crate::config::{Config, print};
use crate::metrics::{CONTENT_TYPE, Metrics};
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use serde_json::json;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long to wait for an address in use to be free.
const RETRY: Duration = Duration::from_secs(5);
/// The key of our configuration on `/configz`.
const CONFIGZ_KEY: &str = "kubeproxy.config.k8s.io";

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// `/healthz` and `/livez` for the cluster.
    Healthz,
    /// `/metrics` and the status pages for the administrator.
    Metrics,
}

impl Server {
    fn flag(self) -> &'static str {
        match self {
            Server::Healthz => "--healthz-bind-address",
            Server::Metrics => "--metrics-bind-address",
        }
    }

    fn field(self) -> &'static str {
        match self {
            Server::Healthz => "healthzBindAddress",
            Server::Metrics => "metricsBindAddress",
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Server::Healthz => "/healthz",
            Server::Metrics => "/metrics",
        })
    }
}

/// A server's address cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "{server} cannot be served on {address}: {}; choose another address with {} ({} in the configuration file)",
    reason(source), server.flag(), server.field()
)]
pub struct BindError {
    /// Which server.
    pub server: Server,
    /// The address.
    pub address: SocketAddr,
    /// What the kernel says.
    pub source: io::Error,
}

fn reason(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => "the address is in use".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "not permitted".to_owned(),
        _ => source.to_string(),
    }
}

/// What the metrics server shows.
#[derive(Clone, Debug)]
pub struct StatusPages {
    /// For `/metrics`.
    pub metrics: Metrics,
    /// For `/configz` and `/proxyMode`; the configuration may change while the proxy runs.
    pub config: watch::Receiver<Arc<Config>>,
}

/// Serves `/healthz` and `/livez` for ever; ends only if the address is in use and that is to be fatal.
pub async fn serve_healthz(
    address: SocketAddr,
    hard_fail: bool,
    health: Health,
    metrics: Metrics,
) -> Result<Infallible, BindError> {
    serve(Server::Healthz, address, hard_fail, healthz_router(health, metrics)).await
}

/// Serves `/metrics`, `/healthz`, `/proxyMode` and `/configz` for ever; ends as [`serve_healthz`] does.
pub async fn serve_metrics(
    address: SocketAddr,
    hard_fail: bool,
    pages: StatusPages,
) -> Result<Infallible, BindError> {
    serve(Server::Metrics, address, hard_fail, metrics_router(pages)).await
}

async fn serve(
    server: Server,
    address: SocketAddr,
    hard_fail: bool,
    router: Router,
) -> Result<Infallible, BindError> {
    let mut said = false;
    loop {
        match listen(address, DualStack::Yes) {
            Ok(listener) => {
                tracing::info!(%address, "serving {server}");
                said = false;
                if let Err(error) = axum::serve(listener, router.clone()).await {
                    tracing::warn!(%address, %error, "{server} is no longer served");
                }
            }
            Err(source) => {
                let error = BindError { server, address, source };
                if hard_fail {
                    return Err(error);
                }
                // Once is enough for the log; the retries are not news.
                if !std::mem::replace(&mut said, true) {
                    tracing::error!("{error}; trying again every {RETRY:?}");
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The pages of the health server.
pub fn healthz_router(health: Health, metrics: Metrics) -> Router {
    let (live, live_metrics) = (health.clone(), metrics.clone());
    let healthz = move || {
        let answer = health.lock().healthz(Moment::now());
        metrics.healthz(answer.is_healthy());
        std::future::ready(to_response(answer))
    };
    let livez = move || {
        let answer = live.lock().livez(Moment::now());
        live_metrics.livez(answer.is_healthy());
        std::future::ready(to_response(answer))
    };
    Router::new().route("/healthz", any(healthz)).route("/livez", any(livez))
}

fn to_response(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    (status, page("application/json", answer.body)).into_response()
}

/// The pages of the metrics server.
pub fn metrics_router(pages: StatusPages) -> Router {
    let StatusPages { metrics, config } = pages;
    let mode_of = config.clone();
    Router::new()
        .route("/metrics", any(move || std::future::ready(page(CONTENT_TYPE, metrics.encode()))))
        .route("/healthz", any(|| std::future::ready(page("text/plain; charset=utf-8", "ok".to_owned()))))
        .route(
            "/proxyMode",
            any(move || {
                let mode = mode_of.borrow().mode.as_str().to_owned();
                std::future::ready(page("text/plain; charset=utf-8", mode))
            }),
        )
        .route(
            "/configz",
            any(move || {
                let config = json!({ CONFIGZ_KEY: print::to_json(&config.borrow()) });
                std::future::ready(page("application/json", config.to_string()))
            }),
        )
}

fn page(content_type: &'static str, body: String) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, content_type), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], body)
}

#[cfg(test)]
mod tests;
