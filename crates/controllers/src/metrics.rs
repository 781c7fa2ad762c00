//! The metrics of the controllers, with kube-controller-manager's names.

use crate::cluster::service::ServiceState;
use crate::controller::Controller;
use crate::kind::Kind;
use crate::plan::Plan;
use portway_client::RequestStatistics;
use portway_serve::metrics::ProcessCollector;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the loop may be silent before the process counts as stuck.
const STALL: Duration = Duration::from_secs(60);

/// Counters that kube-controller-manager names without the suffix that the exposition adds.
const WITHOUT_SUFFIX: [&str; 3] = [
    "endpoint_slice_controller_changes",
    "endpoint_slice_controller_syncs",
    "endpoint_slice_mirroring_controller_changes",
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerOperation {
    controller: &'static str,
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SyncResult {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Distribution {
    topology: &'static str,
    traffic_distribution: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lease {
    name: String,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;
type Seconds = Gauge<f64, AtomicU64>;

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 10))
}

fn endpoints() -> Histogram {
    Histogram::new(exponential_buckets(2.0, 2.0, 15))
}

fn slices() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 10))
}

/// The metrics. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    requests: Arc<RequestStatistics>,
    lease: Lease,
    beat: Mutex<Instant>,
    leader: Family<Lease, Gauge>,
    depth: Family<Name, Gauge>,
    adds: Family<Name, Counter>,
    retries: Family<Name, Counter>,
    waits: Histograms<Name>,
    works: Histograms<Name>,
    unfinished: Family<Name, Seconds>,
    longest: Family<Name, Seconds>,
    slice_changes: Family<Operation, Counter>,
    slice_syncs: Family<SyncResult, Counter>,
    slice_added: Histogram,
    slice_removed: Histogram,
    slice_per_sync: Histograms<Distribution>,
    slice_endpoints: Gauge,
    slice_number: Gauge,
    slice_needed: Gauge,
    mirror_changes: Family<Operation, Counter>,
    mirror_added: Histogram,
    mirror_updated: Histogram,
    mirror_removed: Histogram,
    mirror_skipped: Histogram,
    mirror_duration: Histogram,
    mirror_endpoints: Gauge,
    mirror_number: Gauge,
    mirror_needed: Gauge,
    endpoints_changes: Family<Operation, Counter>,
    other_changes: Family<ControllerOperation, Counter>,
}

impl Metrics {
    pub(crate) fn new(requests: Arc<RequestStatistics>, lease: &str) -> Metrics {
        let mut inner = Inner {
            registry: Registry::default(),
            requests,
            lease: Lease { name: lease.to_owned() },
            beat: Mutex::new(Instant::now()),
            leader: Family::default(),
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waits: Family::new_with_constructor(durations),
            works: Family::new_with_constructor(durations),
            unfinished: Family::default(),
            longest: Family::default(),
            slice_changes: Family::default(),
            slice_syncs: Family::default(),
            slice_added: endpoints(),
            slice_removed: endpoints(),
            slice_per_sync: Family::new_with_constructor(slices),
            slice_endpoints: Gauge::default(),
            slice_number: Gauge::default(),
            slice_needed: Gauge::default(),
            mirror_changes: Family::default(),
            mirror_added: endpoints(),
            mirror_updated: endpoints(),
            mirror_removed: endpoints(),
            mirror_skipped: endpoints(),
            mirror_duration: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            mirror_endpoints: Gauge::default(),
            mirror_number: Gauge::default(),
            mirror_needed: Gauge::default(),
            endpoints_changes: Family::default(),
            other_changes: Family::default(),
        };
        inner.register();
        Metrics(Arc::new(inner))
    }

    /// The text that `/metrics` serves.
    pub(crate) fn encode(&self) -> String {
        let mut text = portway_serve::metrics::encode(&self.0.registry);
        for name in WITHOUT_SUFFIX {
            text = text.replace(&format!("{name}_total"), name);
        }
        text.push_str(&self.0.requests.exposition());
        text
    }

    /// The loop runs.
    pub(crate) fn beat(&self) {
        *self.0.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether the loop has run lately.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.beat.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < STALL
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.0.leader.get_or_create(&self.0.lease).set(i64::from(leads));
    }

    /// A reconciliation was decided.
    pub(crate) fn reconciled(
        &self,
        kind: Kind,
        plan: &Plan,
        service: Option<&ServiceState>,
        started: Instant,
    ) {
        let (inner, figures) = (&self.0, &plan.figures);
        match kind {
            Kind::Slices => {
                inner.slice_added.observe(figures.added as f64);
                inner.slice_removed.observe(figures.removed as f64);
                let labels = Distribution {
                    topology: if service.is_some_and(|s| s.topology) { "Auto" } else { "Disabled" },
                    traffic_distribution: service.map_or("", |s| s.distribution.name()),
                };
                inner.slice_per_sync.get_or_create(&labels).observe(plan.writes.len() as f64);
            }
            Kind::Mirroring => {
                inner.mirror_added.observe(figures.added as f64);
                inner.mirror_updated.observe(figures.changed as f64);
                inner.mirror_removed.observe(figures.removed as f64);
                inner.mirror_skipped.observe(figures.skipped as f64);
                inner.mirror_duration.observe(started.elapsed().as_secs_f64());
            }
            _ => {}
        }
    }

