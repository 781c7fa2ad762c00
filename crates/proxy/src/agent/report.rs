//! What is said about objects and rules: to the log, to metrics, and in Events.

use super::Agent;
use crate::health;
use portway_client::Regarding;
use portway_dataplane::{Drift, Mode, Refused};
use portway_model::api::{Node, Resource, Service};
use portway_model::{Family, Rejected, ServiceChange, ServiceName};
use portway_serve::RejectedObject;

/// Rejected objects on the status page.
const REJECTIONS_SHOWN: usize = 100;

impl Agent {
    pub(super) fn report_repair(&self, family: Family, drift: &Drift) {
        let (missing, altered, foreign) = (drift.missing as u64, drift.altered as u64, drift.foreign as u64);
        self.metrics.drift_repaired(family, crate::metrics::Drift { missing, altered, foreign });
        tracing::warn!(%family, missing, altered, foreign, "repaired rules that another process had changed: {drift}");
        let regarding = Regarding {
            resource: Node::TYPE,
            namespace: String::new(),
            name: self.node.clone(),
            uid: self.node.clone(),
        };
        self.recorder.warn(regarding, "ServiceRulesRepaired", &format!("{family}: {drift}"));
    }

    pub(super) fn report(&self, rejected: &Rejected) {
        tracing::warn!("rejected: {rejected}");
        self.metrics.rejected(rejected.resource, rejected.class);
        let regarding = Regarding {
            resource: rejected.resource,
            namespace: rejected.namespace.clone(),
            name: rejected.name.clone(),
            uid: rejected.uid.clone(),
        };
        self.recorder.warn(regarding, "NotProgrammed", &format!("{}: {}", rejected.field, rejected.reason));
    }

    /// Shows the status page which objects are rejected now, up to a number that fits on a page.
    pub(super) fn publish_rejections(&self) {
        let rejections = self.cluster.rejections().take(REJECTIONS_SHOWN).map(|rejected| RejectedObject {
            kind: rejected.resource.to_string(),
            namespace: rejected.namespace.clone(),
            name: rejected.name.clone(),
            field: rejected.field.clone(),
            reason: rejected.reason.clone(),
        });
        let rejections: Vec<RejectedObject> = rejections.collect();
        self.rejections.send_if_modified(|shown| {
            let changed = *shown != rejections;
            *shown = rejections;
            changed
        });
    }

    /// A Service that a mode could not program.
    pub(super) fn report_refused(&self, refused: &Refused) {
        tracing::error!(service = %refused.service, "left out, so that the other Services are programmed: {}", refused.reason);
        self.metrics.rejected(Service::TYPE, "refused");
        self.recorder.warn(of_service(&refused.service), "NotProgrammed", &refused.reason);
    }

    /// A Service that is programmed, but not as it asks.
    pub(super) fn report_degraded(&self, degraded: &Refused) {
        tracing::warn!(service = %degraded.service, "{}", degraded.reason);
        self.recorder.warn(of_service(&degraded.service), "ProgrammedOtherwise", &degraded.reason);
    }

    pub(super) fn report_ports(&self, unavailable: Vec<health::PortUnavailable>) {
        for port in unavailable {
            tracing::warn!("{port}");
            self.recorder.warn(of_service(&port.service), "HealthCheckPortUnavailable", &port.to_string());
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
                    "metadata.annotations[{field}]: mode {} sends no PROXY protocol header: only userspace does",
                    mode.name()
                );
                self.report_degraded(&Refused { service: change.name.clone(), reason });
            }
        }
    }
}

fn of_service(service: &ServiceName) -> Regarding {
    Regarding {
        resource: Service::TYPE,
        namespace: service.namespace().to_owned(),
        name: service.name().to_owned(),
        uid: String::new(),
    }
}
