//! The metrics of the proxy: kube-proxy's, and a few of Portway's own.
//!
//! [`Metrics`] has one method per event, so that callers need not know labels or buckets. It is cheap to clone.
//! [`Metrics::encode`] returns the text that `/metrics` serves. Names, labels and buckets of kube-proxy's metrics are
//! those of v1.36 (`pkg/proxy/metrics`), so that dashboards and alerts keep working; metrics of a mode that does not
//! run are exposed too, at zero.

mod series;

use portway_client::RequestStatistics;
use portway_dataplane::{CounterSource, Report};
use portway_model::Family;
use portway_model::api::ResourceType;
use portway_serve::{Pending, SourceStatus};
use prometheus_client::registry::Registry;
use series::{KubeProxySeries, KubernetesSeries, PortwaySeries, change_of, code, of, traffic_of};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whether a sync compared all rules with the kernel or only wrote changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// All rules were compared with the kernel.
    Full,
    /// Only changes were written.
    Partial,
}

impl SyncKind {
    /// The kind of a sync with this report.
    pub fn of(report: &Report) -> SyncKind {
        if report.full { SyncKind::Full } else { SyncKind::Partial }
    }
}

/// One of the two traffic policies of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// `internalTrafficPolicy`.
    Internal,
    /// `externalTrafficPolicy`.
    External,
}

/// The number of objects that a repair restored or removed, by how another process had changed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Portway's objects that were deleted.
    pub missing: u64,
    /// Portway's objects that were changed.
    pub altered: u64,
    /// Objects in Portway's tables that another process created.
    pub foreign: u64,
}

/// A state of the node or the configuration that keeps Services from working as expected, or that an operator should
/// know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// No mode is configured.
    DefaultMode,
    /// Pods of this node are not recognized.
    NoLocalDetection,
    /// There is no Node object.
    NodeMissing,
    /// The configuration file is gone.
    ConfigurationFileMissing,
}

impl Condition {
    fn name(self) -> &'static str {
        match self {
            Condition::DefaultMode => "default_mode",
            Condition::NoLocalDetection => "no_local_detection",
            Condition::NodeMissing => "node_missing",
            Condition::ConfigurationFileMissing => "configuration_file_missing",
        }
    }
}

/// All metrics of the process; clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    kubeproxy: KubeProxySeries,
    kubernetes: KubernetesSeries,
    portway: PortwaySeries,
    /// The counters of the running mode.
    mode_counters: Mutex<Option<Arc<dyn CounterSource>>>,
    /// The requests to the API server, if there is one.
    requests: OnceLock<Arc<RequestStatistics>>,
}

impl Metrics {
    /// All metrics, at zero. `version` is a label of `portway_build_info`.
    pub fn new(version: &'static str) -> Self {
        let mut registry = Registry::default();
        let kubeproxy = KubeProxySeries::register(registry.sub_registry_with_prefix("kubeproxy"));
        let portway = PortwaySeries::register(registry.sub_registry_with_prefix("portway"), version);
        let kubernetes = KubernetesSeries::register(registry.sub_registry_with_prefix("kubernetes"), version);
        registry.register_collector(Box::new(portway_serve::metrics::ProcessCollector));
        Metrics(Arc::new(Inner {
            registry,
            kubeproxy,
            kubernetes,
            portway,
            mode_counters: Mutex::default(),
            requests: OnceLock::new(),
        }))
    }

    /// Shows feature gates.
    pub(crate) fn feature_gates(&self, gates: &BTreeMap<String, bool>) {
        for (name, enabled) in gates {
            self.0.kubernetes.feature_enabled(name, *enabled);
        }
    }

    /// A sync succeeded.
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

    /// Whether the configured mode is the one that runs.
    pub(crate) fn mode_active(&self, active: bool) {
        self.0.portway.mode_active.set(i64::from(active));
    }

    /// Whether a condition holds.
    pub(crate) fn condition(&self, condition: Condition, holds: bool) {
        self.0.portway.conditions.get_or_create(&[("condition", condition.name())]).set(i64::from(holds));
    }

    /// The state of the kernel's table of connections, and the packets that were dropped since the last call.
    pub(crate) fn conntrack_table(&self, entries: u64, limit: u64, dropped: u64) {
        let portway = &self.0.portway;
        portway.conntrack_entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
        portway.conntrack_limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
        portway.conntrack_dropped.inc_by(dropped);
    }

    /// How many other agents run in this network namespace.
    pub(crate) fn other_agents(&self, count: usize) {
        self.0.portway.other_agents.set(clamp(count));
    }

    /// A sync was requested.
    pub fn sync_queued(&self, family: Family, at: SystemTime) {
        self.0.kubeproxy.last_queued.get_or_create(&of(family)).set(unix_seconds(at));
    }

