//! The series: their names, labels and buckets, and which of them exist from the start.
//!
//! prometheus-client appends `_total` to the name of a counter, so the names here do not have it. Gauges that are
//! called `..._total` upstream have it here too.

use super::{Drift, Traffic};
use portway_model::Family as IpFamily;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use prometheus_client::registry::{Metric, Registry};
use std::sync::atomic::AtomicU64;

pub(super) type Labels<const N: usize> = [(&'static str, &'static str); N];
pub(super) type Counters<const N: usize> = Family<Labels<N>, Counter>;
pub(super) type Gauges<const N: usize> = Family<Labels<N>, Gauge>;
pub(super) type Timestamps = Family<Labels<1>, Gauge<f64, AtomicU64>>;
pub(super) type Histograms = Family<Labels<1>, Histogram, fn() -> Histogram>;

/// kube-proxy's metrics, `kubeproxy_...`.
#[derive(Debug)]
pub(super) struct KubeProxySeries {
    pub(super) iptables: IptablesSeries,
    pub(super) sync: Histograms,
    pub(super) sync_full: Histograms,
    pub(super) sync_partial: Histograms,
    pub(super) last_sync: Timestamps,
    pub(super) last_queued: Timestamps,
    pub(super) network_programming: Histograms,
    pub(super) endpoint_changes: Counter,
    pub(super) endpoint_changes_pending: Gauge,
    pub(super) service_changes: Counter,
    pub(super) service_changes_pending: Gauge,
    pub(super) sync_failures: Counters<1>,
    pub(super) cleanup_failures: Counters<1>,
    pub(super) no_local_endpoints: Gauges<2>,
    pub(super) healthz: Counters<1>,
    pub(super) livez: Counters<1>,
    pub(super) conntrack: Histograms,
    pub(super) conntrack_deleted: Counters<1>,
}

impl KubeProxySeries {
    pub(super) fn register(r: &mut Registry) -> Self {
        let series = KubeProxySeries {
            iptables: IptablesSeries::register(r),
            sync: add(r, "sync_proxy_rules_duration_seconds", "How long a sync took", timings()),
            sync_full: add(
                r,
                "sync_full_proxy_rules_duration_seconds",
                "How long a full sync took",
                timings(),
            ),
            sync_partial: add(
                r,
                "sync_partial_proxy_rules_duration_seconds",
                "How long a partial sync took",
                timings(),
            ),
            last_sync: family(r, "sync_proxy_rules_last_timestamp_seconds", "When rules were last synced"),
            last_queued: family(
                r,
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "When a sync was last requested",
            ),
            network_programming: add(
                r,
                "network_programming_duration_seconds",
                "From the change of a pod or Service to the rules being in force",
                Family::new_with_constructor(network_programming as fn() -> Histogram),
            ),
            endpoint_changes: single(r, "sync_proxy_rules_endpoint_changes", "Changes of endpoints seen"),
            endpoint_changes_pending: single(
                r,
                "sync_proxy_rules_endpoint_changes_pending",
                "Changes of endpoints not yet synced",
            ),
            service_changes: single(r, "sync_proxy_rules_service_changes", "Changes of Services seen"),
            service_changes_pending: single(
                r,
                "sync_proxy_rules_service_changes_pending",
                "Changes of Services not yet synced",
            ),
            sync_failures: family(r, "sync_proxy_rules_nftables_sync_failures", "Syncs that failed"),
            cleanup_failures: family(
                r,
                "sync_proxy_rules_nftables_cleanup_failures",
                "Removals of stale rules that failed",
            ),
            no_local_endpoints: family(
                r,
                "sync_proxy_rules_no_local_endpoints_total",
                "Services with a Local traffic policy and no endpoint on this node",
            ),
            healthz: family(r, "proxy_healthz", "Answers of /healthz by status"),
            livez: family(r, "proxy_livez", "Answers of /livez by status"),
            conntrack: add(
                r,
                "conntrack_reconciler_sync_duration_seconds",
                "How long the removal of stale connection tracking entries took",
                timings(),
            ),
            conntrack_deleted: family(
                r,
                "conntrack_reconciler_deleted_entries",
                "Connection tracking entries removed",
            ),
        };
        series.start_at_zero();
        series
    }

