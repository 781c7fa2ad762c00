//! The thread that carries datagrams.

use super::sessions::{Key, Session, Sessions};
use super::timeouts::Timeouts;
use crate::balance::{Lease, Port};
use crate::clock::Moment;
use crate::doors::{Door, address_of, open_towards};
use crate::engine::Shared;
use crate::limits::{self, Use};
use portway_model::{Protocol, Target};
use portway_netlink::conntrack::{self, Tuple, UDP};
use portway_netlink::{Protocol as Bus, Socket};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType, connect, recv, recvfrom, send, sendto};
use slab::Slab;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Datagrams that are taken from one socket before others have their turn.
const BATCH: usize = 64;
/// What the kernel tells of at once.
const EVENTS: usize = 256;
/// The largest datagram there is.
const LARGEST: usize = 65_536;
/// How often sessions are looked at that may have ended.
const TICK: Duration = Duration::from_millis(500);
/// How often the kernel's time-outs are read.
const TIMEOUTS: Duration = Duration::from_secs(30);

/// How often the kernel is asked where a client wants to go, at most.
const CHECK: Duration = Duration::from_secs(2);

/// What an event's number means: a session's slot, a door's, or this.
const WAKER: u64 = u64::MAX;
const DOOR: u64 = 1 << 63;

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    waker: Arc<OwnedFd>,
    doors: Slab<Arc<Door>>,
    sessions: Sessions,
    /// Where flows are looked up; none where they are not tracked.
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
            doors: Slab::new(),
            sessions: Sessions::default(),
            tracker: Socket::open(Bus::Netfilter).ok(),
            kernel: Timeouts::of_kernel(),
            kernel_read: Instant::now(),
            tick: Instant::now(),
        })
    }

    /// Works until the engine is told to stop. Sessions have no end that could be waited for; the rules that lead to
    /// endpoints by then have taken over the next datagram of each.
    pub(crate) fn run(mut self) {
        self.look_around();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let mut datagram = vec![0; LARGEST];
        while self.shared.stop().is_none_or(|stop| Moment::now() < stop.quiet) {
            events.clear();
            let idle = self.sessions.len() == 0 && self.shared.stop().is_none();
            let timeout = Timespec::try_from(TICK.min(Duration::from_millis(100))).ok().filter(|_| !idle);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "datagrams cannot be waited for; their thread ends");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKER => {
                        _ = rustix::io::read(&self.waker, &mut [0; 8]);
                        self.look_around();
                    }
                    door if door & DOOR != 0 => {
                        self.take_from_clients((door & !DOOR) as usize, &mut datagram);
                    }
                    slot => self.take_from_endpoint(slot as usize, &mut datagram),
                }
            }
            self.expire();
        }
    }

    /// Something was changed by the engine.
    fn look_around(&mut self) {
        let wanted = self.shared.doors(Protocol::Udp);
        let gone = self.doors.iter().filter(|(_, door)| !wanted.iter().any(|w| Arc::ptr_eq(w, door)));
        for slot in gone.map(|(slot, _)| slot).collect::<Vec<_>>() {
            self.sessions.filter(|s| s.key.0 == slot).into_iter().for_each(|s| self.sessions.remove(s));
            _ = epoll::delete(&self.epoll, &self.doors.remove(slot).socket);
        }
        for door in wanted {
            if self.doors.iter().any(|(_, known)| Arc::ptr_eq(known, &door)) {
                continue;
            }
            let entry = self.doors.vacant_entry();
            let data = epoll::EventData::new_u64(DOOR | entry.key() as u64);
            match epoll::add(&self.epoll, &door.socket, data, epoll::EventFlags::IN) {
                Ok(()) => _ = entry.insert(door),
                Err(error) => tracing::error!(%error, address = %door.address, "a door cannot be watched"),
            }
        }
        // Whose endpoint has left, or who wanted to go where somebody else is now, begins anew with what the client
        // says next.
        let routes = self.shared.routes();
        let elsewhere = |s: &Session| {
            !routes.find(Protocol::Udp, s.wanted).is_some_and(|port| Arc::ptr_eq(port, &s.port))
        };
        let ended = self.sessions.filter(|s| s.lease.leaves().is_some() || elsewhere(s));
        drop(routes);
        ended.into_iter().for_each(|slot| self.sessions.remove(slot));
    }

    fn take_from_clients(&mut self, index: usize, datagram: &mut [u8]) {
        for _ in 0..BATCH {
            let Some(door) = self.doors.get(index).cloned() else { return };
            match recvfrom(&door.socket, &mut *datagram, RecvFlags::DONTWAIT) {
                Ok((bytes, _, Some(client))) => {
                    if let Ok(client) = address_of(client) {
                        self.forward((index, client), &door, &datagram[..bytes]);
                    }
                }
                Ok((_, _, None)) | Err(Errno::INTR) => {}
                // What a client that is gone had sent to us.
                Err(Errno::CONNREFUSED) => {}
                Err(_) => return,
            }
        }
    }

    /// From a client to its endpoint; the first one begins a session.
    fn forward(&mut self, key: Key, door: &Door, bytes: &[u8]) {
        let now = Moment::now();
        let known = self.sessions.find(&key).filter(|slot| self.is_the_same(*slot, door, now));
        let Some(slot) = known.or_else(|| self.begin(key, door, now)) else { return };
        self.sessions.heard(slot, now, false);
        let Some(session) = self.sessions.get(slot) else { return };
        if !session.refused && session.lease.leaves().is_none() {
            match send(&session.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => return session.port.stats.received(bytes.len() as u64),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR | Errno::MSGSIZE) => return,
                // It did not take an earlier one.
                Err(_) => session.lease.failed(now),
            }
        }
        if self.turn_elsewhere(slot, door, now).is_none() {
            return self.sessions.remove(slot);
        }
        if let Some(session) = self.sessions.get(slot)
            && send(&session.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
        {
            session.port.stats.received(bytes.len() as u64);
        }
    }

    /// Whether the client still talks with the same Service. The kernel may have been made to forget the flow (`conntrack -F`), so
    /// it is asked once in a while; a session that is over goes.
    fn is_the_same(&mut self, slot: usize, door: &Door, now: Moment) -> bool {
        let Some(session) = self.sessions.get(slot) else { return false };
        if session.checked.after(CHECK) > now {
            return true;
        }
        session.checked = now;
        let (client, wanted) = (session.key.1, session.wanted);
        let same = self.original(client, door) == wanted;
        if !same {
            self.sessions.remove(slot);
        }
        same
    }

    /// Begins a session; none if it is nobody's, or nobody is there to serve it.
    fn begin(&mut self, key: Key, door: &Door, now: Moment) -> Option<usize> {
        let wanted = self.original(key.1, door);
        let port = self.shared.routes().find(Protocol::Udp, wanted)?.clone();
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
                    self.shared.limits.say_refused(limits::FULL);
                    return None;
                }
            }
        };
        let Some((lease, socket)) = self.reach_endpoint(&port, door, key.1, &[], now) else {
            port.stats.failed();
            return None;
        };
        port.stats.opened();
        let session =
            Session { key, port, lease, socket, refused: false, wanted, checked: now, _permit: permit };
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

    /// Where a client wanted to go.
    fn original(&mut self, client: SocketAddr, door: &Door) -> SocketAddr {
        let reply = Tuple {
            source: door.address.ip(),
            destination: client.ip(),
            protocol: UDP,
            source_port: door.address.port(),
            destination_port: client.port(),
        };
        let found = self.tracker.as_mut().map(|tracker| conntrack::find(tracker, &reply));
        match found {
            Some(Ok(Some(flow))) => {
                SocketAddr::new(flow.original.destination, flow.original.destination_port)
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "a flow could not be looked up");
                self.tracker = Socket::open(Bus::Netfilter).ok();
                door.address
            }
            // Whom no rule led here wanted to come here.
            Some(Ok(None)) | None => door.address,
        }
    }

    /// Has a session go on with another endpoint, or with the same if there is no other.
    fn turn_elsewhere(&mut self, slot: usize, door: &Door, now: Moment) -> Option<()> {
        let session = self.sessions.get(slot)?;
        let (port, client, left) = (session.port.clone(), session.key.1, session.lease.target);
        let other = self.reach_endpoint(&port, door, client, &[left], now);
        let (lease, socket) = other.or_else(|| self.reach_endpoint(&port, door, client, &[], now))?;
        port.stats.retried();
        let session = self.sessions.get(slot)?;
        (session.lease, session.socket, session.refused) = (lease, socket, false);
        self.watch(slot)
    }

    /// A socket towards an endpoint that can be reached.
    fn reach_endpoint(
        &self,
        port: &Port,
        door: &Door,
        client: SocketAddr,
        but: &[Target],
        now: Moment,
    ) -> Option<(Lease, OwnedFd)> {
        let mut tried = but.to_vec();
        let (attempts, balancing) = {
            let settings = self.shared.settings();
            (settings.connect_attempts, settings.balancing)
        };
        for _ in 0..attempts.max(1) {
            let endpoint = port.choose(door.reach, client.ip(), &tried, now, balancing)?;
            let target = endpoint.target;
            match self.ask(target) {
                Ok(socket) => return Some((endpoint, socket)),
                Err(error) => {
                    endpoint.failed(now);
                    let id = &port.id;
                    tracing::debug!(service = %id.service, port = &*id.port, endpoint = %target, %error, "an endpoint cannot be reached");
                }
            }
            tried.push(target);
        }
        None
    }

    fn ask(&self, target: Target) -> io::Result<OwnedFd> {
        let mark = self.shared.settings().bypass_mark;
        let socket = open_towards(target.ip, SocketType::DGRAM, mark)?;
        connect(&socket, &SocketAddr::new(target.ip, target.port))?;
        Ok(socket)
    }

    fn take_from_endpoint(&mut self, slot: usize, datagram: &mut [u8]) {
        let mut answered = false;
        for _ in 0..BATCH {
            let Some(session) = self.sessions.get(slot) else { return };
            match recv(&session.socket, &mut *datagram, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => {
                    let Some(door) = self.doors.get(session.key.0) else { return };
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    if sendto(&door.socket, &datagram[..bytes], flags, &session.key.1).is_ok() {
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
            self.sessions.heard(slot, Moment::now(), true);
        }
    }

    /// Ends the sessions that were silent for too long.
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
