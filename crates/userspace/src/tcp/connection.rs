//! One connection of a client, from accept until both directions have ended.

use super::pipes::Pipes;
use super::pump::{COPY, Peer, Pump};
use crate::balance::{Lease, Port};
use crate::clock::Moment;
use crate::engine::Shared;
use crate::header::header;
use crate::limits::Permit;
use crate::listeners::{open_marked_socket, tune};
use crate::redirect::EndpointScope;
use portway_model::Target;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketType, connect, send, sockopt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Peer,
    pub(super) server: Option<Peer>,
    pub(super) stage: Stage,
    /// It is in the worker's queue of connections that have more bytes to move.
    pub(super) queued: bool,
    begun: Instant,
    lease: Option<Lease>,
    port: Arc<Port>,
    scope: EndpointScope,
    client_address: SocketAddr,
    original: SocketAddr,
    /// Endpoints that did not accept.
    tried: Vec<Target>,
    /// The part of the PROXY protocol header that was not sent yet; it precedes all other bytes.
    header: Vec<u8>,
    up: Pump,
    down: Pump,
    _permit: Permit,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A connect to an endpoint began at `since`; `attempt` identifies its timer.
    Connecting { since: Instant, attempt: u64 },
    /// Client and endpoint are connected.
    Open,
    /// It is broken, and the endpoint's last bytes are sent to the client; `attempt` identifies the timer.
    Flushing { attempt: u64 },
}

/// The next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for an event.
    Wait,
    /// Continue after other connections had their turn.
    Again,
    /// Close: both directions have ended.
    Close,
    /// Reset both sides: the connection is broken.
    Reset,
}

impl Connection {
    pub(super) fn new(
        client: OwnedFd,
        client_address: SocketAddr,
        original: SocketAddr,
        scope: EndpointScope,
        port: Arc<Port>,
        permit: Permit,
    ) -> Connection {
        port.stats.opened();
        let header = if port.wants_proxy_header() { header(client_address, original) } else { Vec::new() };
        Connection {
            client: Peer { socket: client, readable: true, writable: true, urgent: false },
            server: None,
            stage: Stage::Connecting { since: Instant::now(), attempt: 0 },
            queued: false,
            begun: Instant::now(),
            lease: None,
            port,
            scope,
            client_address,
            original,
            tried: Vec::new(),
            header,
            up: Pump::default(),
            down: Pump::default(),
            _permit: permit,
        }
    }

    /// When it is reset at the latest, if its endpoint was removed.
    pub(super) fn drains_until(&self) -> Option<Moment> {
        self.lease.as_ref().and_then(|lease| lease.drains_until())
    }

    /// Starts a connect to the next endpoint; none if no endpoint is left to try.
    pub(super) fn connect(&mut self, shared: &Shared, attempt: u64) -> Option<()> {
        let (attempts, balancing, mark) = {
            let settings = shared.settings();
            (settings.connect_attempts as usize, settings.balancing, settings.bypass_mark)
        };
        while self.tried.len() < attempts.max(1) {
            let now = Moment::now();
            let client = self.client_address.ip();
            let endpoint = self.port.choose(self.scope, client, &self.tried, now, balancing)?;
            if !self.tried.is_empty() {
                self.port.stats.retried();
            }
            let since = Instant::now();
            match start_connect(endpoint.target, mark) {
                Ok(socket) => {
                    // Not readable until an event reports its first bytes.
                    self.server = Some(Peer { socket, readable: false, writable: true, urgent: false });
                    self.lease = Some(endpoint);
                    self.stage = Stage::Connecting { since, attempt };
                    return Some(());
                }
                Err(error) => {
                    self.tried.push(endpoint.target);
                    if is_local_shortage(error) {
                        shared.limits.warn_refused(&format!("{}: {error}{}", endpoint.target, advice(error)));
                    } else {
                        endpoint.failed(now);
                    }
                    self.log_failed_attempt(endpoint.target, error);
                }
            }
        }
        None
    }

    /// Records that the endpoint did not accept.
    pub(super) fn connect_failed(&mut self, error: Errno) {
        self.server = None;
        if let Some(lease) = self.lease.take() {
            lease.failed(Moment::now());
            self.tried.push(lease.target);
            self.log_failed_attempt(lease.target, error);
        }
    }

    fn log_failed_attempt(&self, target: Target, error: Errno) {
        let id = &self.port.id;
        tracing::debug!(service = %id.service, port = &*id.port, endpoint = %target, %error, "endpoint did not accept the connection");
    }

