//! A listener with its HTTP server, which can be closed so that its port is free when `close` returns.

use axum::Router;
use axum::serve::Listener;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A server that runs in the background until it is closed or dropped.
#[derive(Debug)]
pub(super) struct Serving {
    address: SocketAddr,
    stop: oneshot::Sender<Infallible>,
    gone: oneshot::Receiver<Infallible>,
}

impl Serving {
    /// Starts to answer.
    pub(super) fn start(listener: TcpListener, router: Router) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let (announce, gone) = oneshot::channel();
        let listener = Announced { inner: listener, _gone: announce };
        let serve = axum::serve(listener, router).with_graceful_shutdown(async {
            // Nothing is ever sent: the sender's end is the signal.
            let _ = stopped.await;
        });
        tokio::spawn(async move { serve.await });
        Ok(Serving { address, stop, gone })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops to listen, and tells clients that keep a connection open to go.
    pub(super) async fn close(self) {
        drop(self.stop);
        let _ = self.gone.await;
    }
}

/// A listener that tells when it is gone: axum drops it some time after it was told to stop.
struct Announced {
    inner: TcpListener,
    // Declared after the listener, so dropped after it.
    _gone: oneshot::Sender<Infallible>,
}

impl Listener for Announced {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        Listener::accept(&mut self.inner).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}
