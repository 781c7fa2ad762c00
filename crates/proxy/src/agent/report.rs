//! Reports about objects and rules: log lines, metrics and Kubernetes Events.

use super::Agent;
use super::backends::Backends;
use super::conntrack_table::{self, Sample};
use super::rivals::Change;
use crate::config::{Config, LocalDetection, Warnings};
use crate::health;
use crate::metrics::Condition;
use portway_client::Regarding;
use portway_dataplane::{Drift, Mode, Refused};
use portway_model::api::{Node, Resource, Service};
use portway_model::{Family, NodeState, Rejected, ServiceChange, ServiceName};
use portway_serve::RejectedObject;
use std::collections::HashSet;
use std::time::Instant;

/// The number of rejected objects that the status page shows at most.
const REJECTIONS_SHOWN: usize = 100;

/// Logged if pods of this node are not recognized.
const NO_LOCAL_DETECTION: &str = "clusterCIDR is empty, so pods of this node are not recognized: traffic from outside to cluster \
    IPs is not masqueraded, and its answers may not come back through this node; set clusterCIDR or another detectLocalMode";

/// Logged if neither the configuration file nor a flag has a mode.
const WITHOUT_MODE: &str = "no mode is configured: using nftables with the defaults of kube-proxy's mode iptables, so node \
    ports answer on every address of the node and on loopback addresses; set mode to choose";

/// A report about an object: a log line, and perhaps an Event.
#[derive(Debug)]
pub(crate) struct ObjectReport {
    /// Rules are missing that the mode should have been able to write.
    is_error: bool,
    message: String,
    event: Option<(Regarding, &'static str, String)>,
    /// The report is void once this is no longer among the rejections.
    rejection: Option<Rejected>,
}

impl Agent {
    /// The Event with which kube-proxy too reports a start.
    pub(super) fn report_start(&self) {
        let note = format!("mode {}", self.config.mode.as_str());
        self.recorder.inform(self.regarding_node(), "Starting", &note);
    }

    /// Reports what is wrong with a configuration that is used nevertheless.
    pub(super) fn report_warnings(&self, warnings: &Warnings, config: &Config) {
        for mistake in &warnings.mistakes {
            tracing::warn!("{mistake}");
            self.recorder.warn(self.regarding_node(), "ConfigurationMistake", &mistake.to_string());
        }
        if !warnings.unused.is_empty() {
            tracing::info!("without effect in Portway: {}", warnings.unused.join(", "));
        }
        let no_detection = config.local_detection == LocalDetection::None;
        self.metrics.condition(Condition::NoLocalDetection, no_detection);
        if no_detection {
            tracing::warn!("{NO_LOCAL_DETECTION}");
            self.recorder.warn(self.regarding_node(), "NoLocalDetection", NO_LOCAL_DETECTION);
        }
        self.metrics.condition(Condition::DefaultMode, warnings.without_mode);
        if warnings.without_mode {
            tracing::warn!("{WITHOUT_MODE}");
            self.recorder.warn(self.regarding_node(), "KubeProxyDefaultMode", WITHOUT_MODE);
        }
    }

    /// Passes the state of the Node object on to `/healthz`, and logs a change.
    pub(super) fn check_node(&mut self) {
        let state = self.cluster.node().state;
        let eligible = self.node_is_eligible();
        self.health.lock().set_node_eligible(eligible);
        if !self.cluster.ready() || self.node_state == Some(state) {
            return;
        }
        let missing = state == NodeState::Missing && !self.node_object_is_optional;
        self.metrics.condition(Condition::NodeMissing, missing);
        let node = &self.node;
        match (self.node_state.replace(state), state) {
            (_, NodeState::Missing) if self.node_object_is_optional => {
                tracing::info!(
                    node,
                    "there is no Node object of this name: the addresses of this machine are used"
                );
            }
            (_, NodeState::Missing) => tracing::warn!(
                node,
                "there is no Node object of this name: the addresses of this machine are used, and /healthz fails; is --hostname-override right?"
            ),
            (_, NodeState::Leaving) => {
                tracing::info!(node, "the node is about to be removed; /healthz fails from now on");
            }
            (Some(_), NodeState::Present) => tracing::info!(node, "the Node object is back"),
            (None, NodeState::Present) => {}
        }
    }

