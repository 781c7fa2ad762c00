//! What the proxy counts and times, under kube-proxy's names and a few of its own.
//!
//! [`Metrics`] has one plain method per thing that happens; who calls it need not know of labels or buckets. It is
//! cheap to clone. [`Metrics::encode`] gives the text that `/metrics` serves. Names, labels and buckets are those of
//! kube-proxy v1.36 (`pkg/proxy/metrics`), so that dashboards and alerts go on working; metrics of a mode
//! that does not run are there too, at zero.

mod carried;
mod counted;
mod exposition;
mod process;
mod series;

pub use exposition::CONTENT_TYPE;

use portway_model::Family;
use portway_model::api::Kind;
use portway_userspace::Link;
use prometheus_client::registry::Registry;
use series::{KubeProxySeries, OwnSeries, change_of, code, of, traffic_of};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whether a sync wrote everything or only what changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// Everything was compared with the kernel.
    Full,
    /// Only what changed was written.
    Partial,
}

/// Which of a Service's two traffic policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// `internalTrafficPolicy`.
    Internal,
    /// `externalTrafficPolicy`.
    External,
}

/// What had become of the objects that a drift repair put right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Ours, and gone.
    pub missing: u64,
    /// Ours, and not as we left it.
    pub altered: u64,
    /// In our table, and not ours.
    pub foreign: u64,
}

/// All metrics of the process; clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    kubeproxy: KubeProxySeries,
    own: OwnSeries,
    /// Who carries connections, in userspace mode.
    carrier: Mutex<Option<Arc<Link>>>,
}

impl Metrics {
    /// All metrics, at zero. `version` is shown by `portway_build_info`.
    pub fn new(version: &'static str) -> Self {
        let mut registry = Registry::default();
        let kubeproxy = KubeProxySeries::register(registry.sub_registry_with_prefix("kubeproxy"));
        let own = OwnSeries::register(registry.sub_registry_with_prefix("portway"), version);
        registry.register_collector(Box::new(process::ProcessCollector));
        registry.register_collector(Box::new(counted::CountedCollector));
        Metrics(Arc::new(Inner { registry, kubeproxy, own, carrier: Mutex::default() }))
    }

    /// A sync ended well.
    pub fn sync_done(&self, family: Family, kind: SyncKind, took: Duration, at: SystemTime) {
        let seconds = took.as_secs_f64();
        self.0.kubeproxy.sync.get_or_create(&of(family)).observe(seconds);
        let by_kind = match kind {
            SyncKind::Full => &self.0.kubeproxy.sync_full,
            SyncKind::Partial => &self.0.kubeproxy.sync_partial,
        };
        by_kind.get_or_create(&of(family)).observe(seconds);
        self.0.kubeproxy.last_sync.get_or_create(&of(family)).set(unix_seconds(at));
    }

    /// A sync was asked for.
    pub fn sync_queued(&self, family: Family, at: SystemTime) {
        self.0.kubeproxy.last_queued.get_or_create(&of(family)).set(unix_seconds(at));
    }

    /// A sync failed.
    pub fn sync_failed(&self, family: Family) {
        self.0.kubeproxy.sync_failures.get_or_create(&of(family)).inc();
    }

    /// `iptables-restore` failed.
    pub fn restore_failed(&self, family: Family) {
        self.0.kubeproxy.iptables.restore_failures.get_or_create(&of(family)).inc();
    }

    /// It failed to make single changes, and everything was compared instead.
    pub fn partial_restore_failed(&self, family: Family, count: u64) {
        self.0.kubeproxy.iptables.partial_failures.get_or_create(&of(family)).inc_by(count);
    }

    /// How many rules of ours a table of iptables has, and how many of them the last sync wrote.
    pub fn iptables_rules(&self, family: Family, table: &'static str, total: usize, written: usize) {
        self.0.kubeproxy.iptables.rules(family, table, total, written);
    }

    /// Stale rules could not be removed.
    pub fn cleanup_failed(&self, family: Family) {
        self.0.kubeproxy.cleanup_failures.get_or_create(&of(family)).inc();
    }

