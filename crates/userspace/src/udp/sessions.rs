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
