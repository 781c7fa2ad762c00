//! An HTTP server with limits. When [`Server::close`] returns, its port is free.
//!
//! A client that does not send its request in time is disconnected, and so is one whose connection is very old. If the
//! maximum number of connections is reached, a new connection closes the oldest one: most requests are answered at once, so
//! the oldest connection is idle (or that of a CPU profile, which then ends), and clients that open many idle connections cannot block a health probe. A server uses
//! at most an eighth of the process's file descriptors, and all that are started by [`Server::start_shared`] together a
//! quarter, so that sockets and tools always find one.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// How long connections may take to end after the server was closed or their lifetime is over.
const GRACE: Duration = Duration::from_secs(5);
/// The pause before accepting again after an error, for example if there is no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections that the servers of [`Server::start_shared`] may have together.
static SHARED: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(descriptors() / 4)));

/// The number of file descriptors that the process may have.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a client may take to send the headers of a request, and how long a connection may be idle.
    pub headers: Duration,
    /// How long a connection may last; then it ends after its current request.
    pub lifetime: Duration,
    /// The maximum number of connections.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let connections = (descriptors() / 8).clamp(1, 256);
        Limits { headers: Duration::from_secs(10), lifetime: Duration::from_secs(3600), connections }
    }
}

/// A server that runs in the background until it is closed or dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Dropped to stop the server.
    stop: watch::Sender<()>,
    /// Closed when the listener is closed.
    closed: oneshot::Receiver<Infallible>,
}

impl Server {
    /// Starts the server. Must be called within a tokio runtime.
    pub fn start(listener: TcpListener, router: Router, limits: Limits) -> io::Result<Self> {
        let own = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        Server::start_with(listener, router, limits, own)
    }

    /// Starts a server of which there may be many.
    pub fn start_shared(listener: TcpListener, router: Router, limits: Limits) -> io::Result<Self> {
        Server::start_with(listener, router, limits, SHARED.clone())
    }

    /// Starts the server with connections out of `descriptors`.
    fn start_with(
        listener: TcpListener,
        router: Router,
        limits: Limits,
        descriptors: Arc<Semaphore>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(());
        let (listening, closed) = oneshot::channel();
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            accept(&listener, router, limits, descriptors, stopped, &mut connections).await;
            drop(listener);
            drop(listening);
            // Connections that do not end in time are aborted when the set is dropped.
            _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
        });
        Ok(Server { address, stop, closed })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server ends, which happens only if its runtime ends.
    pub(crate) async fn ended(&mut self) {
        _ = (&mut self.closed).await;
    }

    /// Stops listening, and lets open connections end after their current request.
    pub async fn close(self) {
        drop(self.stop);
        _ = self.closed.await;
    }
}

/// Accepts connections until the server is closed.
async fn accept(
    listener: &TcpListener,
    router: Router,
    limits: Limits,
    descriptors: Arc<Semaphore>,
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
                    let mut permit = descriptors.clone().try_acquire_owned().ok();
                    if (open.len() >= limits.connections || permit.is_none())
                        && let Some(oldest) = open.pop_front()
                    {
                        oldest.abort();
                    }
                    if permit.is_none() {
                        // The aborted connection releases its descriptor in its own task. Without one, the descriptors are
                        // those of other servers, and the new connection is closed.
                        let free = timeout(PAUSE, descriptors.clone().acquire_owned()).await;
                        permit = free.ok().and_then(Result::ok);
                    }
                    if let Some(permit) = permit {
                        let answer = answer(stream, router.clone(), limits, stop.clone());
                        open.push_back(connections.spawn(async move {
                            answer.await;
                            drop(permit);
                        }));
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections; retrying");
                    sleep(PAUSE).await;
                }
            },
        }
    }
}

/// Whether an error of `accept` concerns only the connection that was to be accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers the requests of one connection.
async fn answer(stream: TcpStream, router: Router, limits: Limits, mut stopped: watch::Receiver<()>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.headers);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    tokio::select! {
        // An error means that the client closed the connection or was too slow.
        _ = connection.as_mut() => return,
        _ = stopped.changed() => {}
        () = sleep(limits.lifetime) => {}
    }
    connection.as_mut().graceful_shutdown();
    _ = timeout(GRACE, connection).await;
}

#[cfg(test)]
mod tests;
