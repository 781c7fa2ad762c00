//! Who talks with whom, and in which order they were last heard.

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

/// A client, and the door it comes to.
pub(super) type Key = (usize, SocketAddr);

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) key: Key,
    pub(super) port: Arc<Port>,
    pub(super) lease: Lease,
    /// Connected to the endpoint.
    pub(super) socket: OwnedFd,
    /// Where the client wanted to go,
    pub(super) wanted: SocketAddr,
    /// as the kernel said then.
    pub(super) checked: Moment,
    /// The endpoint was heard to refuse.
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
    heard: Moment,
    answered: bool,
    /// The kernel takes it for one that lasts.
    lasts: bool,
    before: Option<usize>,
    after: Option<usize>,
}

/// The ends of a list: first who was heard longest ago.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    first: Option<usize>,
    last: Option<usize>,
}

/// Still there after two seconds, and answered: what the kernel calls a stream (`nf_conntrack_udp_packet`). A little later than
/// there, lest it be thought of as one before it is.
const LASTING: Duration = Duration::from_millis(2500);

/// All sessions. Those that do not last are in a list of their own: they end sooner, and go first when there
/// are too many, so that a flood of strangers does not drive out who is being served.
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
            heard: now,
            answered: false,
            lasts: false,
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

    /// It was heard now.
    pub(super) fn heard(&mut self, slot: usize, now: Moment, answered: bool) {
        if !self.entries.contains(slot) {
            return;
        }
        self.unlink(slot);
        let entry = &mut self.entries[slot];
        entry.heard = now;
        entry.answered |= answered;
        entry.lasts |= entry.answered && entry.began.after(LASTING) <= now;
        self.append(slot);
    }

    /// Who goes if somebody has to.
    pub(super) fn oldest(&self) -> Option<usize> {
        self.orders[0].first.or(self.orders[1].first)
    }

    /// One that was silent for too long.
    pub(super) fn expired(&self, now: Moment, timeouts: Timeouts) -> Option<usize> {
        let over = |order: &Order, limit: Duration| {
            order.first.filter(|slot| self.entries[*slot].heard.after(limit) <= now)
        };
        over(&self.orders[0], timeouts.passing).or_else(|| over(&self.orders[1], timeouts.lasting))
    }

    /// Those that are so.
    pub(super) fn filter(&self, is: impl Fn(&Session) -> bool) -> Vec<usize> {
        self.entries.iter().filter(|(_, e)| is(&e.session)).map(|(slot, _)| slot).collect()
    }

    fn append(&mut self, slot: usize) {
        let order = &mut self.orders[usize::from(self.entries[slot].lasts)];
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
        let (before, after, order) = (entry.before, entry.after, usize::from(entry.lasts));
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
    use crate::redirect::Reach;
    use portway_dataplane::UserspaceSettings;
    use portway_model::{Family, Protocol};

    /// Sessions with somebody to talk to.
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
            let lease = self.port.choose(Reach::Cluster, client.ip(), &[], now, Default::default());
            let lease = lease.expect("somebody");
            let socket =
                crate::doors::open_socket(client.ip(), rustix::net::SocketType::DGRAM).expect("a socket");
            self.port.stats.opened();
            let permit = self.limits.permit(Use::Session).expect("room");
            let port = self.port.clone();
            self.sessions.insert(
                Session {
                    key: (0, client),
                    port,
                    lease,
                    socket,
                    wanted: client,
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
        Timeouts { passing: Duration::from_secs(29), lasting: Duration::from_secs(119) };

    #[test]
    fn the_oldest_goes_first_and_who_lasts_goes_last() {
        let mut subject = Subject::new();
        let [a, b, c] = [1, 2, 3].map(|n| subject.begin(n, at(n.into())));
        assert_eq!(subject.sessions.oldest(), Some(a));
        subject.sessions.heard(a, at(4), false);
        assert_eq!(subject.sessions.oldest(), Some(b));
        // An answer at once makes no stream; one after two seconds does.
        subject.sessions.heard(b, at(4), true);
        assert_eq!(subject.sessions.oldest(), Some(c));
        subject.sessions.heard(c, at(10), true);
        subject.sessions.heard(c, at(11), false);
        for gone in [a, b, c] {
            assert_eq!(subject.sessions.oldest(), Some(gone));
            subject.sessions.remove(gone);
        }
        assert_eq!((subject.sessions.oldest(), subject.sessions.len()), (None, 0));
        assert_eq!(subject.port.stats.counts().open, 0);
    }

    #[test]
    fn silence_ends_a_session_sooner_if_it_does_not_last() {
        let mut subject = Subject::new();
        let passing = subject.begin(1, at(0));
        let lasting = subject.begin(2, at(0));
        subject.sessions.heard(passing, at(1), true);
        subject.sessions.heard(lasting, at(5), true);
        assert_eq!(subject.sessions.expired(at(29), TIMEOUTS), None);
        assert_eq!(subject.sessions.expired(at(30), TIMEOUTS), Some(passing));
        subject.sessions.remove(passing);
        assert_eq!(subject.sessions.expired(at(123), TIMEOUTS), None);
        assert_eq!(subject.sessions.expired(at(124), TIMEOUTS), Some(lasting));
        assert_eq!(subject.sessions.find(&(0, SocketAddr::from(([192, 0, 2, 1], 1)))), None);
    }
}
