//! One thread's share of the connections: it accepts, connects and moves bytes, whatever is ready.
//!
//! A connection stays with the thread that accepted it. Nobody is waited for: every call returns at once, and what
//! cannot go on is left until the kernel tells of it.

use super::connection::{Connection, Next, Stage, reset};
use super::pipes::Pipes;
use super::pump::{COPY, Side};
use crate::clock::Moment;
use crate::doors::{Door, address_of};
use crate::engine::Shared;
use crate::limits::{self, Use};
use portway_model::Protocol;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections that are accepted before others have their turn.
const ACCEPT: usize = 64;
/// What the kernel tells of at once.
const EVENTS: usize = 256;
/// How often connections are looked at whose endpoint has left.
const SWEEP: Duration = Duration::from_secs(1);
/// How often, when the agent is about to leave.
const LEAVING: Duration = Duration::from_millis(50);

/// How long a client has to hear what was said before its connection broke.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Whose event it is, in the number that the kernel gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Client(usize),
    Server(usize),
    Door(usize),
    Waker,
}

impl Token {
    fn number(self) -> u64 {
        let (kind, index) = match self {
            Token::Client(slot) => (0, slot),
            Token::Server(slot) => (1, slot),
            Token::Door(index) => (2, index),
            Token::Waker => (3, 0),
        };
        (index as u64) << 2 | kind
    }

