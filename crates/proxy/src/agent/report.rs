//! What is said about objects and rules: to the log, to metrics, and in Events.

use super::Agent;
use crate::config::Mode;
use crate::health;
use portway_client::Regarding;
use portway_dataplane::{Drift, Refused};
use portway_model::api::Kind;
use portway_model::{Family, Rejected, ServiceChange, ServiceName};

impl Agent {
    pub(super) fn report_repair(&self, family: Family, drift: &Drift) {
        let (missing, altered, foreign) = (drift.missing as u64, drift.altered as u64, drift.foreign as u64);
        self.metrics.drift_repaired(family, crate::metrics::Drift { missing, altered, foreign });
        tracing::warn!(%family, "repaired our rules, which somebody else had changed: {drift}");
        let regarding = Regarding {
            kind: Kind::Node,
            namespace: String::new(),
            name: self.node.clone(),
            uid: self.node.clone(),
        };
        self.recorder.warn(regarding, "ServiceRulesRepaired", &format!("{family}: {drift}"));
    }

    pub(super) fn report(&self, rejected: &Rejected) {
        tracing::warn!("rejected: {rejected}");
        self.metrics.rejected(rejected.kind, rejected.class);
        let regarding = Regarding {
            kind: rejected.kind,
            namespace: rejected.namespace.clone(),
            name: rejected.name.clone(),
            uid: rejected.uid.clone(),
        };
        self.recorder.warn(regarding, "NotProgrammed", &format!("{}: {}", rejected.field, rejected.reason));
    }

    /// A Service that a mode could not program.
    pub(super) fn report_refused(&self, refused: &Refused) {
        tracing::error!(service = %refused.service, "left out, so that the other Services are programmed: {}", refused.reason);
        self.metrics.rejected(Kind::Service, "refused");
        self.recorder.warn(of_service(&refused.service), "NotProgrammed", &refused.reason);
    }

    /// A Service that is programmed, but not as it asks.
    pub(super) fn report_otherwise(&self, other: &Refused) {
        tracing::warn!(service = %other.service, "{}", other.reason);
        self.recorder.warn(of_service(&other.service), "ProgrammedOtherwise", &other.reason);
    }

    pub(super) fn report_ports(&self, unavailable: Vec<health::PortUnavailable>) {
        for port in unavailable {
            tracing::warn!("{port}");
            self.recorder.warn(of_service(&port.service), "HealthCheckPortUnavailable", &port.to_string());
        }
    }

    /// Says once of each Service that its pods wait for a header which nobody writes in this mode.
    pub(super) fn mind_headers(&mut self, mode: Mode, services: &[ServiceChange]) {
        for change in services {
            let waits = change.plans.iter().flatten().any(|plan| plan.proxy_protocol.is_some());
            if !waits || mode == Mode::Userspace {
                self.headless.remove(&change.name);
            } else if self.headless.insert(change.name.clone()) {
                let field = portway_model::PROXY_PROTOCOL_ANNOTATION;
                let reason = format!(
                    "metadata.annotations[{field}]: mode {} sends no header: only userspace does",
                    mode.as_str()
                );
                self.report_otherwise(&Refused { service: change.name.clone(), reason });
            }
        }
    }
}

fn of_service(service: &ServiceName) -> Regarding {
    Regarding {
        kind: Kind::Service,
        namespace: service.namespace().to_owned(),
        name: service.name().to_owned(),
        uid: String::new(),
    }
}
