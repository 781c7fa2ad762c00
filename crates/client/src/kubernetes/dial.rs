//! Opening connections: straight to the API server, or through a proxy's tunnel.

use super::proxy::Proxy;
use http::Uri;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

/// Connections with TLS, if the server's scheme is https.
pub(super) type Connector = HttpsConnector<Dialer>;

/// Opens connections without TLS to the server.
#[derive(Clone)]
pub(super) enum Dialer {
    Direct(HttpConnector),
    /// With TLS to the proxy, if its scheme is https.
    Proxy(Box<Tunnel<HttpsConnector<HttpConnector>>>),
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
        }
    }
}

/// `server_name` is the name in the server's certificate, if it is not the host's.
pub(super) fn connector(
    tls: ClientConfig,
    server_name: Option<&ServerName<'static>>,
    proxy: Option<&Proxy>,
) -> Connector {
    let dialer = match proxy {
        None => Dialer::Direct(tcp()),
        Some(proxy) => {
            let to_proxy = with_tls(tls.clone(), proxy.server_name(), tcp());
            let tunnel = Tunnel::new(proxy.uri.clone(), to_proxy);
            Dialer::Proxy(Box::new(match &proxy.authorization {
                Some(authorization) => tunnel.with_auth(authorization.clone()),
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
    // A watch may be silent for a minute. These make a server that vanished without a word an error within another
    // one.
    http.set_keepalive(Some(Duration::from_secs(30)));
    http.set_keepalive_interval(Some(Duration::from_secs(10)));
    http.set_keepalive_retries(Some(3));
    http.set_tcp_user_timeout(Some(Duration::from_secs(60)));
    http
}