    fn of(number: u64) -> Token {
        let index = (number >> 2) as usize;
        match number & 3 {
            0 => Token::Client(index),
            1 => Token::Server(index),
            2 => Token::Door(index),
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
    doors: Slab<Arc<Door>>,
    connections: Slab<Connection>,
    pipes: Pipes,
    copy: Box<[u8; COPY]>,
    /// When endpoints that were asked have taken too long.
    timers: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    /// Attempts so far.
    attempts: u64,
    /// Those that can go on at once.
    busy: VecDeque<usize>,
    /// When to look for connections that have to end.
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
            doors: Slab::new(),
            connections: Slab::new(),
            pipes,
            copy: Box::new([0; COPY]),
            timers: BinaryHeap::new(),
            attempts: 0,
            busy: VecDeque::new(),
            sweep: None,
        })
    }

    /// Works until the engine is told to stop, and the last connection has ended or may go on no longer.
    pub(crate) fn run(mut self) {
        self.look_around();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        while !self.may_leave() {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "connections cannot be waited for; their thread ends");
                    break;
                }
            }
            // Doors last: who comes in gets the slot of somebody who has ended, and what else was told of that slot is
            // not about them.
            for doors in [false, true] {
                for event in &events {
                    let token = Token::of(event.data.u64());
                    if matches!(token, Token::Door(_)) == doors {
                        self.take(token, event.flags);
                    }
                }
            }
            for _ in 0..self.busy.len() {
                if let Some(slot) = self.busy.pop_front() {
                    if let Some(connection) = self.connections.get_mut(slot) {
                        connection.queued = false;
                    }
                    self.go_on(slot);
                }
            }
            self.expire();
            self.sweep();
        }
        // Who has to leave before their end shall not take it for the end.
        for connection in self.connections.drain() {
            connection.end(&mut self.pipes, true);
        }
    }

    /// Until when to wait for the kernel, at most.
    fn timeout(&self) -> Option<Timespec> {
        let timer = self.timers.peek().map(|Reverse((when, ..))| *when);
        let wait = match [timer, self.sweep].into_iter().flatten().min() {
            _ if !self.busy.is_empty() => Duration::ZERO,
            // Rounded up, so that it is time when we wake.
            Some(when) => when.saturating_duration_since(Instant::now()) + Duration::from_millis(1),
            None => return None,
        };
        Timespec::try_from(wait).ok()
    }

    fn take(&mut self, token: Token, flags: epoll::EventFlags) {
        match token {
            Token::Waker => {
                _ = rustix::io::read(&self.waker, &mut [0; 8]);
                self.look_around();
            }
            Token::Door(index) => {
                if let Some(door) = self.doors.get(index).cloned() {
                    self.accept(&door);
                }
            }
            Token::Client(slot) => self.ready(slot, flags, |c| Some(&mut c.client)),
            Token::Server(slot) => self.ready(slot, flags, |c| c.server.as_mut()),
        }
    }

    /// Something was changed by the engine.
    fn look_around(&mut self) {
        let wanted = self.shared.doors(Protocol::Tcp);
        let gone = |door: &Arc<Door>| !wanted.iter().any(|w| Arc::ptr_eq(w, door));
        self.doors.retain(|_, door| {
            let goes = gone(door);
            if goes {
                _ = epoll::delete(&self.epoll, &door.socket);
            }
            !goes
        });
        for door in wanted {
            if self.doors.iter().any(|(_, known)| Arc::ptr_eq(known, &door)) {
                continue;
            }
            let entry = self.doors.vacant_entry();
            let data = epoll::EventData::new_u64(Token::Door(entry.key()).number());
            // One thread is woken, not all.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
            match epoll::add(&self.epoll, &door.socket, data, flags) {
                Ok(()) => _ = entry.insert(door),
                Err(error) => tracing::error!(%error, address = %door.address, "a door cannot be watched"),
            }
        }
        self.sweep = Some(Instant::now());
    }

    fn accept(&mut self, door: &Door) {
        for _ in 0..ACCEPT {
            match acceptfrom_with(&door.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((client, Some(peer))) => {
                    if let Ok(peer) = address_of(peer) {
                        self.begin(client, peer, door);
                    }
                }
                Ok((_, None)) | Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    self.shared.limits.say_refused(&error.to_string());
                    // What waits there would wake us again at once.
                    return std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn begin(&mut self, client: OwnedFd, peer: SocketAddr, door: &Door) {
        let wanted = original(&client, door);
        let Some(port) = self.shared.routes().find(Protocol::Tcp, wanted).cloned() else {
            tracing::debug!(client = %peer, %wanted, "not for any Service");
            return reset(&client);
        };
        let Some(permit) = self.shared.limits.permit(Use::Connection) else {
            port.stats.failed();
            self.shared.limits.say_refused(limits::FULL);
            return reset(&client);
        };
        let connection = Connection::new(client, peer, wanted, door.reach, port, permit);
        let slot = self.connections.insert(connection);
        self.dial(slot);
    }

    /// Asks the next endpoint, or gives up.
    fn dial(&mut self, slot: usize) {
        self.attempts += 1;
        let attempt = self.attempts;
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if connection.dial(&self.shared, attempt).is_none() {
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

    /// A socket can be read or written, or is broken.
    fn ready(&mut self, slot: usize, flags: epoll::EventFlags, of: fn(&mut Connection) -> Option<&mut Side>) {
        use epoll::EventFlags;
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if let Stage::Dialling { since, .. } = connection.stage {
            return self.answered(slot, since, flags);
        }
        let Some(side) = of(connection) else { return };
        let ended = EventFlags::HUP | EventFlags::ERR;
        side.readable |= flags.intersects(EventFlags::IN | EventFlags::RDHUP | ended);
        side.writable |= flags.intersects(EventFlags::OUT | ended);
        side.urgent |= flags.contains(EventFlags::PRI);
        // What came before a reset is delivered, as far as it can be; whoever reads up to it meets the error.
        self.go_on(slot);
        if flags.contains(EventFlags::ERR)
            && let Some(connection) = self.connections.get_mut(slot).filter(|c| c.stage == Stage::Open)
            && let Some(side) = of(connection)
            && !matches!(sockopt::socket_error(&side.socket), Ok(Ok(())))
        {
            self.break_off(slot);
        }
    }

    /// The endpoint that was asked has answered.
    fn answered(&mut self, slot: usize, since: Instant, flags: epoll::EventFlags) {
        use epoll::EventFlags;
        if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            return;
        }
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Some(server) = &connection.server else { return };
        if flags.intersects(EventFlags::ERR | EventFlags::HUP)
            && let Ok(Err(error)) | Err(error) = sockopt::socket_error(&server.socket)
        {
            connection.declined(error);
            return self.dial(slot);
        }
        if !flags.contains(EventFlags::OUT) {
            return;
        }
        connection.accepted(since.elapsed());
        if let Some(server) = &mut connection.server {
            server.readable = flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP);
            server.urgent = flags.contains(EventFlags::PRI);
        }
        if watch(&self.epoll, &connection.client, Token::Client(slot)).is_err() {
            return self.end(slot, true);
        }
        self.go_on(slot);
    }

    fn go_on(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        match connection.stage {
            Stage::Open => {}
            Stage::Ending { .. } => {
                _ = connection.last_words(&mut self.pipes, &mut self.copy);
                return;
            }
            // It was the turn of somebody who had this slot before.
            Stage::Dialling { .. } => return,
        }
        match connection.run(&mut self.pipes, &mut self.copy) {
            Next::Wait => {}
            Next::Again => {
                if !std::mem::replace(&mut connection.queued, true) {
                    self.busy.push_back(slot);
                }
            }
            Next::Close => self.end(slot, false),
            Next::Reset => self.break_off(slot),
        }
    }

    /// Ends what is broken. Where the endpoint had something to say before, the client gets the time to hear it: a reset
    /// would overtake it.
    fn break_off(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if !connection.last_words(&mut self.pipes, &mut self.copy) {
            return self.end(slot, true);
        }
        self.attempts += 1;
        connection.stage = Stage::Ending { attempt: self.attempts };
        self.timers.push(Reverse((Instant::now() + LAST_WORDS, slot, self.attempts)));
    }

    fn end(&mut self, slot: usize, broken: bool) {
        if let Some(connection) = self.connections.try_remove(slot) {
            connection.end(&mut self.pipes, broken);
        }
    }

    /// Endpoints that have taken too long are given up.
    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((when, slot, attempt))) = self.timers.peek().copied() {
            if when > now {
                return;
            }
            self.timers.pop();
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            let since = match connection.stage {
                Stage::Dialling { since, attempt: current } if current == attempt => since,
                Stage::Ending { attempt: current } if current == attempt => {
                    self.end(slot, true);
                    continue;
                }
                _ => continue,
            };
            // It may be us who took too long: then the answer is there, and the kernel has not told of it yet.
            if let Some(flags) = connection.server.as_ref().and_then(answer) {
                self.answered(slot, since, flags);
            } else if connection.may_wait(&self.shared) {
                let timeout = self.shared.settings().connect_timeout;
                self.timers.push(Reverse((now + timeout, slot, attempt)));
            } else {
                connection.declined(Errno::TIMEDOUT);
                self.dial(slot);
            }
        }
    }

    /// Ends the connections whose endpoint left long ago.
    fn sweep(&mut self) {
        let now = Instant::now();
        if self.sweep.is_none_or(|when| when > now) {
            return;
        }
        let moment = Moment::now();
        let ends = |c: &Connection| c.leaves().is_some_and(|until| until <= moment);
        let over: Vec<usize> =
            self.connections.iter().filter(|(_, c)| ends(c)).map(|(slot, _)| slot).collect();
        for slot in over {
            self.end(slot, true);
        }
        let stopping = self.shared.stop().is_some();
        let some_leave = self.connections.iter().any(|(_, c)| c.leaves().is_some());
        self.sweep = match (stopping, some_leave) {
            (true, _) => Some(now + LEAVING),
            (false, true) => Some(now + SWEEP),
            (false, false) => None,
        };
    }

    /// Whether the engine stops, and there is nothing left to do.
    fn may_leave(&self) -> bool {
        let now = Moment::now();
        self.shared
            .stop()
            .is_some_and(|stop| (self.connections.is_empty() && stop.quiet <= now) || stop.deadline <= now)
    }
}

/// Has the kernel tell when something can be done with a socket.
fn watch(epoll: &OwnedFd, side: &Side, token: Token) -> rustix::io::Result<()> {
    use epoll::EventFlags;
    let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(epoll, &side.socket, epoll::EventData::new_u64(token.number()), flags)
}

/// What can be done with a socket towards an endpoint by now, if that is anything.
fn answer(server: &Side) -> Option<epoll::EventFlags> {
    let mut fds = [PollFd::new(&server.socket, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)];
    let ready = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
    // The numbers are the same.
    ready.then(|| epoll::EventFlags::from_bits_truncate(u32::from(fds[0].revents().bits())))
}

/// Where the client wanted to go.
fn original(client: &OwnedFd, door: &Door) -> SocketAddr {
    let socket = client.as_fd();
    let found = match door.address {
        SocketAddr::V4(_) => sockopt::ip_original_dst(socket).map(SocketAddr::from),
        SocketAddr::V6(_) => sockopt::ipv6_original_dst(socket).map(SocketAddr::from),
    };
    // Whom no rule led here wanted to come here.
    found.unwrap_or(door.address)
}
