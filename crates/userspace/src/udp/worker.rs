//! The thread that relays datagrams.

use super::hand_over;
use super::sessions::{Key, Session, Sessions};
use super::timeouts::Timeouts;
use crate::balance::{Lease, Port};
use crate::clock::Moment;
use crate::engine::Shared;
use crate::limits::{self, Use};
use crate::listeners::{Listener, address_of, open_marked_socket};
use portway_model::{Protocol, Target};
use portway_netlink::conntrack::{self, Tuple};
use portway_netlink::{Protocol as NetlinkProtocol, Socket};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType, connect, recv, recvfrom, send, sendto};
use slab::Slab;
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Datagrams that are read from one socket before others have their turn.
const BATCH: usize = 64;
/// Batches of each listener that are read before the sessions are handed over.
const BATCHES: usize = 16;
/// Events that are read at a time.
const EVENTS: usize = 256;
/// The size of the largest datagram.
const LARGEST: usize = 65_536;
/// How often idle sessions are removed.
const TICK: Duration = Duration::from_millis(500);
/// How often the kernel's time-outs are read.
const TIMEOUTS: Duration = Duration::from_secs(30);

/// How often the original destination of a session is looked up again.
const CHECK: Duration = Duration::from_secs(2);

/// The user data of the waker's events. Events of sessions and listeners have the slot of the session or listener.
const WAKER: u64 = u64::MAX;
/// The bit that is set in the user data of a listener's events.
const LISTENER: u64 = 1 << 63;

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    waker: Arc<OwnedFd>,
    listeners: Slab<Arc<Listener>>,
    sessions: Sessions,
    /// For lookups of tracked flows; none if the kernel does not track connections.
    tracker: Option<Socket>,
    kernel: Timeouts,
    kernel_read: Instant,
    tick: Instant,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, waker: Arc<OwnedFd>) -> io::Result<Worker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        Ok(Worker {
            shared,
            epoll,
            waker,
            listeners: Slab::new(),
            sessions: Sessions::default(),
            tracker: Socket::open(NetlinkProtocol::Netfilter).ok(),
            kernel: Timeouts::of_kernel(),
            kernel_read: Instant::now(),
            tick: Instant::now(),
        })
    }

    /// Runs until the engine stops and its `quiet` time is over. Sessions have no end to wait for; by then the rules
    /// send their next datagrams to endpoints.
    pub(crate) fn run(mut self) {
        self.reload();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let mut datagram = vec![0; LARGEST];
        while self.shared.stop().is_none_or(|stop| Moment::now() < stop.quiet) {
            events.clear();
            let idle = self.sessions.len() == 0 && self.shared.stop().is_none();
            let timeout = Timespec::try_from(TICK.min(Duration::from_millis(100))).ok().filter(|_| !idle);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "epoll failed; the UDP worker thread ends");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKER => {
                        _ = rustix::io::read(&self.waker, &mut [0; 8]);
                        self.reload();
                        if let Some(_ended) = self.shared.take_hand_over() {
                            self.hand_over(&mut datagram);
                        }
                    }
                    listener if listener & LISTENER != 0 => {
                        self.receive_from_clients((listener & !LISTENER) as usize, &mut datagram);
                    }
                    slot => self.receive_from_endpoint(slot as usize, &mut datagram),
                }
            }
            self.expire();
        }
    }

    /// Has the kernel translate the flows of all sessions, and ends them. Sessions at loopback addresses stay: the kernel
    /// does not forward such packets.
    fn hand_over(&mut self, datagram: &mut [u8]) {
        // Datagrams that have arrived still go through the relay.
        for _ in 0..BATCHES {
            for listener in self.listeners.iter().map(|(slot, _)| slot).collect::<Vec<_>>() {
                self.receive_from_clients(listener, datagram);
            }
        }
        let mut handed_over = 0;
        for slot in self.sessions.filter(|_| true) {
            self.receive_from_endpoint(slot, datagram);
            let Some(session) = self.sessions.get(slot) else { continue };
            let listener = self.listeners.get(session.key.0);
            let Some(listener) = listener.filter(|l| !l.address.ip().is_loopback()) else { continue };
            if let Some(tracker) = &mut self.tracker {
                match hand_over::hand_over(tracker, listener, session, self.kernel.stream) {
                    Ok(done) => handed_over += u64::from(done),
                    Err(error) => {
                        tracing::debug!(%error, client = %session.key.1, "cannot hand over a UDP flow");
                    }
                }
            }
            self.sessions.remove(slot);
        }
        tracing::debug!(handed_over, "the kernel translates the UDP flows");
    }

    /// Watches new listeners, releases old ones, and ends sessions that the new routes do not allow, after the engine
    /// has changed listeners or routes.
    fn reload(&mut self) {
        let wanted = self.shared.listeners(Protocol::Udp);
        let pointers: HashSet<*const Listener> = wanted.iter().map(Arc::as_ptr).collect();
        let gone = self.listeners.iter().filter(|(_, known)| !pointers.contains(&Arc::as_ptr(known)));
        for slot in gone.map(|(slot, _)| slot).collect::<Vec<_>>() {
            self.sessions.filter(|s| s.key.0 == slot).into_iter().for_each(|s| self.sessions.remove(s));
            _ = epoll::delete(&self.epoll, &self.listeners.remove(slot).socket);
        }
        let known: HashSet<*const Listener> = self.listeners.iter().map(|(_, l)| Arc::as_ptr(l)).collect();
        for listener in wanted.into_iter().filter(|listener| !known.contains(&Arc::as_ptr(listener))) {
            let entry = self.listeners.vacant_entry();
            let data = epoll::EventData::new_u64(LISTENER | entry.key() as u64);
            match epoll::add(&self.epoll, &listener.socket, data, epoll::EventFlags::IN) {
                Ok(()) => _ = entry.insert(listener),
                Err(error) => tracing::error!(%error, address = %listener.address, "cannot watch a listener"),
            }
        }
        // If the endpoint was removed, or another Service owns the destination, the next datagram begins a new session.
        let routes = self.shared.routes();
        let has_other_owner = |s: &Session| {
            !routes.find(Protocol::Udp, s.original).is_some_and(|port| Arc::ptr_eq(port, &s.port))
        };
        let ended = self.sessions.filter(|s| s.lease.drains_until().is_some() || has_other_owner(s));
        drop(routes);
        ended.into_iter().for_each(|slot| self.sessions.remove(slot));
    }

    fn receive_from_clients(&mut self, index: usize, datagram: &mut [u8]) {
        for _ in 0..BATCH {
            let Some(listener) = self.listeners.get(index).cloned() else { return };
            match recvfrom(&listener.socket, &mut *datagram, RecvFlags::DONTWAIT) {
                Ok((bytes, _, Some(client))) => {
                    if let Ok(client) = address_of(client) {
                        self.forward((index, client), &listener, &datagram[..bytes]);
                    }
                }
                Ok((_, _, None)) | Err(Errno::INTR) => {}
                // ICMP port unreachable: a client to which an answer was sent has closed its socket.
                Err(Errno::CONNREFUSED) => {}
                Err(_) => return,
            }
        }
    }

    /// Sends a client's datagram to its endpoint; the first one begins a session.
    fn forward(&mut self, key: Key, listener: &Listener, bytes: &[u8]) {
        let now = Moment::now();
        let known = self.sessions.find(&key).filter(|slot| self.is_same_flow(*slot, listener, now));
        let Some(slot) = known.or_else(|| self.begin(key, listener, now)) else { return };
        self.sessions.touch(slot, now, false);
        let Some(session) = self.sessions.get(slot) else { return };
        if !session.refused && session.lease.drains_until().is_none() {
            match send(&session.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => return session.port.stats.received(bytes.len() as u64),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR | Errno::MSGSIZE) => return,
                // ICMP port unreachable: the endpoint refused an earlier datagram.
                Err(_) => session.lease.failed(now),
            }
        }
        if self.move_to_other_endpoint(slot, listener, now).is_none() {
            return self.sessions.remove(slot);
        }
        if let Some(session) = self.sessions.get(slot)
            && send(&session.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
        {
            session.port.stats.received(bytes.len() as u64);
        }
    }

    /// Whether the client still sends to the same destination. The tracked flow may have been deleted (`conntrack -F`),
    /// so it is looked up again now and then; a session of another flow is removed.
    fn is_same_flow(&mut self, slot: usize, listener: &Listener, now: Moment) -> bool {
        let Some(session) = self.sessions.get(slot) else { return false };
        if session.checked.after(CHECK) > now {
            return true;
        }
        session.checked = now;
        let (client, original) = (session.key.1, session.original);
        let same = self.original_destination(client, listener) == original;
        if !same {
            self.sessions.remove(slot);
        }
        same
    }

    /// Begins a session; none if no Service owns the destination, or no endpoint can be reached.
    fn begin(&mut self, key: Key, listener: &Listener, now: Moment) -> Option<usize> {
        let original = self.original_destination(key.1, listener);
        let port = self.shared.routes().find(Protocol::Udp, original)?.clone();
        let most = (self.shared.settings().udp_sessions as usize).min(self.shared.limits.sessions());
        while self.sessions.len() >= most.max(1) {
            self.sessions.remove(self.sessions.oldest()?);
        }
        let permit = loop {
            match (self.shared.limits.permit(Use::Session), self.sessions.oldest()) {
                (Some(permit), _) => break permit,
                (None, Some(oldest)) => self.sessions.remove(oldest),
                (None, None) => {
                    port.stats.failed();
                    self.shared.limits.warn_refused(limits::NO_DESCRIPTORS);
                    return None;
                }
            }
        };
        let Some((lease, socket)) = self.connect_to_endpoint(&port, listener, key.1, &[], now) else {
            port.stats.failed();
            return None;
        };
        port.stats.opened();
        let session =
            Session { key, port, lease, socket, refused: false, original, checked: now, _permit: permit };
        let slot = self.sessions.insert(session, now);
        self.watch(slot)?;
        Some(slot)
    }

    fn watch(&mut self, slot: usize) -> Option<()> {
        let session = self.sessions.get(slot)?;
        let data = epoll::EventData::new_u64(slot as u64);
        if epoll::add(&self.epoll, &session.socket, data, epoll::EventFlags::IN).is_err() {
            self.sessions.remove(slot);
            return None;
        }
        Some(())
    }

    /// The destination of a client's flow before the rules translated it.
    fn original_destination(&mut self, client: SocketAddr, listener: &Listener) -> SocketAddr {
        let reply = Tuple::udp(listener.address, client);
        let found = self.tracker.as_mut().map(|tracker| conntrack::find(tracker, &reply));
        match found {
            Some(Ok(Some(flow))) => {
                SocketAddr::new(flow.original.destination, flow.original.destination_port)
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "cannot look up a tracked flow");
                self.tracker = Socket::open(NetlinkProtocol::Netfilter).ok();
                listener.address
            }
            // No tracked flow with a translated destination: the client sent to the listener directly.
            Some(Ok(None)) | None => listener.address,
        }
    }

    /// Moves a session to another endpoint, or to a new socket towards the same one if there is no other.
    fn move_to_other_endpoint(&mut self, slot: usize, listener: &Listener, now: Moment) -> Option<()> {
        let session = self.sessions.get(slot)?;
        let (port, client, present) = (session.port.clone(), session.key.1, session.lease.target);
        let other = self.connect_to_endpoint(&port, listener, client, &[present], now);
        let (lease, socket) =
            other.or_else(|| self.connect_to_endpoint(&port, listener, client, &[], now))?;
        port.stats.retried();
        let session = self.sessions.get(slot)?;
        (session.lease, session.socket, session.refused) = (lease, socket, false);
        self.watch(slot)
    }

    /// A socket connected to an endpoint that can be reached.
    fn connect_to_endpoint(
        &self,
        port: &Port,
        listener: &Listener,
        client: SocketAddr,
        exclude: &[Target],
        now: Moment,
    ) -> Option<(Lease, OwnedFd)> {
        let mut tried = exclude.to_vec();
        let (attempts, balancing) = {
            let settings = self.shared.settings();
            (settings.connect_attempts, settings.balancing)
        };
        for _ in 0..attempts.max(1) {
            let endpoint = port.choose(listener.scope, client.ip(), &tried, now, balancing)?;
            let target = endpoint.target;
            match self.open_socket_to(target) {
                Ok(socket) => return Some((endpoint, socket)),
                Err(error) => {
                    endpoint.failed(now);
                    let id = &port.id;
                    tracing::debug!(service = %id.service, port = &*id.port, endpoint = %target, %error, "endpoint cannot be reached");
                }
            }
            tried.push(target);
        }
        None
    }

    fn open_socket_to(&self, target: Target) -> io::Result<OwnedFd> {
        let mark = self.shared.settings().bypass_mark;
        let socket = open_marked_socket(target.ip, SocketType::DGRAM, mark)?;
        connect(&socket, &SocketAddr::new(target.ip, target.port))?;
        Ok(socket)
    }

    fn receive_from_endpoint(&mut self, slot: usize, datagram: &mut [u8]) {
        let mut answered = false;
        for _ in 0..BATCH {
            let Some(session) = self.sessions.get(slot) else { return };
            match recv(&session.socket, &mut *datagram, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => {
                    let Some(listener) = self.listeners.get(session.key.0) else { return };
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    if sendto(&listener.socket, &datagram[..bytes], flags, &session.key.1).is_ok() {
                        session.port.stats.sent(bytes as u64);
                    }
                    if !std::mem::replace(&mut answered, true) {
                        session.lease.succeeded();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    session.refused = true;
                    session.lease.failed(Moment::now());
                    break;
                }
            }
        }
        if answered {
            self.sessions.touch(slot, Moment::now(), true);
        }
    }

    /// Removes the sessions that were idle for too long.
    fn expire(&mut self) {
        if self.tick.elapsed() < TICK {
            return;
        }
        self.tick = Instant::now();
        if self.kernel_read.elapsed() >= TIMEOUTS {
            (self.kernel, self.kernel_read) = (Timeouts::of_kernel(), self.tick);
        }
        let timeouts = self.kernel.for_sessions(self.shared.settings().udp_timeout);
        let now = Moment::now();
        while let Some(slot) = self.sessions.expired(now, timeouts) {
            self.sessions.remove(slot);
        }
    }
}
