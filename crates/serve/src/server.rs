//! An HTTP server with limits, which can be closed so that its port is free when `close` returns.
//!
//! A client that does not send its request in time is cut off, and so is one whose connection is very old. When there
//! are as many connections as the server may have, the oldest one is closed for a new one: requests are answered at
//! once, so a connection that is still there is one that waits, and clients that open many of them and say nothing
//! cannot keep a probe from its answer.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// How long connections may take to end when they are told to.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait before accepting again, when the system has no file descriptor to give.
const PAUSE: Duration = Duration::from_millis(100);

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a client may take to send the headers of a request, and how long a connection may be idle.
    pub headers: Duration,
    /// How long a connection may last; then it ends with the request it is at.
    pub lifetime: Duration,
    /// How many connections there may be.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { headers: Duration::from_secs(10), lifetime: Duration::from_secs(3600), connections: 256 }
    }
}

/// A server that runs in the background until it is closed or dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Its end is the signal to stop.
    stop: watch::Sender<()>,
    gone: oneshot::Receiver<Infallible>,
}

impl Server {
    /// Starts to answer. Must be called within a tokio runtime.
    pub fn start(listener: TcpListener, router: Router, limits: Limits) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(());
        let (announce, gone) = oneshot::channel();
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            accept(&listener, router, limits, stopped, &mut connections).await;
            drop(listener);
            drop(announce);
            // Those that do not end by themselves are aborted with the set.
            _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
        });
        Ok(Server { address, stop, gone })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server ends, which it does only if its runtime does.
    pub(crate) async fn ended(&mut self) {
        _ = (&mut self.gone).await;
    }

    /// Stops to listen, and has open connections end.
    pub async fn close(self) {
        drop(self.stop);
        _ = self.gone.await;
    }
}

/// Accepts connections until told to stop.
async fn accept(
    listener: &TcpListener,
    router: Router,
    limits: Limits,
    mut stopped: watch::Receiver<()>,
    connections: &mut JoinSet<()>,
) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    let stop = stopped.clone();
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => return,
            Some(_) = connections.join_next() => open.retain(|connection| !connection.is_finished()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if open.len() >= limits.connections
                        && let Some(oldest) = open.pop_front()
                    {
                        oldest.abort();
                    }
                    let answer = answer(stream, router.clone(), limits, stop.clone());
                    open.push_back(connections.spawn(answer));
                }
                Err(error) if of_one_client(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections; trying again");
                    sleep(PAUSE).await;
                }
            },
        }
    }
}

/// Whether an error is the end of one connection that had not been accepted yet.
fn of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers the requests of one connection.
async fn answer(stream: TcpStream, router: Router, limits: Limits, mut stopped: watch::Receiver<()>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.headers);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    tokio::select! {
        // An error is a client that went away or was too slow.
        _ = connection.as_mut() => return,
        _ = stopped.changed() => {}
        () = sleep(limits.lifetime) => {}
    }
    connection.as_mut().graceful_shutdown();
    _ = timeout(GRACE, connection).await;
}

#[cfg(test)]
mod tests;