    /// Creates the series whose labels are known beforehand, so that a first failure shows as an increase. Not the
    /// timestamps: a zero would mean a sync in 1970.
    fn start_at_zero(&self) {
        for family in IpFamily::ALL {
            let timings =
                [&self.sync, &self.sync_full, &self.sync_partial, &self.network_programming, &self.conntrack];
            timings.into_iter().for_each(|timings| drop(timings.get_or_create(&of(family))));
            let counters = [&self.sync_failures, &self.cleanup_failures, &self.conntrack_deleted];
            counters.into_iter().for_each(|counters| drop(counters.get_or_create(&of(family))));
            for traffic in [Traffic::Internal, Traffic::External] {
                drop(self.no_local_endpoints.get_or_create(&traffic_of(traffic, family)));
            }
        }
        for healthy in [true, false] {
            drop(self.healthz.get_or_create(&code(healthy)));
            drop(self.livez.get_or_create(&code(healthy)));
        }
    }
}

/// Metrics about iptables rules. They exist in every mode, because dashboards for kube-proxy query them.
#[derive(Debug)]
pub(super) struct IptablesSeries {
    pub(super) restore_failures: Counters<1>,
    pub(super) partial_failures: Counters<1>,
    total: Gauges<2>,
    last: Gauges<2>,
}

impl IptablesSeries {
    fn register(r: &mut Registry) -> IptablesSeries {
        let series = IptablesSeries {
            restore_failures: family(
                r,
                "sync_proxy_rules_iptables_restore_failures",
                "Runs of iptables-restore that failed",
            ),
            partial_failures: family(
                r,
                "sync_proxy_rules_iptables_partial_restore_failures",
                "Partial runs of iptables-restore that failed",
            ),
            total: family(r, "sync_proxy_rules_iptables_total", "Rules of iptables mode"),
            last: family(
                r,
                "sync_proxy_rules_iptables_last",
                "Rules that iptables mode wrote in its last sync",
            ),
        };
        for ip_family in IpFamily::ALL {
            drop(series.restore_failures.get_or_create(&of(ip_family)));
            drop(series.partial_failures.get_or_create(&of(ip_family)));
            ["filter", "nat"].into_iter().for_each(|table| series.rules(ip_family, table, 0, 0));
        }
        series
    }

    /// Sets how many rules a table has, and how many were written last.
    pub(super) fn rules(&self, ip_family: IpFamily, table: &'static str, total: usize, last: usize) {
        let labels = [("table", table), ("ip_family", name(ip_family))];
        let set = |gauges: &Gauges<2>, count: usize| {
            gauges.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        set(&self.total, total);
        set(&self.last, last);
    }
}

/// The metrics that every component of Kubernetes has, `kubernetes_...`.
#[derive(Debug)]
pub(super) struct KubernetesSeries {
    features: Family<Vec<(String, String)>, Gauge>,
}

impl KubernetesSeries {
    pub(super) fn register(r: &mut Registry, version: &'static str) -> Self {
        let mut numbers = version.split('.');
        let mut number = || numbers.next().unwrap_or_default();
        let build: Gauges<9> = family(r, "build_info", "The version that runs");
        let labels = [
            ("major", number()),
            ("minor", number()),
            ("git_version", version),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("build_date", ""),
            ("go_version", ""),
            ("compiler", "rustc"),
            ("platform", PLATFORM),
        ];
        build.get_or_create(&labels).set(1);
        let features = Family::default();
        r.register("feature_enabled", "Whether a feature gate is on", features.clone());
        KubernetesSeries { features }
    }