    /// A sync failed. `metric` is the metric of kube-proxy in which the mode counts failures.
    pub fn sync_failed(&self, metric: &str, family: Family) {
        let counter = match metric {
            "sync_proxy_rules_nftables_sync_failures_total" => &self.0.kubeproxy.sync_failures,
            _ => &self.0.kubeproxy.iptables.restore_failures,
        };
        counter.get_or_create(&of(family)).inc();
    }

    /// Incremental changes failed, and all rules were compared instead.
    pub fn partial_restore_failed(&self, family: Family, count: u64) {
        self.0.kubeproxy.iptables.partial_failures.get_or_create(&of(family)).inc_by(count);
    }

    /// Sets the number of Portway's rules in an iptables table, and how many of them the last sync wrote.
    pub fn iptables_rules(&self, family: Family, table: &'static str, total: usize, written: usize) {
        self.0.kubeproxy.iptables.rules(family, table, total, written);
    }

    /// Stale rules could not be removed.
    pub fn cleanup_failed(&self, family: Family) {
        self.0.kubeproxy.cleanup_failures.get_or_create(&of(family)).inc();
    }

    /// The rules for a change of endpoints are in force, `after` the change was made.
    pub fn network_programmed(&self, family: Family, after: Duration) {
        self.0.kubeproxy.network_programming.get_or_create(&of(family)).observe(after.as_secs_f64());
    }

    /// Changes of endpoints were received.
    pub fn endpoint_changes(&self, count: u64) {
        self.0.kubeproxy.endpoint_changes.inc_by(count);
    }

    /// Sets the number of changes of endpoints that wait for a sync.
    pub fn endpoint_changes_pending(&self, count: usize) {
        self.0.kubeproxy.endpoint_changes_pending.set(clamp(count));
    }

    /// Changes of Services were received.
    pub fn service_changes(&self, count: u64) {
        self.0.kubeproxy.service_changes.inc_by(count);
    }

    /// Sets the number of changes of Services that wait for a sync.
    pub fn service_changes_pending(&self, count: usize) {
        self.0.kubeproxy.service_changes_pending.set(clamp(count));
    }

    /// Sets the number of Services that have a `Local` policy and no endpoint on this node.
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

    /// Rules that other processes had changed were repaired.
    pub fn drift_repaired(&self, family: Family, drift: Drift) {
        self.0.portway.drift_repairs.get_or_create(&of(family)).inc();
        for (change, count) in drift.by_change() {
            self.0.portway.drift_objects.get_or_create(&change_of(family, change)).inc_by(count);
        }
    }

    /// An object was rejected.
    pub fn rejected(&self, resource: Option<ResourceType>, reason: &'static str) {
        let kind = resource.map_or("unknown", |resource| resource.kind());
        self.0.portway.rejected.get_or_create(&[("kind", kind), ("reason", reason)]).inc();
    }

    /// Sets the number of objects of a kind that are rejected now.
    pub fn rejected_now(&self, resource: ResourceType, count: usize) {
        self.0.portway.rejected_now.get_or_create(&[("kind", resource.kind())]).set(clamp(count));
    }

    /// Sets whether all objects can be read from their source.
    pub fn api_connected(&self, connected: bool) {
        self.0.portway.api_connected.set(connected.into());
    }

    /// Changes that wait for a sync.
    pub fn pending(&self) -> Pending {
        let kubeproxy = &self.0.kubeproxy;
        let count = |gauge: i64| u64::try_from(gauge).unwrap_or(0);
        Pending {
            services: count(kubeproxy.service_changes_pending.get()),
            endpoints: count(kubeproxy.endpoint_changes_pending.get()),
        }
    }

    /// The state of the API server or of the directory of manifests.
    pub fn source(&self) -> SourceStatus {
        SourceStatus { connected: self.0.portway.api_connected.get() == 1 }
    }

    /// Sets the counters of the running mode, if it has any.
    pub(crate) fn set_mode_counters(&self, source: Option<Arc<dyn CounterSource>>) {
        *self.0.mode_counters.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }

    fn mode_counters(&self) -> String {
        let source = self.0.mode_counters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        source.map(|source| source.exposition()).unwrap_or_default()
    }

    /// Sets the source of the metrics about requests to the API server.
    pub(crate) fn set_requests(&self, requests: Arc<RequestStatistics>) {
        _ = self.0.requests.set(requests);
    }

    /// The text for `/metrics`.
    pub fn encode(&self) -> String {
        let requests = self.0.requests.get().map(|requests| requests.exposition()).unwrap_or_default();
        portway_serve::metrics::encode(&self.0.registry) + &self.mode_counters() + &requests
    }
}

impl Drift {
    fn by_change(self) -> [(&'static str, u64); 3] {
        [("missing", self.missing), ("altered", self.altered), ("foreign", self.foreign)]
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
