//! The HTTP stack under the client: one request in, the head of its response out.
//!
//! Buffers, idle connections and silence have bounds. Nothing is sent again: the watch has its own back-off, and trouble is
//! reported where it is known what was asked.

use super::credential::{Authorized, Credential};
use super::dial::{Connector, connector};
use super::proxy::Proxy;
use super::throttle::{Bucket, Unlimited};
use super::tls::{self, Identity, Trust};
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::ServerName;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const AGENT: &str = concat!("portway/", env!("CARGO_PKG_VERSION"));

/// Bytes of a response that hyper may hold before they are decoded.
const READ_BUFFER: usize = 64 * 1024;

type Http = legacy::Client<Connector, Full<Bytes>>;

/// The server that requests go to, and the credential that they carry.
pub(super) struct Destination {
    /// Scheme, host and port, and the path before every request's own.
    pub(super) server: Uri,
    pub(super) trust: Trust,
    /// The name in the server's certificate, if it is not the host's.
    pub(super) server_name: Option<ServerName<'static>>,
    pub(super) identity: Arc<Identity>,
    pub(super) credential: Credential,
    /// Headers of every request, for impersonation.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) proxy: Option<Proxy>,
}

/// Sends requests.
pub(super) struct Transport {
    server: Uri,
    credential: Credential,
    headers: Vec<(HeaderName, HeaderValue)>,
    identity: Arc<Identity>,
    bucket: Mutex<Option<Bucket>>,
    server_name: Option<ServerName<'static>>,
    proxy: Option<Proxy>,
    connections: Mutex<Connections>,
}

/// How connections are opened, and those that are open.
struct Connections {
    trust: Trust,
    connector: Connector,
    http: Http,
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// There is no credential to send it with.
    #[error("{0}")]
    Credential(String),
    /// The server was not reached, or broke off.
    #[error(transparent)]
    Http(#[from] legacy::Error),
    /// The server did not answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl Transport {
    /// Fails if the authorities' certificates are of no use.
    pub(super) fn new(to: Destination, qps: f32, burst: i32) -> Result<Transport, String> {
        let tls = tls::config(&to.trust, Arc::clone(&to.identity))?;
        let connector = connector(tls, to.server_name.as_ref(), to.proxy.as_ref());
        let connections = Connections { trust: to.trust, http: http(connector.clone()), connector };
        Ok(Transport {
            server: to.server,
            credential: to.credential,
            headers: to.headers,
            identity: to.identity,
            bucket: Mutex::new(Bucket::new(qps, burst, Instant::now())),
            server_name: to.server_name,
            proxy: to.proxy,
            connections: Mutex::new(connections),
        })
    }

    /// Sends a request, whose URI is a path and a query, when the rate limit lets it, and waits so long for the head of the
    /// response. The time that a credential plugin takes is not counted.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        patience: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        *request.uri_mut() = join(&self.server, request.uri());
        let wait = match &mut *self.bucket.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(bucket) if request.extensions().get::<Unlimited>().is_none() => bucket.take(Instant::now()),
            _ => Duration::ZERO,
        };
        tokio::time::sleep(wait).await;
        let authorized = self.complete(request.headers_mut()).await.map_err(SendError::Credential)?;
        if authorized.renewed | self.identity.refresh() {
            self.forget_connections();
        }
        self.refresh_trust();
        let http = self.connections().http.clone();
        let response = tokio::time::timeout(patience, http.request(request)).await;
        let response = response.map_err(|_| SendError::TimedOut(patience))??;
        if response.status() == StatusCode::UNAUTHORIZED {
            // Perhaps for a certificate that has expired since the connection was opened.
            self.forget_connections();
            self.credential.refused(authorized).await;
        }
        Ok(response)
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request opens a connection of its own, with the certificate that there is then. Connections in use end by
    /// themselves.
    fn forget_connections(&self) {
        let mut connections = self.connections();
        connections.http = http(connections.connector.clone());
    }

    /// Trusts the authorities that are in their file now. A file that cannot be used leaves the last ones trusted, and
    /// connections in use end by themselves.
    fn refresh_trust(&self) {
        let mut connections = self.connections();
        let Some(trust) = connections.trust.changed() else { return };
        match tls::config(&trust, Arc::clone(&self.identity)) {
            Ok(tls) => {
                tracing::debug!("certificate authorities of the API server read anew");
                let connector = connector(tls, self.server_name.as_ref(), self.proxy.as_ref());
                *connections = Connections { trust, http: http(connector.clone()), connector };
            }
            Err(error) => {
                tracing::debug!(error, "certificate authorities not read anew; the last ones stay trusted");
            }
        }
    }

    async fn complete(&self, headers: &mut HeaderMap) -> Result<Authorized, String> {
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        for (name, value) in &self.headers {
            headers.append(name, value.clone());
        }
        self.credential.authorize(headers).await
    }
}

/// A server may be behind a path, as behind some gateways.
fn join(server: &Uri, path: &Uri) -> Uri {
    let mut parts = server.clone().into_parts();
    let before = server.path().trim_end_matches('/');
    let after = path.path_and_query().map_or("/", PathAndQuery::as_str);
    parts.path_and_query = format!("{before}{after}").parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| path.clone())
}

fn http(connector: Connector) -> Http {
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(1)
        .http1_max_buf_size(READ_BUFFER)
        .build(connector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_before_the_api_is_kept() {
        let joined = |server: &str| join(&server.parse().unwrap(), &"/api/v1/nodes?watch=1".parse().unwrap());
        assert_eq!(joined("https://h:6443"), "https://h:6443/api/v1/nodes?watch=1");
        assert_eq!(joined("https://h/k8s/c-1/"), "https://h/k8s/c-1/api/v1/nodes?watch=1");
    }
}
