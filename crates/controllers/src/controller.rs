//! One controller: its queue, how many keys it works on at a time, and the state that outlives a reconciliation.

use crate::cluster::slice::Maintainer;
use crate::cluster::{Cause, Cluster, Touched};
use crate::endpointslice::Context;
use crate::fingerprint;
use crate::key::Key;
use crate::options::Options;
use crate::plan::{Figures, Note, Plan};
use crate::queue::Queue;
use crate::{endpoints, endpointslice, mirroring};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a slice that another process changed is left as it is: two controllers that undo each other's changes do so
/// slowly.
const REPAIR_DELAY: Duration = Duration::from_secs(1);

/// The controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// EndpointSlices of Services with a selector.
    Slices,
    /// Endpoints objects of Services with a selector.
    Endpoints,
    /// EndpointSlices of Endpoints objects that others write.
    Mirroring,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Slices, Kind::Endpoints, Kind::Mirroring];

    /// The name in `--controllers`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Slices => "endpointslice-controller",
            Kind::Endpoints => "endpoints-controller",
            Kind::Mirroring => "endpointslice-mirroring-controller",
        }
    }

    /// The name that kube-controller-manager had before 1.28, which it still understands.
    pub fn old_name(self) -> &'static str {
        match self {
            Kind::Slices => "endpointslice",
            Kind::Endpoints => "endpoint",
            Kind::Mirroring => "endpointslicemirroring",
        }
    }

    /// The name of its queue in metrics.
    pub fn queue_name(self) -> &'static str {
        match self {
            Kind::Slices => "endpoint_slice",
            Kind::Endpoints => "endpoint",
            Kind::Mirroring => "endpoint_slice_mirroring",
        }
    }
}

/// The times of the changes that lead to writes for a Service.
#[derive(Debug, Default)]
struct Trigger {
    /// The earliest change that no plan was made for.
    pending: Option<i64>,
    /// The time in the last plan, until its writes have succeeded.
    planned: Option<i64>,
    /// The fingerprint of the Service's id, if it has been reconciled before.
    known: Option<u64>,
}

/// A controller.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) kind: Kind,
    pub(crate) queue: Queue,
    pub(crate) concurrency: usize,
    pub(crate) working: usize,
    batch_period: Duration,
    max_endpoints: usize,
    max_mirrored: usize,
    triggers: HashMap<Key, Trigger>,
    /// Services that were deleted, and the ids of the Endpoints objects that they left.
    deleted: HashMap<Key, String>,
    figures: HashMap<Key, Figures>,
    total: Figures,
}

impl Controller {
    pub(crate) fn new(kind: Kind, options: &Options) -> Controller {
        Controller {
            kind,
            queue: Queue::default(),
            concurrency: options.concurrency(kind),
            working: 0,
            batch_period: options.batch_period(kind),
            max_endpoints: options.max_endpoints(kind),
            max_mirrored: options.max_endpoints(Kind::Mirroring),
            triggers: HashMap::new(),
            deleted: HashMap::new(),
            figures: HashMap::new(),
            total: Figures::default(),
        }
    }

