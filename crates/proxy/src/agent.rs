//! The node agent: one event loop that keeps the kernel's rules up to date with the cluster and the configuration.
//!
//! ```text
//! source ──▶ Cluster ──plans──▶ Backends ──▶ kernel
//!   config file, signals, kernel notifications, clock ──▶ the same loop
//! ```
//!
//! Invariants:
//! - Nothing is programmed before Services, EndpointSlices and this node have been listed once.
//! - A failed sync is retried; the rules programmed before stay in force until new ones replace them.
//! - The rules stay in place when the agent stops, whether by a signal or by a crash.

mod addresses;
mod backends;
mod changes;
mod conntrack_table;
mod leftovers;
mod local;
mod mode_switch;
mod outages;
mod pace;
mod presence;
mod reload;
mod repetition;
mod report;
mod rivals;
mod server_thread;
mod settings;
mod setup;

use crate::config::{ALLOW_EXTERNAL_IPS, Config, ProxyFlags, Warnings};
use crate::health;
use crate::health::{Health, HealthState, MetricsPages, ServicePorts, Timestamp, listen_addresses};
use crate::metrics::{Condition, Metrics, SyncKind, Traffic};
use crate::modes::MODES;
use backends::Backends;
use changes::{ChangeLog, Names, Totals};
use conntrack_table::ConntrackTable;
use local::LocalCounts;
use outages::Outages;
use pace::Pace;
use portway_client::{Notice, Recorder};
use portway_dataplane::{DriftSignal, Outcome, Settings};
use portway_model::api::{EndpointSlice, Node, ObjectMeta, Resource, Service, ServiceCidr};
use portway_model::{Cluster, ClusterEvent, Family, FrontendKind, Identity, NodeState, ServiceName};
use reload::ConfigFile;
use repetition::Repetition;
use report::ObjectReport;
use rivals::Rivals;
use setup::{open_source, serve};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use leftovers::{Leftover, cleanup, find_leftovers};
pub use presence::agent_is_running;
pub use setup::{apply_sysctls, prepare};

/// Everything the agent needs to run.
#[derive(Debug)]
pub struct Options {
    /// The configuration, merged from file and flags.
    pub config: Config,
    /// What the log says about the configuration.
    pub warnings: Warnings,
    /// The flags as typed, which are merged with the configuration file again when it changes.
    pub flags: ProxyFlags,
    /// A directory of manifests instead of an API server.
    pub manifests: Option<PathBuf>,
    /// The version of Portway, for metrics and logs.
    pub version: &'static str,
    /// Sets the log level; called when the configuration changes.
    pub set_verbosity: fn(u32),
}

