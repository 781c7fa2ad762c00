//! Opens connections: directly to the API server, or through a proxy's tunnel.

use super::credential::basic;
use super::proxy::Proxy;
use http::Uri;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

/// Opens connections, with TLS if the server's scheme is https.
pub(super) type Connector = HttpsConnector<Dialer>;

/// Opens the TCP connection or tunnel to the server, below TLS.
#[derive(Clone)]
pub(super) enum Dialer {
    Direct(HttpConnector),
    /// Through an HTTP proxy, with TLS to the proxy if its scheme is https.
    Proxy(Box<Tunnel<HttpsConnector<HttpConnector>>>),
    /// Through a SOCKS5 proxy.
    Socks(Box<SocksV5<HttpConnector>>),
}

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type BoxError = Box<dyn Error + Send + Sync>;

impl Service<Uri> for Dialer {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Dialer::Direct(connector) => connector.poll_ready(context).map_err(Into::into),
            Dialer::Proxy(tunnel) => tunnel.poll_ready(context).map_err(Into::into),
            Dialer::Socks(tunnel) => tunnel.poll_ready(context).map_err(Into::into),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match self {
            Dialer::Direct(connector) => {
                let connecting = connector.call(server);
                Box::pin(async { Ok(MaybeHttpsStream::Http(connecting.await?)) })
            }
            Dialer::Proxy(tunnel) => {
                let connecting = tunnel.call(server);
                Box::pin(async { Ok(connecting.await?) })
            }
            Dialer::Socks(tunnel) => {
                let connecting = tunnel.call(server);
                Box::pin(async { Ok(MaybeHttpsStream::Http(connecting.await?)) })
            }
        }
    }
}

/// `server_name` is the name to expect in the server's certificate, if it differs from the host.
pub(super) fn connector(
    tls: ClientConfig,
    server_name: Option<&ServerName<'static>>,
    proxy: Option<&Proxy>,
) -> Connector {
    let dialer = match proxy {
        None => Dialer::Direct(tcp()),
        Some(proxy) if proxy.is_socks() => {
            let tunnel = SocksV5::new(proxy.uri.clone(), tcp());
            Dialer::Socks(Box::new(match proxy.credential.clone() {
                Some((user, password)) => tunnel.with_auth(user, password),
                None => tunnel,
            }))
        }
        Some(proxy) => {
            let to_proxy = with_tls(tls.clone(), proxy.server_name(), tcp());
            let tunnel = Tunnel::new(proxy.uri.clone(), to_proxy);
            let authorization = proxy.credential.as_ref().and_then(|(u, p)| basic(u, p).ok());
            Dialer::Proxy(Box::new(match authorization {
                Some(authorization) => tunnel.with_auth(authorization),
                None => tunnel,
            }))
        }
    };
    with_tls(tls, server_name.cloned(), dialer)
}

fn with_tls<T>(tls: ClientConfig, server_name: Option<ServerName<'static>>, inner: T) -> HttpsConnector<T> {
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let builder = match server_name {
        Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name)),
        None => builder,
    };
    builder.enable_http1().wrap_connector(inner)
}

fn tcp() -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(Duration::from_secs(10)));
    // A watch may have no events for a minute. With these settings a server that disappeared without closing the
    // connection is an error within another half minute: sooner than a Node whose Lease is not seen counts as silent.
    http.set_keepalive(Some(Duration::from_secs(15)));
    http.set_keepalive_interval(Some(Duration::from_secs(5)));
    http.set_keepalive_retries(Some(3));
    http.set_tcp_user_timeout(Some(Duration::from_secs(30)));
    http
}
