//! The table of UDP sessions, ordered by their last use.

use super::timeouts::Timeouts;
use crate::balance::{Lease, Port};
use crate::clock::Moment;
use crate::limits::Permit;
use rustix::fd::OwnedFd;
use slab::Slab;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The listener's slot and the client.
pub(super) type Key = (usize, SocketAddr);

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) key: Key,
    pub(super) port: Arc<Port>,
    pub(super) lease: Lease,
    /// Connected to the endpoint.
    pub(super) socket: OwnedFd,
    /// The original destination of the flow.
    pub(super) original: SocketAddr,
    /// When that was last looked up.
    pub(super) checked: Moment,
    /// The endpoint has refused a datagram (ICMP port unreachable).
    pub(super) refused: bool,
    pub(super) _permit: Permit,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.port.stats.closed();
    }
}

#[derive(Debug)]
struct Entry {
    session: Session,
    began: Moment,
    last_used: Moment,
    answered: bool,
    /// The kernel treats the flow as a stream.
    is_stream: bool,
    before: Option<usize>,
    after: Option<usize>,
}

/// The ends of a linked list, the least recently used session first.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    first: Option<usize>,
    last: Option<usize>,
}

/// The kernel treats an answered flow as a stream after two seconds (`nf_conntrack_udp_packet`). A session becomes one
/// a little later, so that it never has the longer time-out before its flow has it.
const STREAM_AFTER: Duration = Duration::from_millis(2500);

