//! One controller: its queue, how many keys it works on at a time, and the state that outlives a reconciliation.

use crate::cluster::slice::Maintainer;
use crate::cluster::{Cause, Cluster, Touched};
use crate::endpointslice::Context;
use crate::key::Key;
use crate::options::Options;
use crate::plan::{Figures, Note, Plan};
use crate::queue::Queue;
use crate::{endpoints, endpointslice, mirroring};
use std::collections::{HashMap, HashSet};
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
    /// The earliest change that has not led to a write.
    pending: Option<i64>,
    /// It has been reconciled before.
    known: bool,
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
    triggers: HashMap<Key, Trigger>,
    /// Services that were deleted while the controller ran.
    deleted: HashSet<Key>,
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
            triggers: HashMap::new(),
            deleted: HashSet::new(),
            figures: HashMap::new(),
            total: Figures::default(),
        }
    }

    /// Adds a Service to the queue if the change is one that this controller has to act on.
    pub(crate) fn touch(&mut self, touched: &Touched, now: Instant) {
        let delay = match (self.kind, touched.by) {
            (_, Cause::Service) => {
                self.deleted.remove(&touched.key);
                Duration::ZERO
            }
            (_, Cause::ServiceDeleted) => {
                self.deleted.insert(touched.key.clone());
                Duration::ZERO
            }
            (Kind::Mirroring, Cause::Pod { .. } | Cause::Node) => return,
            (_, Cause::Pod { ready_changed }) => {
                let trigger = self.triggers.entry(touched.key.clone()).or_default();
                trigger.pending = trigger.pending.into_iter().chain(ready_changed).min();
                self.batch_period
            }
            (Kind::Slices, Cause::Node) => self.batch_period,
            (Kind::Endpoints, Cause::Node | Cause::Slice(_)) => return,
            (Kind::Slices, Cause::Slice(Maintainer::Slices)) => REPAIR_DELAY.max(self.batch_period),
            // A mirrored slice may be in place of one of this controller.
            (Kind::Slices, Cause::Slice(Maintainer::Mirroring) | Cause::Endpoints) => self.batch_period,
            (Kind::Endpoints, Cause::Endpoints) => REPAIR_DELAY.max(self.batch_period),
            (Kind::Mirroring, Cause::Slice(Maintainer::Slices)) => return,
            (Kind::Mirroring, Cause::Slice(Maintainer::Mirroring)) => REPAIR_DELAY.max(self.batch_period),
            (Kind::Mirroring, Cause::Endpoints) => self.batch_period,
        };
        self.queue.add(&touched.key, now + delay, now);
    }

    /// Decides what to write for a key.
    pub(crate) fn reconcile(&mut self, cluster: &Cluster, key: &Key) -> Plan {
        let service = cluster.service(key);
        let trigger = self.triggers.entry(key.clone()).or_default();
        let trigger = match trigger.known {
            true => trigger.pending,
            false => service.and_then(|service| service.created),
        };
        let plan = match self.kind {
            Kind::Slices => {
                endpointslice::reconcile(cluster, key, Context { max_endpoints: self.max_endpoints, trigger })
            }
            Kind::Endpoints => endpoints::reconcile(cluster, key, trigger, self.deleted.contains(key)),
            Kind::Mirroring => mirroring::reconcile(cluster, key, self.max_endpoints),
        };
        self.account(key, plan.figures);
        plan
    }

    /// The writes for a key are done.
    pub(crate) fn succeeded(&mut self, cluster: &Cluster, key: &Key) {
        self.deleted.remove(key);
        match cluster.service(key) {
            Some(_) => {
                let trigger = self.triggers.entry(key.clone()).or_default();
                *trigger = Trigger { pending: None, known: true };
            }
            None => _ = self.triggers.remove(key),
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
