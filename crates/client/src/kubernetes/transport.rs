//! The HTTP stack under the client.
//!
//! In: kube-rs' configuration. Out: kube-rs' client over a stack of our own: without its retries (the watch has its
//! own back-off) and its logging of every failed request as an error (trouble is reported once), and with
//! bounds on buffers, idle connections and silence.

use super::credential::TokenFile;
use super::throttle::{Bucket, Unlimited};
use http::{HeaderValue, Request, header::USER_AGENT};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tower::filter::{AsyncFilterLayer, FilterLayer};
use tower::{BoxError, ServiceBuilder};

const AGENT: &str = concat!("portway/", env!("CARGO_PKG_VERSION"));

/// Bytes of a response that hyper may hold beyond what we have taken.
const READ_BUFFER: usize = 64 * 1024;

/// Builds the client. Fails if certificates, keys or the credential plug-in are of no use.
pub(super) fn client(
    config: kube::Config,
    token_file: Option<TokenFile>,
    qps: f32,
    burst: i32,
) -> kube::Result<kube::Client> {
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(1)
        .http1_max_buf_size(READ_BUFFER)
        .build::<_, Body>(config.rustls_https_connector_with_connector(connector())?);

    let bucket = Arc::new(Mutex::new(Bucket::new(qps, burst, Instant::now())));
    let throttle = AsyncFilterLayer::new(move |request: Request<Body>| {
        let wait = match &mut *bucket.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(bucket) if request.extensions().get::<Unlimited>().is_none() => bucket.take(Instant::now()),
            _ => Duration::ZERO,
        };
        async move {
            tokio::time::sleep(wait).await;
            Ok::<_, BoxError>(request)
        }
    });
    let token_file = Arc::new(token_file);
    let authorize = FilterLayer::new(move |mut request: Request<Body>| {
        if let Some(file) = &*token_file {
            file.authorize(request.headers_mut());
        }
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        Ok::<_, BoxError>(request)
    });

    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(throttle)
        .layer(authorize)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(kube::Client::new(service, config.default_namespace))
}

fn connector() -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(Duration::from_secs(10)));
    // A watch may be silent for a minute. These make a server that vanished without a word an error within
    // another one.
    http.set_keepalive(Some(Duration::from_secs(30)));
    http.set_keepalive_interval(Some(Duration::from_secs(10)));
    http.set_keepalive_retries(Some(3));
    http.set_tcp_user_timeout(Some(Duration::from_secs(60)));
    http
}