    /// Adds a Service to the queue if the change is one that this controller has to act on.
    pub(crate) fn touch(&mut self, touched: &Touched, cluster: &Cluster, now: Instant) {
        let Touched { key, by } = touched;
        let selects = || cluster.service(key).is_some_and(|service| service.selects());
        let delay = match (self.kind, *by) {
            (_, Cause::Service) => {
                self.deleted.remove(key);
                Duration::ZERO
            }
            (_, Cause::ServiceDeleted) => {
                self.triggers.remove(key);
                if let Some(endpoints) = cluster.endpoints(key) {
                    self.deleted.insert(key.clone(), endpoints.meta.unpack().uid);
                }
                Duration::ZERO
            }
            (Kind::Mirroring, Cause::Pod { .. } | Cause::Node) => return,
            (_, Cause::Pod { ready_changed }) => {
                let trigger = self.triggers.entry(key.clone()).or_default();
                trigger.pending = trigger.pending.into_iter().chain(ready_changed).min();
                self.batch_period
            }
            (Kind::Slices, Cause::Node) => self.batch_period,
            (Kind::Endpoints, Cause::Node | Cause::Slice(_)) => return,
            (Kind::Slices, Cause::Slice(Maintainer::Slices)) => REPAIR_DELAY.max(self.batch_period),
            // Without a selector, mirrored slices take the place of this controller's.
            (Kind::Slices, Cause::Slice(Maintainer::Mirroring) | Cause::Endpoints) if selects() => return,
            (Kind::Slices, Cause::Slice(Maintainer::Mirroring) | Cause::Endpoints) => self.batch_period,
            (Kind::Endpoints, Cause::Endpoints) => {
                if cluster.endpoints(key).is_none() {
                    self.deleted.remove(key);
                }
                REPAIR_DELAY.max(self.batch_period)
            }
            (Kind::Mirroring, Cause::Slice(Maintainer::Slices)) => return,
            (Kind::Mirroring, Cause::Slice(Maintainer::Mirroring)) => REPAIR_DELAY.max(self.batch_period),
            (Kind::Mirroring, Cause::Endpoints) if selects() => return,
            (Kind::Mirroring, Cause::Endpoints) => self.batch_period,
        };
        self.queue.add(key, now + delay, now);
    }

    /// Decides what to write for a key.
    pub(crate) fn reconcile(&mut self, cluster: &Cluster, key: &Key) -> Plan {
        let trigger = self.trigger(cluster, key);
        let plan = match self.kind {
            Kind::Slices => {
                let (max_endpoints, max_mirrored) = (self.max_endpoints, self.max_mirrored);
                endpointslice::reconcile(cluster, key, Context { max_endpoints, max_mirrored, trigger })
            }
            Kind::Endpoints => {
                let left = self.deleted.get(key);
                let is_left = left.is_some_and(|uid| {
                    cluster.endpoints(key).is_some_and(|endpoints| endpoints.meta.unpack().uid == *uid)
                });
                endpoints::reconcile(cluster, key, trigger, is_left)
            }
            Kind::Mirroring => mirroring::reconcile(cluster, key, self.max_mirrored),
        };
        self.account(key, plan.figures);
        plan
    }

    /// The time of the change that a plan is for: the Service's creation at first, then the earliest change of a Pod.
    fn trigger(&mut self, cluster: &Cluster, key: &Key) -> Option<i64> {
        let service = cluster.service(key)?;
        let uid = fingerprint::of(&service.uid);
        let trigger = self.triggers.entry(key.clone()).or_default();
        let pending = trigger.pending.take();
        let first = (trigger.known != Some(uid)).then_some(service.created).flatten();
        trigger.planned = trigger.planned.into_iter().chain(first.or(pending)).min();
        trigger.known = Some(uid);
        trigger.planned
    }

    /// The writes for a key are done.
    pub(crate) fn succeeded(&mut self, key: &Key) {
        if let Some(trigger) = self.triggers.get_mut(key) {
            trigger.planned = None;
        }
    }

    /// The Event about writes that failed.
    pub(crate) fn failed(&self, key: &Key, operation: &str, error: &str) -> Option<Note> {
        match self.kind {
            Kind::Slices => Some(endpointslice::failed(key, error)),
            Kind::Endpoints => Some(endpoints::failed(key, operation, error)),
            Kind::Mirroring => None,
        }
    }

    /// The figures of all keys together.
    pub(crate) fn total(&self) -> Figures {
        self.total
    }

    fn account(&mut self, key: &Key, figures: Figures) {
        let kept = Figures { added: 0, changed: 0, removed: 0, skipped: 0, ..figures };
        let old = match kept == Figures::default() {
            true => self.figures.remove(key),
            false => self.figures.insert(key.clone(), kept),
        };
        let old = old.unwrap_or_default();
        let total = &mut self.total;
        total.endpoints = total.endpoints + kept.endpoints - old.endpoints;
        total.slices = total.slices + kept.slices - old.slices;
        total.needed = total.needed + kept.needed - old.needed;
    }
}

#[cfg(test)]
mod tests;
