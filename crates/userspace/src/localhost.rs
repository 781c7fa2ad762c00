//! Node ports at loopback addresses, beside a mode that does not serve them itself.
//!
//! [`LocalhostNodePorts`] is a [`Backend`] around that of the mode. It sends the node ports of each plan to the relay,
//! which listens at 127.0.0.1 and ::1. The relay is started with the first node port, and keeps running when the agent
//! stops, as the rules of the mode stay in place; in a container it ends with the agent.

use crate::exposition;
use crate::leftovers;
use crate::relay_client::RelayClient;
use portway_dataplane::trace::{Host, Packet, Trace};
use portway_dataplane::{
    Backend, CounterSource, Drift, DriftSignal, Error, Location, Outcome, PlanChanges, Report, Settings,
    UserspaceSettings, Wake,
};
use portway_model::{Family, FrontendKind, PortPlan, ServiceName, ServicePlan};
use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between checks that the relay still runs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a relay that this agent found keeps the routes of others: rules of the previous mode may point to it until
/// they are removed.
const KEEP_ROUTES: Duration = Duration::from_secs(30);

/// A mode, and the relay that serves its node ports at loopback addresses.
#[derive(Debug)]
pub struct LocalhostNodePorts {
    mode: Box<dyn Backend>,
    relay: Arc<RelayClient>,
    families: [FamilyState; 2],
    /// The relay has node ports to serve.
    in_use: bool,
    /// The last attempt to reach the relay failed.
    failed: bool,
    /// When routes that this agent did not send may be removed.
    commit_after: Option<Instant>,
    next_check: Instant,
}

/// The state of one family.
#[derive(Debug, Default)]
struct FamilyState {
    /// The plans of Services with node ports, with these only.
    plans: HashMap<ServiceName, ServicePlan>,
    /// The number of the connection to the relay over which all plans were sent; 0 if there was none.
    synced_connection: u64,
}

/// The plan with its node ports only; none if it has no node port.
fn node_ports_of(plan: &ServicePlan) -> Option<ServicePlan> {
    if !plan.ports.iter().any(PortPlan::has_node_port) {
        return None;
    }
    let only_node_ports = |port: &PortPlan| PortPlan {
        frontends: port.frontends.iter().filter(|f| f.kind == FrontendKind::NodePort).copied().collect(),
        ..port.clone()
    };
    let ports = plan.ports.iter().filter(|port| port.has_node_port()).map(only_node_ports).collect();
    Some(ServicePlan { ports, ..plan.clone() })
}

impl LocalhostNodePorts {
    /// The mode `mode`, with a relay that `start` starts once it is needed.
    pub fn new(
        mode: Box<dyn Backend>,
        start: impl Fn() -> Command + Send + Sync + 'static,
        now: Instant,
    ) -> LocalhostNodePorts {
        LocalhostNodePorts {
            mode,
            relay: Arc::new(RelayClient::new(start)),
            families: Default::default(),
            in_use: false,
            failed: false,
            commit_after: None,
            next_check: now + CHECK_INTERVAL,
        }
    }

    /// Stores the node ports of changed plans, and returns them.
    fn stage(&mut self, family: Family, changes: &PlanChanges) -> PlanChanges {
        let plans = &mut self.families[family as usize].plans;
        let mut staged = Vec::new();
        for (name, plan) in changes {
            let plan = plan.as_ref().and_then(node_ports_of);
            let old = match plan.clone() {
                Some(plan) => plans.insert(name.clone(), plan),
                None => plans.remove(name),
            };
            if old != plan {
                staged.push((name.clone(), plan));
            }
        }
        staged
    }

    /// Sends changes to the relay, or all plans over a new connection.
    fn update_relay(&mut self, family: Family, settings: &Settings, changed: PlanChanges) -> io::Result<()> {
        let connection = self.relay.ensure_connected()?;
        let state = &mut self.families[family as usize];
        let is_new = connection != state.synced_connection;
        self.relay.configure(&UserspaceSettings {
            bypass_mark: UserspaceSettings::choose_bypass_mark(settings.masquerade_mark),
            localhost_node_ports: true,
            ..settings.userspace.clone()
        })?;
        let services = match is_new {
            true => state.plans.iter().map(|(name, plan)| (name.clone(), Some(plan.clone()))).collect(),
            false => changed,
        };
        self.relay.change(family, services)?;
        state.synced_connection = connection;
        if is_new {
            self.commit_after = Some(Instant::now() + KEEP_ROUTES);
        } else if self.commit_after.is_none() {
            self.relay.commit_routes(family)?;
        }
        Ok(())
    }