/// All sessions. Those that are not streams are in a list of their own: they expire sooner, and are evicted first when
/// there are too many, so that a flood of new clients does not evict clients that are being served.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    entries: Slab<Entry>,
    by_key: HashMap<Key, usize>,
    orders: [Order; 2],
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    pub(super) fn get(&mut self, slot: usize) -> Option<&mut Session> {
        self.entries.get_mut(slot).map(|entry| &mut entry.session)
    }

    pub(super) fn insert(&mut self, session: Session, now: Moment) -> usize {
        let key = session.key;
        let entry = Entry {
            session,
            began: now,
            last_used: now,
            answered: false,
            is_stream: false,
            before: None,
            after: None,
        };
        let slot = self.entries.insert(entry);
        self.by_key.insert(key, slot);
        self.append(slot);
        slot
    }

    pub(super) fn remove(&mut self, slot: usize) {
        self.unlink(slot);
        if let Some(entry) = self.entries.try_remove(slot) {
            self.by_key.remove(&entry.session.key);
        }
    }

    /// Records a datagram of a session; `answered` if it is from the endpoint.
    pub(super) fn touch(&mut self, slot: usize, now: Moment, answered: bool) {
        if !self.entries.contains(slot) {
            return;
        }
        self.unlink(slot);
        let entry = &mut self.entries[slot];
        entry.last_used = now;
        entry.answered |= answered;
        entry.is_stream |= entry.answered && entry.began.after(STREAM_AFTER) <= now;
        self.append(slot);
    }

    /// The session to evict when there are too many.
    pub(super) fn oldest(&self) -> Option<usize> {
        self.orders[0].first.or(self.orders[1].first)
    }

    /// A session that was idle for too long.
    pub(super) fn expired(&self, now: Moment, timeouts: Timeouts) -> Option<usize> {
        let expired = |order: &Order, limit: Duration| {
            order.first.filter(|slot| self.entries[*slot].last_used.after(limit) <= now)
        };
        expired(&self.orders[0], timeouts.unreplied).or_else(|| expired(&self.orders[1], timeouts.stream))
    }

    /// The slots of the sessions that match.
    pub(super) fn filter(&self, matches: impl Fn(&Session) -> bool) -> Vec<usize> {
        self.entries.iter().filter(|(_, e)| matches(&e.session)).map(|(slot, _)| slot).collect()
    }

    fn append(&mut self, slot: usize) {
        let order = &mut self.orders[usize::from(self.entries[slot].is_stream)];
        let before = order.last.replace(slot);
        order.first.get_or_insert(slot);
        if let Some(before) = before {
            self.entries[before].after = Some(slot);
        }
        self.entries[slot].before = before;
        self.entries[slot].after = None;
    }

    fn unlink(&mut self, slot: usize) {
        let Some(entry) = self.entries.get(slot) else { return };
        let (before, after, order) = (entry.before, entry.after, usize::from(entry.is_stream));
        match before {
            Some(before) => self.entries[before].after = after,
            None => self.orders[order].first = after,
        }
        match after {
            Some(after) => self.entries[after].before = before,
            None => self.orders[order].last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::PortId;
    use crate::limits::{Limits, Use};
    use crate::redirect::EndpointScope;
    use portway_dataplane::UserspaceSettings;
    use portway_model::{Family, Protocol};

    /// Sessions of a port with endpoints.
    struct Subject {
        sessions: Sessions,
        port: Arc<Port>,
        limits: Arc<Limits>,
    }

    impl Subject {
        fn new() -> Subject {
            let plan = crate::redirect::tests::web();
            let (service, port) = (plan.name.clone(), plan.ports[0].name.clone());
            let id = PortId { service, port, protocol: Protocol::Udp, family: Family::V4 };
            let port = Arc::new(Port::new(id));
            port.update(&plan, &plan.ports[0], &UserspaceSettings::default(), at(0));
            Subject { sessions: Sessions::default(), port, limits: Arc::new(Limits::new(4096, 1)) }
        }

        fn begin(&mut self, n: u16, now: Moment) -> usize {
            let client = SocketAddr::from(([192, 0, 2, 1], n));
            let lease = self.port.choose(EndpointScope::Cluster, client.ip(), &[], now, Default::default());
            let lease = lease.expect("an endpoint");
            let socket =
                crate::listeners::open_socket(client.ip(), rustix::net::SocketType::DGRAM).expect("a socket");
            self.port.stats.opened();
            let permit = self.limits.permit(Use::Session).expect("descriptors");
            let port = self.port.clone();
            self.sessions.insert(
                Session {
                    key: (0, client),
                    port,
                    lease,
                    socket,
                    original: client,
                    checked: now,
                    refused: false,
                    _permit: permit,
                },
                now,
            )
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::of(Duration::from_secs(seconds))
    }

    const TIMEOUTS: Timeouts =
        Timeouts { unreplied: Duration::from_secs(29), stream: Duration::from_secs(119) };

    #[test]
    fn the_oldest_session_is_evicted_first_and_streams_last() {
        let mut subject = Subject::new();
        let [a, b, c] = [1, 2, 3].map(|n| subject.begin(n, at(n.into())));
        assert_eq!(subject.sessions.oldest(), Some(a));
        subject.sessions.touch(a, at(4), false);
        assert_eq!(subject.sessions.oldest(), Some(b));
        // An answer within two seconds makes no stream; a later one does.
        subject.sessions.touch(b, at(4), true);
        assert_eq!(subject.sessions.oldest(), Some(c));
        subject.sessions.touch(c, at(10), true);
        subject.sessions.touch(c, at(11), false);
        for expected in [a, b, c] {
            assert_eq!(subject.sessions.oldest(), Some(expected));
            subject.sessions.remove(expected);
        }
        assert_eq!((subject.sessions.oldest(), subject.sessions.len()), (None, 0));
        assert_eq!(subject.port.stats.counts().open, 0);
    }

    #[test]
    fn an_idle_session_expires_sooner_if_it_is_not_a_stream() {
        let mut subject = Subject::new();
        let unreplied = subject.begin(1, at(0));
        let stream = subject.begin(2, at(0));
        subject.sessions.touch(unreplied, at(1), true);
        subject.sessions.touch(stream, at(5), true);
        assert_eq!(subject.sessions.expired(at(29), TIMEOUTS), None);
        assert_eq!(subject.sessions.expired(at(30), TIMEOUTS), Some(unreplied));
        subject.sessions.remove(unreplied);
        assert_eq!(subject.sessions.expired(at(123), TIMEOUTS), None);
        assert_eq!(subject.sessions.expired(at(124), TIMEOUTS), Some(stream));
        assert_eq!(subject.sessions.find(&(0, SocketAddr::from(([192, 0, 2, 1], 1)))), None);
    }
}