    /// Whether to wait longer for the endpoint, because there is no other to try: a packet may have been lost, and the
    /// kernel retransmits it.
    pub(super) fn may_keep_waiting(&self, shared: &Shared) -> bool {
        let Some(lease) = &self.lease else { return false };
        let settings = shared.settings();
        let longest = settings.connect_timeout.saturating_mul(settings.connect_attempts);
        let all = [&self.tried[..], &[lease.target]].concat();
        self.begun.elapsed() < longest && !self.port.has_untried(self.scope, &all)
    }

    /// Records that no endpoint accepted.
    pub(super) fn failed(&self) {
        self.port.stats.failed();
        let id = &self.port.id;
        tracing::debug!(
            service = %id.service, port = &*id.port, client = %self.client_address, original = %self.original,
            tried = self.tried.len(), "no endpoint accepted the connection"
        );
    }

    /// Records that the endpoint accepted.
    pub(super) fn connect_succeeded(&mut self, took: Duration) {
        self.stage = Stage::Open;
        self.tried = Vec::new();
        self.port.stats.connected(took);
        if let Some(lease) = &self.lease {
            lease.succeeded();
        }
    }

    /// Moves the bytes that are ready, in both directions.
    pub(super) fn run(&mut self, pipes: &mut Pipes, copy: &mut [u8; COPY]) -> Next {
        match self.turn(pipes, copy) {
            Ok(true) => Next::Again,
            Ok(false) if self.up.is_done() && self.down.is_done() => Next::Close,
            Ok(false) => Next::Wait,
            Err(_) => Next::Reset,
        }
    }

    fn turn(&mut self, pipes: &mut Pipes, copy: &mut [u8; COPY]) -> Result<bool, Errno> {
        let Some(server) = &mut self.server else { return Ok(false) };
        if !self.header.is_empty() && server.writable {
            match send(&server.socket, &self.header, SendFlags::NOSIGNAL) {
                Ok(bytes) => drop(self.header.drain(..bytes)),
                Err(Errno::AGAIN) => server.writable = false,
                Err(error) => return Err(error),
            }
        }
        let mut more = !self.header.is_empty() && server.writable;
        if self.header.is_empty() {
            let (up, result) = self.up.run(&mut self.client, server, pipes, copy, self.down.is_done());
            if up.moved > 0 {
                self.port.stats.received(up.moved);
            }
            result?;
            more |= up.more;
        }
        let (down, result) = self.down.run(server, &mut self.client, pipes, copy, self.up.is_done());
        if down.moved > 0 {
            self.port.stats.sent(down.moved);
        }
        result?;
        Ok(more | down.more)
    }

    /// Sends the client the bytes that the endpoint sent before the connection broke, as far as they can be written:
    /// they may be the answer of a server that refuses the rest of a long request. Returns whether there were any.
    pub(super) fn flush_to_client(&mut self, pipes: &mut Pipes, copy: &mut [u8; COPY]) -> bool {
        self.up.abandon(pipes);
        let Some(server) = &mut self.server else { return false };
        server.readable = true;
        let mut moved = 0;
        loop {
            let (turn, result) = self.down.run(server, &mut self.client, pipes, copy, true);
            moved += turn.moved;
            if result.is_err() || !turn.more {
                break;
            }
        }
        if moved > 0 {
            self.port.stats.sent(moved);
        }
        moved > 0 || self.down.has_buffered()
    }

    /// Closes both sockets. A broken connection is reset on both sides, so that peers see no clean end of the stream.
    pub(super) fn end(mut self, pipes: &mut Pipes, broken: bool) {
        self.up.abandon(pipes);
        self.down.abandon(pipes);
        if broken {
            reset(&self.client.socket);
            self.server.iter().for_each(|server| reset(&server.socket));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.port.stats.closed();
    }
}

/// Whether this machine lacks a resource, as opposed to a failure of the endpoint.
fn is_local_shortage(error: Errno) -> bool {
    matches!(error, Errno::ADDRNOTAVAIL | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}

/// The remedy for a shortage, to append to its error.
fn advice(error: Errno) -> &'static str {
    match error {
        Errno::ADDRNOTAVAIL => {
            "; no local port is left for this endpoint: set net.ipv4.tcp_tw_reuse=1, or widen net.ipv4.ip_local_port_range"
        }
        _ => "",
    }
}

/// Starts a connect; an event reports its completion.
fn start_connect(target: Target, bypass_mark: u32) -> Result<OwnedFd, Errno> {
    let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    let socket = open_marked_socket(target.ip, SocketType::STREAM, bypass_mark).map_err(errno)?;
    tune(&socket).map_err(errno)?;
    match connect(&socket, &SocketAddr::new(target.ip, target.port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Makes the kernel send a reset when the socket is closed.
pub(super) fn reset(socket: &OwnedFd) {
    _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}