/// The error that kept the agent from starting, or stopped it.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The kernel cannot be programmed.
    #[error(transparent)]
    Dataplane(#[from] portway_dataplane::Error),
    /// The API server cannot be used.
    #[error(transparent)]
    Connect(#[from] portway_client::ConnectError),
    /// The directory of manifests cannot be read.
    #[error("cannot read the directory of manifests {}: {source}; create it, or correct --manifests", directory.display())]
    Manifests {
        /// The directory.
        directory: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The address of a server is in use, and the configuration makes that fatal.
    #[error(transparent)]
    Bind(#[from] health::BindError),
    /// An operating system call failed.
    #[error("{operation}: {source}")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// The least time between repairs.
const BETWEEN_REPAIRS: Duration = Duration::from_secs(1);
/// The longest time between two heartbeats of the loop.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The time between two checks whether the proxy that the agent stands back for has ended.
const CHECK_RIVAL: Duration = Duration::from_secs(1);
/// How many notices of the source are handled before the loop checks its other events.
const BURST: usize = 4096;

/// Runs until SIGTERM or SIGINT. The rules stay in place.
pub async fn run(options: Options) -> Result<(), AgentError> {
    rivals::processes::set_own_name();
    let system = |operation| move |source| AgentError::System { operation, source };
    let node = addresses::node_name(options.config.hostname_override.as_deref());
    let initial = settings::initial(&options.config);
    let mut backends = Backends::open(&options.config, &initial)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system("listen for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("listen for SIGINT"))?;
    apply_sysctls(&options.config);

    let mut tasks = JoinSet::new();
    let metrics = Metrics::new(options.version);
    metrics.feature_gates(&options.config.feature_gates());
    let (mut source, recorder) = open_source(&options, &node, &metrics, &mut tasks).await?;
    metrics.set_mode_counters(backends.counters());
    let health = Health::new(HealthState::new(options.config.health_timeout()));
    let (config_sender, config_receiver) = watch::channel(Arc::new(options.config.clone()));
    let grace = backends.mode().stop_timeout(&initial).unwrap_or(server_thread::GRACE);
    let server_thread = server_thread::start(grace).map_err(system("start a thread"))?;
    let (rejections, rejections_receiver) = watch::channel(Vec::new());
    let pages = MetricsPages {
        metrics: metrics.clone(),
        config: config_receiver,
        health: health.clone(),
        rejections: rejections_receiver,
        version: options.version,
    };
    let mut servers = serve(&options.config, pages, server_thread.handle());
    let mut file = ConfigFile::new(options.flags.clone());
    let ports = ServicePorts::new(health.clone(), server_thread.handle().clone());
    let mut cluster = Cluster::new(Identity { node: node.clone(), proxy_name: None });
    if options.manifests.is_some() {
        // Objects of an API server have a creation time, which decides.
        cluster.set_holders(MODES.iter().flat_map(|mode| mode.holders()));
    }
    cluster.set_external_ips_allowed(options.config.gate(ALLOW_EXTERNAL_IPS, true));
    let mut agent = Agent {
        cluster,
        families: backends.families(),
        pace: Pace::new(options.config.sync()),
        config: options.config,
        node,
        node_object_is_optional: options.manifests.is_some(),
        settings: None,
        recorder,
        metrics,
        health,
        ports,
        counts: LocalCounts::default(),
        change_log: ChangeLog::default(),
        rivals: Rivals::default(),
        conntrack_table: ConntrackTable::default(),
        repetition: Repetition::default(),
        totals: Totals::default(),
        mode_failure: None,
        unsynced: true,
        outages: Outages::default(),
        node_state: None,
        missing_proxy_header: HashSet::new(),
        last_repair: None,
        config_sender,
        rejections,
        set_verbosity: options.set_verbosity,
    };
    tracing::info!(version = options.version, node = %agent.node, mode = agent.config.mode.as_str(), "portway proxy started");
    agent.metrics.mode_active(true);
    agent.check_rivals(&mut backends, true);
    agent.report_start();
    agent.report_warnings(&options.warnings, &agent.config);

    let mut heartbeat = Instant::now();
    loop {
        agent.health.lock().beat(Timestamp::now());
        let serves = agent.rivals.serves();
        let due = agent.pace.due().filter(|_| serves);
        let retry = agent.ports.next_retry();
        let leftovers = backends.leftovers_due().filter(|_| serves);
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(result) = servers.join_next() => if let Ok(Err(e)) = result { return Err(e.into()) },
            signal = backends.drift_signal(), if serves => {
                let mode = backends.mode().name();
                match signal {
                    DriftSignal::Attributed { process } => {
                        tracing::warn!(mode, process, "rules changed by another process; repairing");
                    }
                    DriftSignal::Possible => tracing::debug!(mode, "rules may have changed; comparing"),
                }
                backends.mark_stale();
                agent.repair_soon();
            }
            () = until(due) => agent.sync(&mut backends).await?,
            () = until(leftovers) => {
                let settings = agent.settings.clone().unwrap_or_default();
                backends.remove_leftovers(&settings);
                if !backends.is_listening() {
                    // The next sync restarts drift detection, and compares all rules.
                    backends.mark_stale();
                    agent.repair_soon();
                }
            }
            notice = source.next() => match notice {
                Some(notice) => {
                    agent.handle_notice(notice);
                    for _ in 0..BURST {
                        let Some(notice) = source.ready() else { break };
                        agent.handle_notice(notice);
                    }
                    agent.after_notices();
                }
                // No source ends; if one did, the programmed rules would stay.
                None => std::future::pending().await,
            },
            changed = file.changed() => agent.reload(changed),
            // The next turn of the loop is the heartbeat.
            () = until(Some(heartbeat)) => {
                let served = agent.rivals.serves();
                if agent.check_rivals(&mut backends, false) {
                    // The other proxy may have changed rules of this one. Before the first lists are complete there is
                    // nothing to compare them with.
                    backends.mark_stale();
                    if agent.cluster.ready() {
                        agent.repair_soon();
                    }
                }
                if served && !agent.rivals.serves() {
                    // The other proxy serves the health-check node ports too.
                    agent.ports.sync(Instant::now(), &[], &BTreeMap::new()).await;
                }
                heartbeat = Instant::now() + if agent.rivals.serves() { HEARTBEAT } else { CHECK_RIVAL };
                agent.outages.remind(Instant::now());
                agent.report_repetitions();
                agent.check_conntrack_table();
                agent.metrics.condition(Condition::ConfigurationFileMissing, file.is_missing());
            }
            () = until(retry) => {
                let unavailable = agent.ports.retry(Instant::now());
                agent.report_ports(unavailable);
            }
        }
    }
    tracing::info!("stopping; the rules stay in place");
    server_thread.loop_has_ended();
    // The rules of a node that another proxy serves are not prepared for the end of this agent.
    if let Some(settings) = agent.settings.as_ref().filter(|_| agent.rivals.serves()) {
        backends.stop(settings);
    }
    agent.ports.close().await;
    Ok(())
}

async fn until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when.into()).await,
        None => std::future::pending().await,
    }
}

struct Agent {
    cluster: Cluster,
    /// The families that are programmed. A sync is queued for these only: in another family it would never be done.
    families: Vec<Family>,
    config: Config,
    node: String,
    /// Whether the node may serve without a Node object: with manifests.
    node_object_is_optional: bool,
    /// The settings of the last sync.
    settings: Option<Settings>,
    pace: Pace,
    recorder: Recorder,
    metrics: Metrics,
    health: Health,
    ports: ServicePorts,
    counts: LocalCounts,
    change_log: ChangeLog,
    rivals: Rivals,
    conntrack_table: ConntrackTable,
    /// The reports about objects, which are limited for each of them.
    repetition: Repetition<ObjectReport>,
    totals: Totals,
    /// Why the configured mode is not in force, as it was logged.
    mode_failure: Option<String>,
    /// The last sync failed, or none was made yet: the next success is logged.
    unsynced: bool,
    outages: Outages,
    /// The state of the Node object that was logged.
    node_state: Option<NodeState>,
    /// Services whose pods expect a PROXY protocol header that this mode does not send.
    missing_proxy_header: HashSet<ServiceName>,
    /// The time of the last repair of rules that another process had changed.
    last_repair: Option<Instant>,
    config_sender: watch::Sender<Arc<Config>>,
    /// For the status page.
    rejections: watch::Sender<Vec<portway_serve::RejectedObject>>,
    set_verbosity: fn(u32),
}

impl Agent {
    fn handle_notice(&mut self, notice: Notice<ClusterEvent>) {
        match notice {
            Notice::Event(event) => {
                tracing::trace!("event: {event}");
                self.cluster.apply(event);
            }
            Notice::Rejected(portway_client::Rejected {
                resource: Some(resource),
                namespace,
                name,
                uid,
                reason,
                file: None,
                ..
            }) if !name.is_empty() => {
                let meta = ObjectMeta { namespace, name, uid, ..ObjectMeta::default() };
                self.cluster.reject_undecodable(resource, &meta, reason);
            }
            Notice::Rejected(rejected) => {
                self.metrics.rejected(rejected.resource, "undecodable");
                self.report_manifest(&rejected);
            }
            Notice::Outage(outage) => self.outages.begin(outage, Instant::now()),
            Notice::Recovered(resource) => self.outages.end(resource, Instant::now()),
        }
    }

    /// Called after a burst of notices: updates metrics and health, requests a sync, and reports rejections.
    fn after_notices(&mut self) {
        self.metrics.api_connected(self.cluster.ready() && self.outages.is_empty());
        let (services, endpoints) = self.cluster.pending();
        self.metrics.service_changes_pending(services as usize);
        self.metrics.endpoint_changes_pending(endpoints as usize);
        self.check_node();
        if self.rivals.serves()
            && self.cluster.ready()
            && self.cluster.has_changes()
            && self.pace.request(Instant::now())
        {
            self.mark_queued(&self.families);
        }
        for rejected in self.cluster.take_rejections() {
            self.report(&rejected);
        }
        self.count_rejections();
    }

    /// Whether load balancers should send traffic to this node. At an API server every node that is to stay has a Node
    /// object; in a directory of manifests it may be omitted.
    fn node_is_eligible(&self) -> bool {
        match self.cluster.node().state {
            NodeState::Present => true,
            NodeState::Leaving => false,
            NodeState::Missing => self.node_object_is_optional,
        }
    }

    async fn sync(&mut self, backends: &mut Backends) -> Result<(), AgentError> {
        let started = Instant::now();
        let changes = self.cluster.take_changes();
        self.metrics.service_changes(changes.service_events);
        self.metrics.endpoint_changes(changes.endpoint_events);
        self.metrics.service_changes_pending(0);
        self.metrics.endpoint_changes_pending(0);
        let primary = addresses::primary(&self.config, self.cluster.node());
        self.counts.update(&changes.services);
        backends.set_audit_period(self.config.sync().period);
        let settings = match self.settings.take() {
            // Before a switch the running mode keeps its settings: the new ones are for the configured mode.
            Some(settings) if self.config.mode.as_str() != backends.mode().name() => settings,
            _ => self.settings_now(&primary),
        };
        self.check_proxy_headers(backends.mode(), &changes.services);
        self.change_log.log(self.config.logging.verbosity, &changes.services);
        self.totals.update(&changes.services);
        tracing::debug!(services = %Names(&changes.services), "syncing");
        let (outcomes, drift_unnoticed) = backends.sync(&settings, changes.services);
        self.settings = Some(settings);
        let mut failed = false;
        for outcome in outcomes {
            failed |= !self.record(&outcome, backends.failure_metric(), &changes.triggers)?;
        }
        if self.config.mode.as_str() != backends.mode().name() {
            failed |= !self.switch(backends, &primary)?;
        }
        self.metrics.mode_active(self.config.mode.as_str() == backends.mode().name());
        if std::mem::replace(&mut self.unsynced, failed) && !failed {
            let Totals { services, endpoints, .. } = self.totals;
            let took = started.elapsed().as_millis();
            tracing::info!(
                services,
                endpoints,
                "synced {services} Services, {endpoints} endpoints in {took} ms"
            );
        }
        for rejected in self.cluster.take_rejections() {
            self.report(&rejected);
        }
        self.update_gauges();
        let local = addresses::local();
        let listen = listen_addresses(&self.config.node_port_addresses, &primary, &local);
        let unavailable = self.ports.sync(Instant::now(), &listen, self.cluster.health_checks()).await;
        self.report_ports(unavailable);
        self.pace.done(started, Instant::now(), failed);
        if drift_unnoticed {
            self.repair_soon();
        }
        Ok(())
    }

    /// The settings for the configured mode.
    fn settings_now(&self, primary: &[IpAddr]) -> Settings {
        let mut settings =
            settings::settings(&self.config, self.cluster.node(), primary, self.cluster.service_cidrs());
        if self.config.mode().features().node_addresses {
            // The Node object may name addresses that the node does not have yet.
            let local = addresses::local();
            let known = &mut settings.userspace.addresses;
            known.retain(|ip| local.contains(ip));
            known.extend(local.into_iter().filter(|ip| !primary.contains(ip)));
        }
        settings
    }

    /// Requests a repair at once, or a second after the last one, so that a process that keeps changing the rules does
    /// not keep the agent busy.
    fn repair_soon(&mut self) {
        self.mark_queued(&self.families);
        let now = Instant::now();
        self.pace.request_by(self.last_repair.map_or(now, |last| now.max(last + BETWEEN_REPAIRS)));
    }

    /// Records that these families have changes that wait for a sync, for metrics and health.
    fn mark_queued(&self, families: &[Family]) {
        for family in families.iter().copied() {
            self.metrics.sync_queued(family, SystemTime::now());
            self.health.lock().queued(Timestamp::now(), family);
        }
    }

    /// Records the result of a sync of one family in metrics, health and the log. False if it has to be retried.
    fn record(
        &mut self,
        outcome: &Outcome,
        failure_metric: &str,
        triggers: &[(Family, i64, u32)],
    ) -> Result<bool, AgentError> {
        let (family, now) = (outcome.family, SystemTime::now());
        let report = match &outcome.result {
            Ok(report) => report,
            Err(error) => {
                self.metrics.sync_failed(failure_metric, family);
                self.mark_queued(&[family]);
                tracing::error!(%family, "sync failed: {error}; the previous rules stay in force, and the sync is retried");
                return Ok(false);
            }
        };
        self.metrics.sync_done(family, SyncKind::of(report), outcome.took, now);
        for table in &report.tables {
            self.metrics.iptables_rules(family, table.table, table.total, table.written);
        }
        self.metrics.partial_restore_failed(family, report.partial_failures as u64);
        for refused in &report.refused {
            self.report_refused(refused);
        }
        for degraded in &report.degraded {
            self.report_degraded(degraded);
        }
        if let Some(took) = report.flows_took {
            self.metrics.conntrack_reconciled(family, took, report.flows_deleted as u64);
        }
        self.health.lock().synced(Timestamp::now(), family);
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for (_, seconds, nanos) in triggers.iter().filter(|(of, ..)| *of == family) {
            let trigger = Duration::new((*seconds).try_into().unwrap_or(0), *nanos);
            self.metrics.network_programmed(family, since_epoch.saturating_sub(trigger));
        }
        for warning in &report.warnings {
            tracing::warn!(%family, "{warning}");
        }
        if !report.drift.is_empty() {
            self.last_repair = Some(Instant::now());
            self.rivals.record_repair(Instant::now());
            self.report_repair(family, &report.drift);
        }
        tracing::debug!(
            %family, took = ?outcome.took, full = report.full, added = report.added, removed = report.removed,
            messages = report.messages, flows_deleted = report.flows_deleted, "synced"
        );
        Ok(true)
    }

    /// Updates the gauges and the status page of rejected objects. Also called without a sync, because a rejected
    /// object need not cause one.
    fn count_rejections(&self) {
        for resource in [Service::TYPE, EndpointSlice::TYPE, Node::TYPE, ServiceCidr::TYPE] {
            self.metrics.rejected_now(resource, self.cluster.rejected_objects(resource));
        }
        self.publish_rejections();
    }

    fn update_gauges(&self) {
        self.count_rejections();
        for family in Family::ALL {
            let count = |kind| self.counts.lacking(family, kind);
            self.metrics.no_local_endpoints(family, Traffic::Internal, count(FrontendKind::ClusterIp));
            self.metrics.no_local_endpoints(family, Traffic::External, count(FrontendKind::NodePort));
        }
    }
}
