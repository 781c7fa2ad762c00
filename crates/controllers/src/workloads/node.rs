//! Nodes, and when each of them was last heard of.
//!
//! A Node is heard of when its Lease is renewed or its `Ready` condition is reported again. The clocks of Nodes are not
//! compared with this one: what counts is when a renewal was seen here. While the API server cannot be read, no time
//! passes.

use crate::cluster::meta::version;
use crate::cluster::{Cause, Touched};
use crate::key::Key;
use crate::plan::Read;
use portway_api::{Applied, Condition, Event, Lease, MicroTime, Node, Resource, Store, Time};
use std::collections::HashMap;
use std::time::Instant;

/// The namespace of the Leases of Nodes.
pub(crate) const LEASES: &str = "kube-node-lease";

/// The last sign of life of a Node.
#[derive(Clone, Debug)]
struct Sign {
    renewed: Option<MicroTime>,
    reported: Option<Time>,
    seen: Instant,
    /// A renewal of its Lease was seen since this process watches it. That a Lease exists means nothing: it may be old.
    renewed_here: bool,
    /// When it was last read whether the Node is silent, instead of watched.
    checked: Option<Instant>,
}

/// Nodes and their Leases.
#[derive(Debug, Default)]
pub struct Nodes {
    nodes: Store<Key, Node>,
    /// When the Lease of each was renewed.
    leases: Store<Key, Option<MicroTime>>,
    signs: HashMap<Key, Sign>,
    /// The API server cannot be read.
    paused: bool,
}

impl Nodes {
    pub(crate) fn is_listed(&self) -> bool {
        self.nodes.is_listed() && self.leases.is_listed()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Node> {
        self.nodes.get(key)
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.nodes.iter().map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn keep(&mut self, key: &Key) {
        self.nodes.keep(key);
    }

    /// When a Node was last heard of; `None` while that cannot be known.
    pub(crate) fn last_seen(&self, key: &Key) -> Option<Instant> {
        self.signs.get(key).map(|sign| sign.seen).filter(|_| !self.paused)
    }

    /// Whether a Node was ever heard of: it has or had a Lease, or reported that it is ready or not. One that a person
    /// created is left as it is.
    pub(crate) fn was_heard_of(&self, key: &Key) -> bool {
        let signs = self.signs.get(key).is_some_and(|sign| sign.renewed.is_some() || sign.reported.is_some());
        signs || self.has_lease(key)
    }

    /// Whether a Node reports its conditions itself, as a kubelet does.
    pub(crate) fn reports(&self, key: &Key) -> bool {
        self.signs.get(key).is_some_and(|sign| sign.reported.is_some())
    }

    /// Whether the Lease of a Node was seen to be renewed.
    pub(crate) fn is_renewed(&self, key: &Key) -> bool {
        self.signs.get(key).is_some_and(|sign| sign.renewed_here)
    }

    /// Whether it was read, and not only watched, that a Node is silent since a time.
    pub(crate) fn is_checked_since(&self, key: &Key, since: Instant) -> bool {
        self.signs.get(key).and_then(|sign| sign.checked).is_some_and(|checked| checked >= since)
    }

    /// The Lease of a Node, or a Node, was read.
    pub(crate) fn was_read(&mut self, read: &Read, now: Instant) {
        let is_sign =
            read.resource == Node::TYPE || read.resource == Lease::TYPE && read.key.namespace() == LEASES;
        if let Some(sign) = self.signs.get_mut(&Key::new("", read.key.name())).filter(|_| is_sign) {
            sign.checked = Some(now);
        }
    }

    /// Whether a Node has a Lease.
    pub(crate) fn has_lease(&self, key: &Key) -> bool {
        self.leases.get(key).is_some()
    }

    /// The API server cannot be read: renewals are not seen.
    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    /// Renewals are seen again. Every Node gets the whole grace period from now on.
    pub(crate) fn resume(&mut self, now: Instant, touched: &mut Vec<Touched>) {
        self.paused = false;
        for (key, sign) in &mut self.signs {
            sign.seen = sign.seen.max(now);
            sign.renewed_here = false;
            touched.push(Touched { key: key.clone(), by: Cause::NodeHealth });
        }
    }

    pub(super) fn apply_node(&mut self, event: &Event<Node>, now: Instant, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.nodes.begin_list(),
            Event::Apply(node) => {
                let key = Key::of(node);
                let of = |node: &Node| node.metadata.as_ref().map(version).unwrap_or_default();
                if self.nodes.get(&key).is_some_and(|known| of(node) < of(known)) {
                    return self.nodes.keep(&key);
                }
                // In protobuf a time that is not set is there, and zero.
                let reported = ready(node).and_then(|condition| condition.last_heartbeat_time);
                let reported = reported.filter(|time| time.seconds != 0);
                self.heard(&key, now, |sign| std::mem::replace(&mut sign.reported, reported) != reported);
                if self.nodes.apply(key.clone(), node.clone()) != Applied::Unchanged {
                    touched.push(Touched { key, by: Cause::NodeHealth });
                }
            }
            Event::InitDone => {
                for key in self.nodes.finish_list() {
                    self.delete(&key);
                }
            }
            Event::Delete { name, .. } => self.delete(&Key::new("", name)),
        }
    }

    fn delete(&mut self, key: &Key) {
        self.nodes.delete(key);
        self.signs.remove(key);
    }

    pub(super) fn apply_lease(&mut self, event: &Event<Lease>, now: Instant, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.leases.begin_list(),
            Event::Apply(lease) => {
                let Some(meta) = lease.metadata.as_ref().filter(|meta| meta.namespace == LEASES) else {
                    return;
                };
                let key = Key::new("", &meta.name);
                let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time);
                self.leases.apply(key.clone(), renewed);
                let is_new = |sign: &mut Sign| {
                    let known = std::mem::replace(&mut sign.renewed, renewed);
                    sign.renewed_here |= known.is_some() && known != renewed;
                    known != renewed
                };
                if self.heard(&key, now, is_new) {
                    touched.push(Touched { key, by: Cause::NodeLease });
                }
            }
            Event::InitDone => {
                for key in self.leases.finish_list() {
                    self.leases.delete(&key);
                }
            }
            Event::Delete { namespace, name } if namespace == LEASES => {
                let key = Key::new("", name);
                self.leases.delete(&key);
                if self.nodes.get(&key).is_none() {
                    self.signs.remove(&key);
                }
            }
            Event::Delete { .. } => {}
        }
    }

    /// Stores a sign of life, if it is a new one. A Node that was not known before is heard of now.
    fn heard(&mut self, key: &Key, now: Instant, is_new: impl FnOnce(&mut Sign) -> bool) -> bool {
        // A Node that is created again may have its old Lease.
        let renewed = self.leases.get(key).copied().flatten();
        let first = Sign { renewed, reported: None, seen: now, renewed_here: false, checked: None };
        let sign = self.signs.entry(key.clone()).or_insert(first);
        let new = is_new(sign);
        if new {
            sign.seen = now;
        }
        new
    }
}

/// The `Ready` condition of a Node.
pub(crate) fn ready(node: &Node) -> Option<&Condition> {
    node.status.as_ref()?.conditions.iter().find(|condition| condition.kind == "Ready")
}
