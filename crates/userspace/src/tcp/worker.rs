//! A worker thread: an event loop that accepts connections, connects to endpoints and moves bytes.
//!
//! A connection stays with the thread that accepted it. No call blocks: a socket that is not ready is left until epoll
//! reports it.

use super::connection::{Connection, Next, Stage, reset};
use super::pipes::Pipes;
use super::pump::{COPY, Peer};
use crate::clock::Moment;
use crate::engine::Shared;
use crate::limits::{self, Use};
use crate::listeners::{Listener, address_of};
use portway_model::Protocol;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Connections that are accepted before other events have their turn.
const ACCEPT: usize = 64;
/// Events that are read at a time.
const EVENTS: usize = 256;
/// How often connections of removed endpoints are checked.
const SWEEP: Duration = Duration::from_secs(1);
/// How often they are checked while the relay shuts down.
const SWEEP_STOPPING: Duration = Duration::from_millis(50);

/// How long a client has to receive the bytes that the endpoint sent before the connection broke.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The source of an event, encoded in epoll's user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Client(usize),
    Server(usize),
    Listener(usize),
    Waker,
}

impl Token {
    fn number(self) -> u64 {
        let (kind, index) = match self {
            Token::Client(slot) => (0, slot),
            Token::Server(slot) => (1, slot),
            Token::Listener(index) => (2, index),
            Token::Waker => (3, 0),
        };
        (index as u64) << 2 | kind
    }

