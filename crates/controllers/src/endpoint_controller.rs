//! The endpoint controllers between a change and a plan: which changes lead to work, and the times that are written.

use crate::cluster::slice::Maintainer;
use crate::cluster::{Cause, Cluster, Touched};
use crate::controller::{Clock, Logic};
use crate::endpointslice::Context;
use crate::execute::Failure;
use crate::fingerprint;
use crate::key::Key;
use crate::kind::Kind;
use crate::options::Options;
use crate::plan::{Figures, Note, Plan};
use crate::views::Views;
use crate::{endpoints, endpointslice, mirroring};
use portway_api::{Endpoints, Resource, Service};
use portway_client::Regarding;
use std::collections::HashMap;
use std::time::Duration;

/// How long a slice that another process changed is left as it is: two controllers that undo each other's changes do so
/// slowly.
const REPAIR_DELAY: Duration = Duration::from_secs(1);

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

/// The decisions of one of the endpoint controllers.
#[derive(Debug)]
pub(crate) struct EndpointController {
    kind: Kind,
    batch_period: Duration,
    max_endpoints: usize,
    max_mirrored: usize,
    triggers: HashMap<Key, Trigger>,
    /// Services that were deleted, and the ids of the Endpoints objects that they left.
    deleted: HashMap<Key, String>,
    figures: HashMap<Key, Figures>,
    total: Figures,
}

impl EndpointController {
    pub(crate) fn new(kind: Kind, options: &Options) -> EndpointController {
        EndpointController {
            kind,
            batch_period: options.batch_period(kind),
            max_endpoints: options.max_endpoints(kind),
            max_mirrored: options.max_endpoints(Kind::Mirroring),
            triggers: HashMap::new(),
            deleted: HashMap::new(),
            figures: HashMap::new(),
            total: Figures::default(),
        }
    }

    fn delay(&mut self, touched: &Touched, cluster: &Cluster) -> Option<Duration> {
        let Touched { key, by } = touched;
        let selects = || cluster.service(key).is_some_and(|service| service.selects());
        Some(match (self.kind, *by) {
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
            (Kind::Mirroring, Cause::Pod { .. } | Cause::Node) => return None,
            (_, Cause::Pod { ready_changed }) => {
                let trigger = self.triggers.entry(key.clone()).or_default();
                trigger.pending = trigger.pending.into_iter().chain(ready_changed).min();
                self.batch_period
            }
            (Kind::Slices, Cause::Node) => self.batch_period,
            (Kind::Endpoints, Cause::Node | Cause::Slice(_)) => return None,
            (Kind::Slices, Cause::Slice(Maintainer::Slices)) => REPAIR_DELAY.max(self.batch_period),
            // Without a selector, mirrored slices take the place of this controller's.
            (Kind::Slices, Cause::Slice(Maintainer::Mirroring) | Cause::Endpoints) if selects() => {
                return None;
            }
            (Kind::Slices, Cause::Slice(Maintainer::Mirroring) | Cause::Endpoints) => self.batch_period,
            (Kind::Endpoints, Cause::Endpoints) => {
                if cluster.endpoints(key).is_none() {
                    self.deleted.remove(key);
                }
                REPAIR_DELAY.max(self.batch_period)
            }
            (Kind::Mirroring, Cause::Slice(Maintainer::Slices)) => return None,
            (Kind::Mirroring, Cause::Slice(Maintainer::Mirroring)) => REPAIR_DELAY.max(self.batch_period),
            (Kind::Mirroring, Cause::Endpoints) if selects() => return None,
            (Kind::Mirroring, Cause::Endpoints) => self.batch_period,
            _ => return None,
        })
    }

    /// Decides what to write for a key.
    fn decide(&mut self, cluster: &Cluster, key: &Key) -> Plan {
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
            _ => mirroring::reconcile(cluster, key, self.max_mirrored),
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

impl Logic for EndpointController {
    fn delay(&mut self, touched: &Touched, views: &Views) -> Option<Duration> {
        self.delay(touched, &views.cluster)
    }

    fn reconcile(&mut self, views: &Views, key: &Key, _: Clock) -> Plan {
        self.decide(&views.cluster, key)
    }

    fn succeeded(&mut self, key: &Key) {
        if let Some(trigger) = self.triggers.get_mut(key) {
            trigger.planned = None;
        }
    }

    fn failed(&mut self, key: &Key, failure: &Failure) -> Option<Note> {
        match self.kind {
            Kind::Slices => Some(endpointslice::failed(key, &failure.message)),
            Kind::Endpoints => Some(endpoints::failed(key, failure.operation, &failure.message)),
            _ => None,
        }
    }

    /// Events of the mirroring controller are about Endpoints objects, those of the others about Services.
    fn subject(&self, views: &Views, key: &Key) -> Regarding {
        let (resource, uid) = match self.kind {
            Kind::Mirroring => (Endpoints::TYPE, views.cluster.endpoints(key).map(|e| e.meta.unpack().uid)),
            _ => (Service::TYPE, views.cluster.service(key).map(|service| service.uid.to_string())),
        };
        key.regarding(resource, uid.unwrap_or_default())
    }

    fn keys(&self, views: &Views) -> Vec<Key> {
        views.cluster.service_keys()
    }

    fn total(&self) -> Figures {
        self.total
    }
}

#[cfg(test)]
mod tests;