    /// Looks for another proxy on this node, and reports one that was found or has ended. True if the agent serves again
    /// after it has stood back.
    pub(super) fn check_rivals(&mut self, backends: &mut Backends, at_start: bool) -> bool {
        let change = self.rivals.check(at_start, Instant::now());
        self.metrics.other_agents(usize::from(self.rivals.exist()));
        backends.set_rival(self.rivals.exist());
        let warn = |message: String| {
            tracing::error!("{message}");
            self.recorder.warn(self.regarding_node(), "AnotherProxy", &message);
        };
        match change {
            None => {}
            Some(Change::StandsBack(rival)) => {
                self.health.lock().stand_back();
                warn(format!(
                    "{rival} programs the Services of this node: this agent stands back and programs nothing until that \
                     process has ended; stop one of the two"
                ));
            }
            Some(Change::Beside(rival)) => {
                let objects = backends.objects_beside(self.settings.as_ref());
                warn(format!(
                    "{rival} was started on this node and programs its Services too{objects}; stop one of the two"
                ));
            }
            Some(Change::Ended(rival)) => tracing::info!("{rival} has ended"),
            Some(Change::Resumes(rival)) => {
                tracing::info!("{rival} has ended: this agent programs the Services of this node");
                return true;
            }
        }
        false
    }

    /// Logs the messages about rejected objects that were held back.
    pub(super) fn report_repetitions(&mut self) {
        let due = self.repetition.due(Instant::now());
        if due.is_empty() {
            return;
        }
        // The object may have been corrected meanwhile.
        let current: HashSet<&Rejected> = self.cluster.rejections().collect();
        let is_over =
            |report: &ObjectReport| report.rejection.as_ref().is_some_and(|known| !current.contains(known));
        for held_back in due.into_iter().filter(|held_back| !is_over(&held_back.report)) {
            match held_back.report.is_error {
                true => tracing::error!(count = held_back.count, "{}", held_back.report.message),
                false => tracing::warn!(count = held_back.count, "{}", held_back.report.message),
            }
            self.write_event(held_back.report);
        }
    }

    /// Makes a report now, or holds it back if there was one about the same field a short while ago.
    fn report_object(&mut self, field: String, report: ObjectReport) {
        if let Some(report) = self.repetition.admit(field, report, Instant::now()) {
            match report.is_error {
                true => tracing::error!("{}", report.message),
                false => tracing::warn!("{}", report.message),
            }
            self.write_event(report);
        }
    }

    fn write_event(&self, report: ObjectReport) {
        if let Some((regarding, reason, note)) = report.event {
            self.recorder.warn(regarding, reason, &note);
        }
    }

    /// Reports an object of a manifest that is not valid.
    pub(super) fn report_manifest(&mut self, rejected: &portway_client::Rejected) {
        let file = rejected.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        let field = format!("{file} {}/{} {}", rejected.namespace, rejected.name, rejected.field);
        let message = format!("rejected: {rejected}");
        self.report_object(field, ObjectReport { is_error: false, message, event: None, rejection: None });
    }

    /// Reports that the kernel's table of connections is full, or no longer.
    pub(super) fn check_conntrack_table(&mut self) {
        let Some(sample) = Sample::take() else { return };
        let (dropped, change) = self.conntrack_table.update(sample, Instant::now());
        self.metrics.conntrack_table(sample.entries, sample.limit, dropped);
        match change {
            Some(conntrack_table::Change::Full(Sample { entries, limit, .. })) => {
                let message = format!(
                    "the table of connections is full ({entries} of {limit}), and the kernel drops packets of new \
                     connections: raise conntrack.maxPerCore or net.netfilter.nf_conntrack_max, or find the clients \
                     with conntrack -L"
                );
                tracing::error!("{message}");
                self.recorder.warn(self.regarding_node(), "ConntrackTableFull", &message);
            }
            Some(conntrack_table::Change::Over(dropped)) => {
                tracing::info!(dropped, "the table of connections is no longer full");
            }
            None => {}
        }
    }

    fn regarding_node(&self) -> Regarding {
        Regarding {
            resource: Node::TYPE,
            namespace: String::new(),
            name: self.node.clone(),
            uid: self.node.clone(),
        }
    }