    pub(super) fn feature_enabled(&self, name: &str, enabled: bool) {
        let labels = vec![("name".to_owned(), name.to_owned()), ("stage".to_owned(), String::new())];
        self.features.get_or_create(&labels).set(i64::from(enabled));
    }
}

/// The platform, as Go names it.
const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

/// Portway's own metrics, `portway_...`.
#[derive(Debug)]
pub(super) struct PortwaySeries {
    pub(super) drift_repairs: Counters<1>,
    pub(super) drift_objects: Counters<2>,
    pub(super) rejected: Counters<2>,
    pub(super) rejected_now: Gauges<1>,
    pub(super) api_connected: Gauge,
    pub(super) mode_active: Gauge,
    pub(super) conditions: Gauges<1>,
    pub(super) other_agents: Gauge,
    pub(super) conntrack_entries: Gauge,
    pub(super) conntrack_limit: Gauge,
    pub(super) conntrack_dropped: Counter,
}

impl PortwaySeries {
    pub(super) fn register(r: &mut Registry, version: &'static str) -> Self {
        let build: Gauges<1> = family(r, "build_info", "The version that runs");
        build.get_or_create(&[("version", version)]).set(1);
        let series = PortwaySeries {
            drift_repairs: family(r, "drift_repairs", "Repairs of rules that other processes had changed"),
            drift_objects: family(
                r,
                "drift_objects",
                "Objects that repairs restored or removed, by how they had been changed",
            ),
            rejected: family(r, "rejected_objects", "Objects that were rejected, by reason"),
            rejected_now: family(r, "rejected_objects", "Objects that are rejected now"),
            api_connected: single(
                r,
                "api_connected",
                "Whether all objects can be read from the API server or the manifests",
            ),
            conditions: family(
                r,
                "condition",
                "States of the node or the configuration that keep Services from working as expected",
            ),
            other_agents: single(r, "other_agents", "Other proxies that program the same network namespace"),
            conntrack_entries: single(r, "conntrack_entries", "Connections in the table of the kernel"),
            conntrack_limit: single(r, "conntrack_limit", "The largest number of connections in that table"),
            conntrack_dropped: single(
                r,
                "conntrack_dropped_packets",
                "Packets that connection tracking dropped, because its table was full or two packets raced for an entry",
            ),
            mode_active: single(r, "mode_active", "Whether the configured mode is the one that runs"),
        };
        for family in IpFamily::ALL {
            drop(series.drift_repairs.get_or_create(&of(family)));
            for (change, _) in Drift::default().by_change() {
                drop(series.drift_objects.get_or_create(&change_of(family, change)));
            }
        }
        series
    }
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn single<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    add(registry, name, help, M::default())
}

fn family<const N: usize, M>(registry: &mut Registry, name: &str, help: &str) -> Family<Labels<N>, M>
where
    M: Default + Clone,
    Family<Labels<N>, M>: Metric,
{
    add(registry, name, help, Family::default())
}

/// Buckets from a millisecond to 16 seconds, doubling.
fn timings() -> Histograms {
    Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15)))
}

/// Buckets from a quarter of a second to five minutes, as in kube-proxy.
fn network_programming() -> Histogram {
    let seconds = linear_buckets(1.0, 1.0, 59);
    let minutes = linear_buckets(60.0, 5.0, 12).chain(linear_buckets(120.0, 30.0, 7));
    Histogram::new(linear_buckets(0.25, 0.25, 2).chain(seconds).chain(minutes))
}

fn name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

pub(super) fn of(family: IpFamily) -> Labels<1> {
    [("ip_family", name(family))]
}

pub(super) fn traffic_of(traffic: Traffic, family: IpFamily) -> Labels<2> {
    let policy = match traffic {
        Traffic::Internal => "internal",
        Traffic::External => "external",
    };
    [("traffic_policy", policy), ("ip_family", name(family))]
}

pub(super) fn change_of(family: IpFamily, change: &'static str) -> Labels<2> {
    [("ip_family", name(family)), ("change", change)]
}

pub(super) fn code(healthy: bool) -> Labels<1> {
    [("code", if healthy { "200" } else { "503" })]
}