    /// Serves the node ports of a family, or ends the relay if none is left. Returns a warning.
    fn serve(&mut self, family: Family, settings: &Settings, changed: PlanChanges) -> Option<String> {
        let wanted = settings.localhost_node_ports && self.families.iter().any(|f| !f.plans.is_empty());
        if !wanted {
            if std::mem::take(&mut self.in_use) {
                self.relay.leave(settings.userspace.drain_timeout);
                self.families.iter_mut().for_each(|f| f.synced_connection = 0);
            }
            return None;
        }
        self.in_use = true;
        let result = self.update_relay(family, settings, changed);
        let first_failure = result.is_err() && !self.failed;
        self.failed = result.is_err();
        let error = result.err().filter(|_| first_failure)?;
        Some(format!("node ports are not served at loopback addresses: no relay: {error}"))
    }

    /// Removes the routes that this agent did not send, once no rule of a previous mode can point to them.
    fn commit_routes(&mut self, now: Instant) {
        if self.commit_after.is_some_and(|after| after <= now) {
            self.commit_after = None;
            // An error means that the connection is lost; the next check detects that.
            for family in Family::ALL {
                _ = self.relay.commit_routes(family);
            }
        }
    }
}

impl Backend for LocalhostNodePorts {
    fn families(&self) -> Vec<Family> {
        self.mode.families()
    }

    fn sync(&mut self, family: Family, settings: &Settings, changes: PlanChanges) -> Result<Report, Error> {
        let staged = self.stage(family, &changes);
        let result = self.mode.sync(family, settings, changes);
        let warning = self.serve(family, settings, staged);
        let mut report = result?;
        report.warnings.extend(warning);
        Ok(report)
    }

    fn mark_stale(&mut self) {
        self.mode.mark_stale();
    }

    fn verify(&mut self, family: Family) -> Result<Drift, Error> {
        self.mode.verify(family)
    }

    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error> {
        self.mode.trace(packet, host)
    }

    fn locations(&self) -> Vec<Location> {
        let relay = self.in_use.then(leftovers::location);
        self.mode.locations().into_iter().chain(relay).collect()
    }

    fn failure_metric(&self) -> &'static str {
        self.mode.failure_metric()
    }

    fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        Some(Arc::new(Counters { mode: self.mode.counters(), relay: self.relay.clone() }))
    }

    fn stop(&mut self, settings: &Settings) {
        self.mode.stop(settings);
    }

    fn set_wake(&mut self, wake: Wake) {
        self.mode.set_wake(wake);
    }

    fn set_audit_period(&mut self, period: Duration) {
        self.mode.set_audit_period(period);
    }

    fn sync_begins(&mut self, now: Instant) {
        self.mode.sync_begins(now);
    }

    fn sync_ended(&mut self, outcomes: &[Outcome], now: Instant) -> bool {
        self.mode.sync_ended(outcomes, now)
    }

    fn detect_drift(&mut self, now: Instant) -> Option<DriftSignal> {
        let signal = self.mode.detect_drift(now);
        if signal.is_some() || !self.in_use || now < self.next_check {
            return signal;
        }
        self.next_check = now + CHECK_INTERVAL;
        self.commit_routes(now);
        self.relay.is_reconnect_due().then_some(DriftSignal::Possible)
    }

    fn next_drift_check(&self) -> Option<Instant> {
        let next_of_mode = self.mode.next_drift_check();
        if !self.in_use {
            return next_of_mode;
        }
        Some(next_of_mode.map_or(self.next_check, |next| next.min(self.next_check)))
    }

    fn restart_drift_detection(&mut self) {
        self.mode.restart_drift_detection();
    }

    fn is_listening(&self) -> bool {
        self.mode.is_listening()
    }
}

/// The counters of the mode, and the numbers of listeners.
#[derive(Debug)]
struct Counters {
    mode: Option<Arc<dyn CounterSource>>,
    relay: Arc<RelayClient>,
}

impl CounterSource for Counters {
    fn exposition(&self) -> String {
        let of_mode = self.mode.as_ref().map(|mode| mode.exposition()).unwrap_or_default();
        of_mode + &exposition::relay(&self.relay)
    }
}
