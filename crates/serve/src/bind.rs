//! Serves a router at a configured address. If the address cannot be bound, that is retried every five seconds, as in
//! kube-proxy, or is fatal; the error names the address and the flag that sets it.

use crate::listen::{DualStack, listen};
use crate::server::{Limits, Server};
use axum::Router;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The time between attempts to bind an address.
const RETRY: Duration = Duration::from_secs(5);

/// The names of a server in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// Its main page.
    pub page: &'static str,
    /// The flag that sets its address.
    pub flag: &'static str,
    /// The field of the configuration file that sets its address.
    pub field: &'static str,
}

/// A server's address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} cannot be served on {address}: {}; choose another address with {} ({} in the configuration file)",
    server.page, reason(source), server.flag, server.field
)]
pub struct BindError {
    /// The server.
    pub server: ServerName,
    /// The address.
    pub address: SocketAddr,
    /// The kernel's error.
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

/// Serves the router; ends only if the address cannot be bound and `hard_fail` makes that fatal.
pub async fn serve_at(
    server: ServerName,
    address: SocketAddr,
    hard_fail: bool,
    router: Router,
) -> Result<Infallible, BindError> {
    let mut reported = false;
    loop {
        let started = listen(address, DualStack::Yes)
            .and_then(|listener| Server::start(listener, router.clone(), Limits::default()));
        match started {
            Ok(mut running) => {
                tracing::info!(%address, "serving {}", server.page);
                reported = false;
                running.ended().await;
            }
            Err(source) => {
                let error = BindError { server, address, source };
                if hard_fail {
                    return Err(error);
                }
                // The error is logged once, not on every retry.
                if !std::mem::replace(&mut reported, true) {
                    tracing::error!("{error}; trying again every {RETRY:?}");
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::get_without_timeout;
    use axum::routing::any;

    const NAME: ServerName = ServerName { page: "/x", flag: "--x-bind-address", field: "xBindAddress" };

    fn router() -> Router {
        Router::new().route("/x", any(|| std::future::ready("here")))
    }

    #[tokio::test]
    async fn an_address_in_use_can_be_fatal_and_names_its_flag() {
        let occupant = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = occupant.local_addr().expect("an address");
        let error = serve_at(NAME, address, true, router()).await.expect_err("in use");
        assert_eq!(
            error.to_string(),
            format!(
                "/x cannot be served on {address}: the address is in use; choose another address with \
                 --x-bind-address (xBindAddress in the configuration file)"
            )
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_in_use_is_retried_until_it_is_free() {
        let occupant = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = occupant.local_addr().expect("an address");
        let server = tokio::spawn(serve_at(NAME, address, false, router()));
        // The clock is paused, and advances when no task can run, so this takes no time.
        tokio::time::sleep(RETRY * 3).await;
        assert!(!server.is_finished(), "gave up");
        drop(occupant);
        tokio::time::sleep(RETRY).await;
        assert_eq!(get_without_timeout(address, "/x").await.expect("an answer").status, 200);
        server.abort();
    }
}