    fn of(number: u64) -> Token {
        let index = (number >> 2) as usize;
        match number & 3 {
            0 => Token::Client(index),
            1 => Token::Server(index),
            2 => Token::Listener(index),
            _ => Token::Waker,
        }
    }
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    waker: Arc<OwnedFd>,
    listeners: Slab<Arc<Listener>>,
    connections: Slab<Connection>,
    pipes: Pipes,
    copy: Box<[u8; COPY]>,
    /// Time-outs: when, which connection, which attempt.
    timers: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    /// The number of the last attempt.
    attempts: u64,
    /// Connections that have more bytes to move, and wait for their turn.
    busy: VecDeque<usize>,
    /// When to check connections of removed endpoints.
    sweep: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, waker: Arc<OwnedFd>) -> io::Result<Worker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(Token::Waker.number()), epoll::EventFlags::IN)?;
        let pipes = Pipes::new(shared.limits.clone(), shared.waiting.clone());
        Ok(Worker {
            shared,
            epoll,
            waker,
            listeners: Slab::new(),
            connections: Slab::new(),
            pipes,
            copy: Box::new([0; COPY]),
            timers: BinaryHeap::new(),
            attempts: 0,
            busy: VecDeque::new(),
            sweep: None,
        })
    }

    /// Runs until the engine stops: after the last connection, or at the deadline.
    pub(crate) fn run(mut self) {
        self.reload();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        while !self.may_stop() {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "epoll failed; a TCP worker thread ends");
                    break;
                }
            }
            // Listeners last: a new connection may reuse the slot of one that has ended, and other events of this batch
            // are about the old one.
            for accepting in [false, true] {
                for event in &events {
                    let token = Token::of(event.data.u64());
                    if matches!(token, Token::Listener(_)) == accepting {
                        self.handle(token, event.flags);
                    }
                }
            }
            for _ in 0..self.busy.len() {
                if let Some(slot) = self.busy.pop_front() {
                    if let Some(connection) = self.connections.get_mut(slot) {
                        connection.queued = false;
                    }
                    self.resume(slot);
                }
            }
            self.expire();
            self.sweep();
        }
        // Reset unfinished connections, so that peers see no clean EOF.
        for connection in self.connections.drain() {
            connection.end(&mut self.pipes, true);
        }
    }

    /// How long epoll may wait.
    fn timeout(&self) -> Option<Timespec> {
        let timer = self.timers.peek().map(|Reverse((when, ..))| *when);
        let wait = match [timer, self.sweep].into_iter().flatten().min() {
            _ if !self.busy.is_empty() => Duration::ZERO,
            // Rounded up, so that the timer has expired when the thread wakes.
            Some(when) => when.saturating_duration_since(Instant::now()) + Duration::from_millis(1),
            None => return None,
        };
        Timespec::try_from(wait).ok()
    }

    fn handle(&mut self, token: Token, flags: epoll::EventFlags) {
        match token {
            Token::Waker => {
                _ = rustix::io::read(&self.waker, &mut [0; 8]);
                self.reload();
            }
            Token::Listener(index) => {
                if let Some(listener) = self.listeners.get(index).cloned() {
                    self.accept(&listener);
                }
            }
            Token::Client(slot) => self.ready(slot, flags, |c| Some(&mut c.client)),
            Token::Server(slot) => self.ready(slot, flags, |c| c.server.as_mut()),
        }
    }

    /// Watches new listeners and releases old ones, after the engine has changed them.
    fn reload(&mut self) {
        let wanted = self.shared.listeners(Protocol::Tcp);
        let pointers: HashSet<*const Listener> = wanted.iter().map(Arc::as_ptr).collect();
        self.listeners.retain(|_, listener| {
            let stays = pointers.contains(&Arc::as_ptr(listener));
            if !stays {
                _ = epoll::delete(&self.epoll, &listener.socket);
            }
            stays
        });
        let known: HashSet<*const Listener> = self.listeners.iter().map(|(_, l)| Arc::as_ptr(l)).collect();
        for listener in wanted.into_iter().filter(|listener| !known.contains(&Arc::as_ptr(listener))) {
            let entry = self.listeners.vacant_entry();
            let data = epoll::EventData::new_u64(Token::Listener(entry.key()).number());
            // EXCLUSIVE: one thread is woken for a new connection, not all.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
            match epoll::add(&self.epoll, &listener.socket, data, flags) {
                Ok(()) => _ = entry.insert(listener),
                Err(error) => tracing::error!(%error, address = %listener.address, "cannot watch a listener"),
            }
        }
        self.sweep = Some(Instant::now());
    }

    fn accept(&mut self, listener: &Listener) {
        for _ in 0..ACCEPT {
            match acceptfrom_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((client, Some(address))) => {
                    if let Ok(address) = address_of(address) {
                        self.begin(client, address, listener);
                    }
                }
                Ok((_, None)) | Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    self.shared.limits.warn_refused(&error.to_string());
                    // The listener stays readable, so the loop would spin without a pause.
                    return std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn begin(&mut self, client: OwnedFd, address: SocketAddr, listener: &Listener) {
        if listener.address.ip().is_loopback() {
            self.shared.accepted_at_loopback.fetch_add(1, Relaxed);
        }
        let original = original_destination(&client, listener);
        let Some(port) = self.shared.routes().find(Protocol::Tcp, original).cloned() else {
            tracing::debug!(client = %address, %original, "reset a connection: no Service owns its original destination");
            return reset(&client);
        };
        let Some(permit) = self.shared.limits.permit(Use::Connection) else {
            port.stats.failed();
            self.shared.limits.warn_refused(limits::NO_DESCRIPTORS);
            return reset(&client);
        };
        let connection = Connection::new(client, address, original, listener.scope, port, permit);
        let slot = self.connections.insert(connection);
        self.connect(slot);
    }

    /// Connects to the next endpoint, or resets the client if none is left.
    fn connect(&mut self, slot: usize) {
        self.attempts += 1;
        let attempt = self.attempts;
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if connection.connect(&self.shared, attempt).is_none() {
            connection.failed();
            return self.end(slot, true);
        }
        let Some(server) = &connection.server else { return };
        if watch(&self.epoll, server, Token::Server(slot)).is_err() {
            connection.failed();
            return self.end(slot, true);
        }
        let timeout = self.shared.settings().connect_timeout;
        self.timers.push(Reverse((Instant::now() + timeout, slot, attempt)));
    }

    /// A socket is readable, writable or broken.
    fn ready(&mut self, slot: usize, flags: epoll::EventFlags, of: fn(&mut Connection) -> Option<&mut Peer>) {
        use epoll::EventFlags;
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if let Stage::Connecting { since, .. } = connection.stage {
            return self.connect_finished(slot, since, flags);
        }
        let Some(peer) = of(connection) else { return };
        let ended = EventFlags::HUP | EventFlags::ERR;
        peer.readable |= flags.intersects(EventFlags::IN | EventFlags::RDHUP | ended);
        peer.writable |= flags.intersects(EventFlags::OUT | ended);
        peer.urgent |= flags.contains(EventFlags::PRI);
        // Bytes that arrived before a reset are delivered; the read after them returns the error.
        self.resume(slot);
        if flags.contains(EventFlags::ERR)
            && let Some(connection) = self.connections.get_mut(slot).filter(|c| c.stage == Stage::Open)
            && let Some(peer) = of(connection)
            && !matches!(sockopt::socket_error(&peer.socket), Ok(Ok(())))
        {
            self.abort(slot);
        }
    }

    /// A connect to an endpoint has succeeded or failed.
    fn connect_finished(&mut self, slot: usize, since: Instant, flags: epoll::EventFlags) {
        use epoll::EventFlags;
        if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            return;
        }
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Some(server) = &connection.server else { return };
        if flags.intersects(EventFlags::ERR | EventFlags::HUP)
            && let Ok(Err(error)) | Err(error) = sockopt::socket_error(&server.socket)
        {
            connection.connect_failed(error);
            return self.connect(slot);
        }
        if !flags.contains(EventFlags::OUT) {
            return;
        }
        connection.connect_succeeded(since.elapsed());
        if let Some(server) = &mut connection.server {
            server.readable = flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP);
            server.urgent = flags.contains(EventFlags::PRI);
        }
        if watch(&self.epoll, &connection.client, Token::Client(slot)).is_err() {
            return self.end(slot, true);
        }
        self.resume(slot);
    }

    fn resume(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        match connection.stage {
            Stage::Open => {}
            Stage::Flushing { .. } => {
                _ = connection.flush_to_client(&mut self.pipes, &mut self.copy);
                return;
            }
            // The queue entry is of an earlier connection in this slot.
            Stage::Connecting { .. } => return,
        }
        match connection.run(&mut self.pipes, &mut self.copy) {
            Next::Wait => {}
            Next::Again => {
                if !std::mem::replace(&mut connection.queued, true) {
                    self.busy.push_back(slot);
                }
            }
            Next::Close => self.end(slot, false),
            Next::Reset => self.abort(slot),
        }
    }

    /// Ends a broken connection. If the client has not received the endpoint's last bytes, it is given
    /// [`FLUSH_TIMEOUT`]: a reset would discard them.
    fn abort(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if !connection.flush_to_client(&mut self.pipes, &mut self.copy) {
            return self.end(slot, true);
        }
        self.attempts += 1;
        connection.stage = Stage::Flushing { attempt: self.attempts };
        self.timers.push(Reverse((Instant::now() + FLUSH_TIMEOUT, slot, self.attempts)));
    }

    fn end(&mut self, slot: usize, broken: bool) {
        if let Some(connection) = self.connections.try_remove(slot) {
            connection.end(&mut self.pipes, broken);
        }
    }

    /// Handles time-outs: connects to the next endpoint, or ends a connection that was flushed.
    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((when, slot, attempt))) = self.timers.peek().copied() {
            if when > now {
                return;
            }
            self.timers.pop();
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            let since = match connection.stage {
                Stage::Connecting { since, attempt: current } if current == attempt => since,
                Stage::Flushing { attempt: current } if current == attempt => {
                    self.end(slot, true);
                    continue;
                }
                _ => continue,
            };
            // If this thread was late, the connect may have finished although its event was not read yet.
            if let Some(flags) = connection.server.as_ref().and_then(poll_now) {
                self.connect_finished(slot, since, flags);
            } else if connection.may_keep_waiting(&self.shared) {
                let timeout = self.shared.settings().connect_timeout;
                self.timers.push(Reverse((now + timeout, slot, attempt)));
            } else {
                connection.connect_failed(Errno::TIMEDOUT);
                self.connect(slot);
            }
        }
    }

    /// Resets connections whose endpoint was removed and whose drain time is over.
    fn sweep(&mut self) {
        let now = Instant::now();
        if self.sweep.is_none_or(|when| when > now) {
            return;
        }
        let moment = Moment::now();
        let ends = |c: &Connection| c.drains_until().is_some_and(|until| until <= moment);
        let expired: Vec<usize> =
            self.connections.iter().filter(|(_, c)| ends(c)).map(|(slot, _)| slot).collect();
        for slot in expired {
            self.end(slot, true);
        }
        let stopping = self.shared.stop().is_some();
        let some_drain = self.connections.iter().any(|(_, c)| c.drains_until().is_some());
        self.sweep = match (stopping, some_drain) {
            (true, _) => Some(now + SWEEP_STOPPING),
            (false, true) => Some(now + SWEEP),
            (false, false) => None,
        };
    }

    /// Whether the engine stops, and this thread may end.
    fn may_stop(&self) -> bool {
        let now = Moment::now();
        self.shared
            .stop()
            .is_some_and(|stop| (self.connections.is_empty() && stop.quiet <= now) || stop.deadline <= now)
    }
}

/// Watches a socket for all events, edge-triggered.
fn watch(epoll: &OwnedFd, peer: &Peer, token: Token) -> rustix::io::Result<()> {
    use epoll::EventFlags;
    let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(epoll, &peer.socket, epoll::EventData::new_u64(token.number()), flags)
}

/// The pending events of a socket towards an endpoint; `None` if no event is pending.
fn poll_now(server: &Peer) -> Option<epoll::EventFlags> {
    let mut fds = [PollFd::new(&server.socket, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)];
    let ready = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
    // EPOLL* and POLL* have the same values.
    ready.then(|| epoll::EventFlags::from_bits_truncate(u32::from(fds[0].revents().bits())))
}

/// The destination of a connection before the rules translated it.
fn original_destination(client: &OwnedFd, listener: &Listener) -> SocketAddr {
    let socket = client.as_fd();
    let found = match listener.address {
        SocketAddr::V4(_) => sockopt::ip_original_dst(socket).map(SocketAddr::from),
        SocketAddr::V6(_) => sockopt::ipv6_original_dst(socket).map(SocketAddr::from),
    };
    // No original destination: the client dialled the listener directly.
    found.unwrap_or(listener.address)
}