    pub(super) fn report_repair(&self, family: Family, drift: &Drift) {
        let (missing, altered, foreign) = (drift.missing as u64, drift.altered as u64, drift.foreign as u64);
        self.metrics.drift_repaired(family, crate::metrics::Drift { missing, altered, foreign });
        tracing::warn!(%family, missing, altered, foreign, "repaired rules that another process had changed: {drift}");
        self.recorder.warn(self.regarding_node(), "ServiceRulesRepaired", &format!("{family}: {drift}"));
    }

    pub(super) fn report(&mut self, rejected: &Rejected) {
        let (state, reason) = match rejected.partial {
            true => ("partially programmed", "PartiallyProgrammed"),
            false => ("rejected", "NotProgrammed"),
        };
        let message = format!("{state}: {rejected}");
        let Rejected { resource, namespace, name, field, .. } = rejected;
        let field = format!("{resource} {namespace}/{name} {field}");
        self.metrics.rejected(Some(rejected.resource), rejected.class);
        let regarding = Regarding {
            resource: rejected.resource,
            namespace: rejected.namespace.clone(),
            name: rejected.name.clone(),
            uid: rejected.uid.clone(),
        };
        let event = Some((regarding, reason, rejected.reason_with_field()));
        self.report_object(
            field,
            ObjectReport { is_error: false, message, event, rejection: Some(rejected.clone()) },
        );
    }

    /// Publishes the objects that are rejected now to the status page.
    pub(super) fn publish_rejections(&self) {
        let rejections = self.cluster.rejections().take(REJECTIONS_SHOWN).map(|rejected| RejectedObject {
            kind: rejected.resource.to_string(),
            namespace: rejected.namespace.clone(),
            name: rejected.name.clone(),
            field: rejected.field.clone(),
            reason: rejected.reason.clone(),
        });
        let rejections: Vec<RejectedObject> = rejections.collect();
        self.rejections.send_if_modified(|published| {
            let changed = *published != rejections;
            *published = rejections;
            changed
        });
    }

    /// Reports a Service that the mode could not program.
    pub(super) fn report_refused(&mut self, refused: &Refused) {
        self.metrics.rejected(Some(Service::TYPE), "refused");
        let Refused { service, reason } = refused;
        let message = format!("rules of a Service left out: Service {service}: {reason}");
        let event = Some((self.regarding_service(service), "NotProgrammed", reason.clone()));
        let report = ObjectReport { is_error: true, message, event, rejection: None };
        self.report_object(format!("{service} refused"), report);
    }

    /// Reports a Service that is programmed, but not with everything that it asks for.
    pub(super) fn report_degraded(&mut self, degraded: &Refused) {
        let Refused { service, reason } = degraded;
        let message = format!("Service {service}: {reason}");
        let event = Some((self.regarding_service(service), "ProgrammedWithLimitations", reason.clone()));
        let report = ObjectReport { is_error: false, message, event, rejection: None };
        self.report_object(format!("{service} {reason}"), report);
    }

    pub(super) fn report_ports(&self, unavailable: Vec<health::PortUnavailable>) {
        for port in unavailable {
            tracing::warn!("{port}");
            // Without the time of the next try, so that repeated Events are one series.
            let port = health::PortUnavailable { retry_in: None, ..port };
            self.recorder.warn(
                self.regarding_service(&port.service),
                "FailedToStartServiceHealthcheck",
                &port.to_string(),
            );
        }
    }

    fn regarding_service(&self, service: &ServiceName) -> Regarding {
        Regarding {
            resource: Service::TYPE,
            namespace: service.namespace().to_owned(),
            name: service.name().to_owned(),
            uid: self.cluster.service_uid(service).to_owned(),
        }
    }

    /// Reports, once for each Service, that its pods expect a PROXY protocol header which this mode does not send.
    pub(super) fn check_proxy_headers(&mut self, mode: &dyn Mode, services: &[ServiceChange]) {
        for change in services {
            let expected = change.plans.iter().flatten().any(|plan| plan.proxy_protocol.is_some());
            if !expected || mode.features().proxy_protocol {
                self.missing_proxy_header.remove(&change.name);
            } else if self.missing_proxy_header.insert(change.name.clone()) {
                let field = portway_model::PROXY_PROTOCOL_ANNOTATION;
                let reason = format!(
                    "metadata.annotations[{field}]: mode {} sends no PROXY protocol header; only mode userspace does",
                    mode.name()
                );
                self.report_degraded(&Refused { service: change.name.clone(), reason });
            }
        }
    }
}