    /// The rules follow a change that was made `after` ago.
    pub fn network_programmed(&self, family: Family, after: Duration) {
        self.0.kubeproxy.network_programming.get_or_create(&of(family)).observe(after.as_secs_f64());
    }

    /// Changes of endpoints came in.
    pub fn endpoint_changes(&self, count: u64) {
        self.0.kubeproxy.endpoint_changes.inc_by(count);
    }

    /// So many changes of endpoints wait for a sync.
    pub fn endpoint_changes_pending(&self, count: usize) {
        self.0.kubeproxy.endpoint_changes_pending.set(clamp(count));
    }

    /// Changes of Services came in.
    pub fn service_changes(&self, count: u64) {
        self.0.kubeproxy.service_changes.inc_by(count);
    }

    /// So many changes of Services wait for a sync.
    pub fn service_changes_pending(&self, count: usize) {
        self.0.kubeproxy.service_changes_pending.set(clamp(count));
    }

    /// So many Services have a `Local` policy and no endpoint here.
    pub fn no_local_endpoints(&self, family: Family, traffic: Traffic, count: usize) {
        self.0.kubeproxy.no_local_endpoints.get_or_create(&traffic_of(traffic, family)).set(clamp(count));
    }

    /// Stale connection tracking entries were removed.
    pub fn conntrack_reconciled(&self, family: Family, took: Duration, deleted: u64) {
        self.0.kubeproxy.conntrack.get_or_create(&of(family)).observe(took.as_secs_f64());
        self.0.kubeproxy.conntrack_deleted.get_or_create(&of(family)).inc_by(deleted);
    }

    /// `/healthz` was answered.
    pub fn healthz(&self, healthy: bool) {
        self.0.kubeproxy.healthz.get_or_create(&code(healthy)).inc();
    }

    /// `/livez` was answered.
    pub fn livez(&self, healthy: bool) {
        self.0.kubeproxy.livez.get_or_create(&code(healthy)).inc();
    }

    /// What others had done to the rules was put right.
    pub fn drift_repaired(&self, family: Family, drift: Drift) {
        self.0.own.drift_repairs.get_or_create(&of(family)).inc();
        for (change, count) in drift.by_change() {
            self.0.own.drift_objects.get_or_create(&change_of(family, change)).inc_by(count);
        }
    }

    /// An object was refused.
    pub fn rejected(&self, kind: Kind, reason: &'static str) {
        self.0.own.rejected.get_or_create(&[("kind", kind_name(kind)), ("reason", reason)]).inc();
    }

    /// So many objects of a kind are refused as they now stand.
    pub fn rejected_now(&self, kind: Kind, count: usize) {
        self.0.own.rejected_now.get_or_create(&[("kind", kind_name(kind))]).set(clamp(count));
    }

    /// Whether the API server is being watched.
    pub fn api_connected(&self, connected: bool) {
        self.0.own.api_connected.set(connected.into());
    }

    /// Connections are carried by this one, or by nobody.
    pub(crate) fn carrier(&self, link: Option<Arc<Link>>) {
        *self.0.carrier.lock().unwrap_or_else(PoisonError::into_inner) = link;
    }

    /// What the userspace mode has counted.
    fn carried(&self) -> String {
        let link = self.0.carrier.lock().unwrap_or_else(PoisonError::into_inner).clone();
        link.map(|link| carried::text(&link.counts())).unwrap_or_default()
    }

    /// The text for `/metrics`, in the format of [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.0.registry) {
            Ok(()) => exposition::from_open_metrics(&text) + &self.carried(),
            // Writing to a string cannot fail; should it, a scrape without samples is noticed by Prometheus.
            Err(std::fmt::Error) => String::new(),
        }
    }
}

impl Drift {
    fn by_change(self) -> [(&'static str, u64); 3] {
        [("missing", self.missing), ("altered", self.altered), ("foreign", self.foreign)]
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "Service",
        Kind::EndpointSlice => "EndpointSlice",
        Kind::Node => "Node",
        Kind::ServiceCidr => "ServiceCIDR",
    }
}

fn clamp(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests;
