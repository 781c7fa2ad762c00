//! The HTTP client: sends a request and returns the head of its response.
//!
//! Buffers, idle connections and the wait for a response are bounded. Requests are not retried here: the callers have
//! their own back-off, and report failures with the context of the request.

use super::credential::{Authorized, Credential};
use super::dial::{Connector, connector};
use super::proxy::Proxy;
use super::statistics::RequestStatistics;
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

const USER_AGENT_VALUE: &str = concat!("portway/", env!("CARGO_PKG_VERSION"));

/// Maximum size of hyper's read buffer.
const READ_BUFFER: usize = 64 * 1024;

type Http = legacy::Client<Connector, Full<Bytes>>;

/// The server to which requests are sent, and how they are authenticated.
pub(super) struct Destination {
    /// Scheme, host and port, and a path prefix for all requests.
    pub(super) server: Uri,
    pub(super) trust: Trust,
    /// The name to expect in the server's certificate, if it differs from the host.
    pub(super) server_name: Option<ServerName<'static>>,
    pub(super) identity: Arc<Identity>,
    pub(super) credential: Credential,
    /// Additional headers of every request, for impersonation.
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
    pub(super) statistics: Arc<RequestStatistics>,
}

/// How connections are opened, and the pool of open connections.
struct Connections {
    trust: Trust,
    connector: Connector,
    http: Http,
}

/// Why there is no response to a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// There is no credential, so the request was not sent.
    #[error("{0}")]
    Credential(String),
    /// The connection failed or broke.
    #[error(transparent)]
    Http(#[from] legacy::Error),
    /// The server did not respond in time.
    #[error("no response within {0:?}")]
    TimedOut(Duration),
}

impl Transport {
    /// Fails if the certificates of the authorities cannot be used.
    pub(super) fn new(to: Destination, qps: f32, burst: i32) -> Result<Transport, String> {
        let tls = tls::config(&to.trust, Arc::clone(&to.identity))?;
        let connector = connector(tls, to.server_name.as_ref(), to.proxy.as_ref());
        let connections = Connections { trust: to.trust, http: http(connector.clone()), connector };
        let host = to.server.authority().map_or_else(String::new, ToString::to_string);
        Ok(Transport {
            statistics: Arc::new(RequestStatistics::new(&host)),
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

    /// Sends a request, whose URI is a path and a query, as soon as the rate limit permits it, and waits for the head
    /// of the response. `timeout` does not include the rate limit's wait and the time that a credential plugin takes.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        *request.uri_mut() = join(&self.server, request.uri());
        let wait = match &mut *self.bucket.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(bucket) if request.extensions().get::<Unlimited>().is_none() => bucket.take(Instant::now()),
            _ => Duration::ZERO,
        };
        let method = request.method().clone();
        self.statistics.waited(&method, wait);
        let uri = request.uri().to_string();
        tokio::time::sleep(wait).await;
        let authorized = self.add_headers(request.headers_mut()).await.map_err(SendError::Credential)?;
        if authorized.renewed | self.identity.refresh() {
            self.drop_idle_connections();
        }
        self.refresh_trust();
        let http = self.connections().http.clone();
        let sent = Instant::now();
        let response = tokio::time::timeout(timeout, http.request(request)).await;
        let status = response.as_ref().ok().and_then(|r| r.as_ref().ok()).map(|r| r.status().as_u16());
        self.statistics.answered(&method, status, sent.elapsed());
        tracing::trace!(%method, uri, status, took = ?sent.elapsed(), "request");
        let response = response.map_err(|_| SendError::TimedOut(timeout))??;
        if response.status() == StatusCode::UNAUTHORIZED {
            // The client certificate may have expired since the connection was opened.
            self.drop_idle_connections();
            self.credential.refused(authorized).await;
        }
        Ok(response)
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next request open a new connection, with the current client certificate. Connections in use are not
    /// closed.
    fn drop_idle_connections(&self) {
        let mut connections = self.connections();
        connections.http = http(connections.connector.clone());
    }

    /// Reads the certificate authorities again, if they are in a file. If the file cannot be used, the previous ones
    /// stay trusted. Connections in use are not closed.
    fn refresh_trust(&self) {
        let mut connections = self.connections();
        let Some(trust) = connections.trust.changed() else { return };
        match tls::config(&trust, Arc::clone(&self.identity)) {
            Ok(tls) => {
                tracing::debug!("reloaded the certificate authorities of the API server");
                let connector = connector(tls, self.server_name.as_ref(), self.proxy.as_ref());
                *connections = Connections { trust, http: http(connector.clone()), connector };
            }
            Err(error) => {
                tracing::debug!(
                    error,
                    "cannot use the changed certificate authorities; using the previous ones"
                );
            }
        }
    }

    async fn add_headers(&self, headers: &mut HeaderMap) -> Result<Authorized, String> {
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        for (name, value) in &self.headers {
            headers.append(name, value.clone());
        }
        self.credential.authorize(headers).await
    }
}

/// Joins the server's address and the path of a request. The address may have a path itself, as with some gateways.
fn join(server: &Uri, path: &Uri) -> Uri {
    let mut parts = server.clone().into_parts();
    let before = server.path().trim_end_matches('/');
    let after = path.path_and_query().map_or("/", PathAndQuery::as_str);
    parts.path_and_query = format!("{before}{after}").parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| path.clone())
}

/// Idle connections that are kept: at least as many as controllers by default send requests at a time. A process that
/// sends one request after the other has one.
const IDLE_CONNECTIONS: usize = 32;

fn http(connector: Connector) -> Http {
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .http1_max_buf_size(READ_BUFFER)
        .build(connector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_the_server_is_kept_as_a_prefix() {
        let joined = |server: &str| join(&server.parse().unwrap(), &"/api/v1/nodes?watch=1".parse().unwrap());
        assert_eq!(joined("https://h:6443"), "https://h:6443/api/v1/nodes?watch=1");
        assert_eq!(joined("https://h/k8s/c-1/"), "https://h/k8s/c-1/api/v1/nodes?watch=1");
    }
}