    /// A write succeeded.
    pub(crate) fn changed(&self, kind: Kind, operation: &'static str) {
        let family = match kind {
            Kind::Slices => &self.0.slice_changes,
            Kind::Endpoints => &self.0.endpoints_changes,
            Kind::Mirroring => &self.0.mirror_changes,
            _ => {
                let labels = ControllerOperation { controller: kind.name(), operation };
                self.0.other_changes.get_or_create(&labels).inc();
                return;
            }
        };
        family.get_or_create(&Operation { operation }).inc();
    }

    /// The work on a key ended.
    pub(crate) fn synced(&self, kind: Kind, result: &'static str) {
        if kind == Kind::Slices {
            self.0.slice_syncs.get_or_create(&SyncResult { result }).inc();
        }
    }

    /// Updates the metrics of a controller's queue, and its totals.
    pub(crate) fn update(&self, controller: &mut Controller, now: Instant) {
        let inner = &self.0;
        let name = Name { name: controller.kind.queue_name() };
        let figures = controller.queue.take_figures();
        inner.depth.get_or_create(&name).set(controller.queue.depth() as i64);
        let to = |counter: &Counter, value: u64| _ = counter.inc_by(value - counter.get());
        to(&inner.adds.get_or_create(&name), figures.adds);
        to(&inner.retries.get_or_create(&name), figures.retries);
        for wait in figures.waits {
            inner.waits.get_or_create(&name).observe(wait.as_secs_f64());
        }
        for work in figures.works {
            inner.works.get_or_create(&name).observe(work.as_secs_f64());
        }
        let (unfinished, longest) = controller.queue.unfinished(now);
        inner.unfinished.get_or_create(&name).set(unfinished.as_secs_f64());
        inner.longest.get_or_create(&name).set(longest.as_secs_f64());
        let total = controller.logic.total();
        let gauges = match controller.kind {
            Kind::Slices => [&inner.slice_endpoints, &inner.slice_number, &inner.slice_needed],
            Kind::Mirroring => [&inner.mirror_endpoints, &inner.mirror_number, &inner.mirror_needed],
            _ => return,
        };
        for (gauge, value) in gauges.into_iter().zip([total.endpoints, total.slices, total.needed]) {
            gauge.set(value as i64);
        }
    }
}

impl Inner {
    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register_collector(Box::new(ProcessCollector));
        macro_rules! register {
            ($($name:literal, $help:literal, $field:ident;)*) => {
                $(registry.register($name, $help, self.$field.clone());)*
            };
        }
        register! {
            "leader_election_master_status", "Whether this process leads: 1 if it does", leader;
            "workqueue_depth", "Keys that are due", depth;
            "workqueue_adds", "Keys that were added", adds;
            "workqueue_retries", "Keys that were added again after a failure", retries;
            "workqueue_queue_duration_seconds", "How long a key waits before it is worked on", waits;
            "workqueue_work_duration_seconds", "How long the work on a key takes", works;
            "workqueue_unfinished_work_seconds", "How long the work that has not ended has taken", unfinished;
            "workqueue_longest_running_processor_seconds", "How long the longest work that has not ended has taken", longest;
            "endpoint_slice_controller_changes", "Writes of EndpointSlices", slice_changes;
            "endpoint_slice_controller_syncs", "Reconciliations of Services by result", slice_syncs;
            "endpoint_slice_controller_endpoints_added_per_sync", "Endpoints added by a reconciliation", slice_added;
            "endpoint_slice_controller_endpoints_removed_per_sync", "Endpoints removed by a reconciliation", slice_removed;
            "endpoint_slice_controller_endpointslices_changed_per_sync", "Slices written by a reconciliation", slice_per_sync;
            "endpoint_slice_controller_endpoints_desired", "Endpoints in all", slice_endpoints;
            "endpoint_slice_controller_num_endpoint_slices", "EndpointSlices in all", slice_number;
            "endpoint_slice_controller_desired_endpoint_slices", "EndpointSlices that would do", slice_needed;
            "endpoint_slice_mirroring_controller_changes", "Writes of mirrored EndpointSlices", mirror_changes;
            "endpoint_slice_mirroring_controller_endpoints_added_per_sync", "Endpoints added by a reconciliation", mirror_added;
            "endpoint_slice_mirroring_controller_endpoints_updated_per_sync", "Endpoints changed by a reconciliation", mirror_updated;
            "endpoint_slice_mirroring_controller_endpoints_removed_per_sync", "Endpoints removed by a reconciliation", mirror_removed;
            "endpoint_slice_mirroring_controller_addresses_skipped_per_sync", "Addresses that cannot be mirrored", mirror_skipped;
            "endpoint_slice_mirroring_controller_endpoints_sync_duration", "Seconds that a reconciliation takes", mirror_duration;
            "endpoint_slice_mirroring_controller_endpoints_desired", "Mirrored endpoints in all", mirror_endpoints;
            "endpoint_slice_mirroring_controller_num_endpoint_slices", "Mirrored EndpointSlices in all", mirror_number;
            "endpoint_slice_mirroring_controller_desired_endpoint_slices", "Mirrored EndpointSlices that would do", mirror_needed;
            "portway_endpoints_controller_changes", "Writes of Endpoints objects", endpoints_changes;
            "portway_controller_changes", "Writes of the controllers of workloads and of the garbage collection", other_changes;
        }
    }
}
