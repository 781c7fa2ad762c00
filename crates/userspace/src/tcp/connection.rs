//! One client's connection, from when it is accepted until both directions have ended.

use super::pipes::Pipes;
use super::pump::{COPY, Pump, Side};
use crate::balance::{Lease, Port};
use crate::clock::Moment;
use crate::doors::{open_towards, tune};
use crate::engine::Shared;
use crate::header::header;
use crate::limits::Permit;
use crate::redirect::Reach;
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
    pub(super) client: Side,
    pub(super) server: Option<Side>,
    pub(super) stage: Stage,
    /// It waits for its turn.
    pub(super) queued: bool,
    begun: Instant,
    lease: Option<Lease>,
    port: Arc<Port>,
    reach: Reach,
    peer: SocketAddr,
    original: SocketAddr,
    /// Endpoints that were tried in vain.
    tried: Vec<Target>,
    /// What the pod is to be told before anything else.
    preface: Vec<u8>,
    up: Pump,
    down: Pump,
    _permit: Permit,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// An endpoint was asked, at that time; the number tells this attempt from others.
    Dialling { since: Instant, attempt: u64 },
    /// Bytes flow.
    Open,
    /// It is broken, and the client hears the endpoint's last words; the number is that of the time it has for it.
    Ending { attempt: u64 },
}

/// What is to be done with a connection next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait until something happens.
    Wait,
    /// Go on when others have had their turn.
    Again,
    /// It has ended as it should.
    Close,
    /// It is broken, and both sides shall know.
    Reset,
}

impl Connection {
    pub(super) fn new(
        client: OwnedFd,
        peer: SocketAddr,
        original: SocketAddr,
        reach: Reach,
        port: Arc<Port>,
        permit: Permit,
    ) -> Connection {
        port.stats.opened();
        let preface = if port.wants_header() { header(peer, original) } else { Vec::new() };
        Connection {
            client: Side { socket: client, readable: true, writable: true, urgent: false },
            server: None,
            stage: Stage::Dialling { since: Instant::now(), attempt: 0 },
            queued: false,
            begun: Instant::now(),
            lease: None,
            port,
            reach,
            peer,
            original,
            tried: Vec::new(),
            preface,
            up: Pump::default(),
            down: Pump::default(),
            _permit: permit,
        }
    }

    /// Until when it may go on, if its endpoint has left.
    pub(super) fn leaves(&self) -> Option<Moment> {
        self.lease.as_ref().and_then(|lease| lease.leaves())
    }

    /// Asks the next endpoint; none if there is nobody left to ask.
    pub(super) fn dial(&mut self, shared: &Shared, attempt: u64) -> Option<()> {
        let (attempts, balancing, mark) = {
            let settings = shared.settings();
            (settings.connect_attempts as usize, settings.balancing, settings.bypass_mark)
        };
        while self.tried.len() < attempts.max(1) {
            let now = Moment::now();
            let endpoint = self.port.choose(self.reach, self.peer.ip(), &self.tried, now, balancing)?;
            if !self.tried.is_empty() {
                self.port.stats.retried();
            }
            let since = Instant::now();
            match ask(endpoint.target, mark) {
                Ok(socket) => {
                    // What it says first is told when it comes.
                    self.server = Some(Side { socket, readable: false, writable: true, urgent: false });
                    self.lease = Some(endpoint);
                    self.stage = Stage::Dialling { since, attempt };
                    return Some(());
                }
                Err(error) => {
                    self.tried.push(endpoint.target);
                    if is_ours(error) {
                        shared.limits.say_refused(&format!("{}: {error}{}", endpoint.target, advice(error)));
                    } else {
                        endpoint.failed(now);
                    }
                    self.say(endpoint.target, error);
                }
            }
        }
        None
    }

    /// The endpoint that was asked did not accept.
    pub(super) fn declined(&mut self, error: Errno) {
        self.server = None;
        if let Some(lease) = self.lease.take() {
            lease.failed(Moment::now());
            self.tried.push(lease.target);
            self.say(lease.target, error);
        }
    }

    fn say(&self, target: Target, error: Errno) {
        let id = &self.port.id;
        tracing::debug!(service = %id.service, port = &*id.port, endpoint = %target, %error, "an endpoint does not accept");
    }

    /// Whether it may go on waiting for the endpoint that was asked, for there is nobody else to ask: its answer may
    /// have been lost on the way.
    pub(super) fn may_wait(&self, shared: &Shared) -> bool {
        let Some(lease) = &self.lease else { return false };
        let settings = shared.settings();
        let longest = settings.connect_timeout.saturating_mul(settings.connect_attempts);
        let all = [&self.tried[..], &[lease.target]].concat();
        self.begun.elapsed() < longest && !self.port.has_other(self.reach, &all)
    }

    /// Nobody accepted.
    pub(super) fn failed(&self) {
        self.port.stats.failed();
        let id = &self.port.id;
        tracing::debug!(
            service = %id.service, port = &*id.port, client = %self.peer, wanted = %self.original,
            tried = self.tried.len(), "no endpoint accepts"
        );
    }

    /// The endpoint that was asked has accepted.
    pub(super) fn accepted(&mut self, took: Duration) {
        self.stage = Stage::Open;
        self.tried = Vec::new();
        self.port.stats.connected(took);
        if let Some(lease) = &self.lease {
            lease.succeeded();
        }
    }

    /// Moves what can be moved, in both directions.
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
        if !self.preface.is_empty() && server.writable {
            match send(&server.socket, &self.preface, SendFlags::NOSIGNAL) {
                Ok(bytes) => drop(self.preface.drain(..bytes)),
                Err(Errno::AGAIN) => server.writable = false,
                Err(error) => return Err(error),
            }
        }
        let mut more = !self.preface.is_empty() && server.writable;
        if self.preface.is_empty() {
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

    /// It is broken, but what the endpoint said before is told all the same, as far as the client takes it: one that
    /// refuses the rest of a long request says why. Whether there was something.
    pub(super) fn last_words(&mut self, pipes: &mut Pipes, copy: &mut [u8; COPY]) -> bool {
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
        moved > 0 || self.down.holds_something()
    }

    /// Ends it. If it is broken, both sides are told so, lest they take what they got for everything.
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

/// Whether it is this machine that lacks something, and not the endpoint.
fn is_ours(error: Errno) -> bool {
    matches!(error, Errno::ADDRNOTAVAIL | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}

/// What to do about it.
fn advice(error: Errno) -> &'static str {
    match error {
        Errno::ADDRNOTAVAIL => {
            "; no port is left towards it: set net.ipv4.tcp_tw_reuse=1, or widen net.ipv4.ip_local_port_range"
        }
        _ => "",
    }
}

/// Begins to connect.
fn ask(target: Target, bypass_mark: u32) -> Result<OwnedFd, Errno> {
    let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    let socket = open_towards(target.ip, SocketType::STREAM, bypass_mark).map_err(errno)?;
    tune(&socket).map_err(errno)?;
    match connect(&socket, &SocketAddr::new(target.ip, target.port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Has the kernel send a reset when the socket is closed.
pub(super) fn reset(socket: &OwnedFd) {
    _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}
