//! The interface of an open mode.

use crate::trace::{Host, Packet, Trace};
use crate::{CounterSource, Drift, DriftSignal, Error, Location, Report, Settings, Wake};
use portway_model::{Family, ServiceName, ServicePlan};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Services with a new plan, or without one any more, in one family.
pub type PlanChanges = Vec<(ServiceName, Option<ServicePlan>)>;

/// The result of a sync of one family, and how long it took.
#[derive(Debug)]
pub struct Outcome {
    /// The family.
    pub family: Family,
    /// The duration.
    pub took: Duration,
    /// The result.
    pub result: Result<Report, Error>,
}

/// An open mode, in every address family that it programs.
///
/// The cost of [`Backend::sync`] is that of the changes. After an error, and after [`Backend::mark_stale`], the next
/// sync lists the kernel and repairs the differences: recovery is the same code as the first start.
pub trait Backend: fmt::Debug {
    /// The families that it programs.
    fn families(&self) -> Vec<Family>;

    /// Makes the kernel hold the rules of `settings` and of all plans so far.
    fn sync(&mut self, family: Family, settings: &Settings, changes: PlanChanges) -> Result<Report, Error>;

    /// Called when other processes may have changed the rules: the next sync compares all rules.
    fn mark_stale(&mut self);

    /// Compares the kernel with the applied rules, and changes nothing.
    fn verify(&mut self, family: Family) -> Result<Drift, Error>;

    /// Follows the first packet of a connection through the rules of the last sync.
    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error>;

    /// The locations that it uses, whose objects therefore are not leftovers.
    fn locations(&self) -> Vec<Location>;

    /// The metric, without its prefix, that counts failed syncs.
    fn failure_metric(&self) -> &'static str {
        "sync_proxy_rules_iptables_restore_failures_total"
    }

    /// The counters that the mode has.
    fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        None
    }

    /// Called before the agent stops: changes the rules so that they do not need a running agent.
    fn stop(&mut self, _settings: &Settings) {}

    /// Sets the function that listener threads call; the agent then calls [`Backend::detect_drift`].
    fn set_wake(&mut self, wake: Wake);

    /// Sets the time between comparisons of all rules, for changes that the kernel does not announce. Expensive
    /// comparisons are less frequent.
    fn set_audit_period(&mut self, period: Duration);

    /// Called before the syncs of all families.
    fn sync_begins(&mut self, now: Instant);

    /// Called after the syncs of all families. Returns whether changes by other processes may have gone unnoticed.
    fn sync_ended(&mut self, outcomes: &[Outcome], now: Instant) -> bool;

    /// Checks for drift: after a wake, and at [`Backend::next_drift_check`].
    fn detect_drift(&mut self, now: Instant) -> Option<DriftSignal>;

    /// When to check for drift if no listener thread wakes the agent.
    fn next_drift_check(&self) -> Option<Instant>;

    /// Called when notifications of the kernel may have been lost: stops listening until the next sync.
    fn restart_drift_detection(&mut self);

    /// Whether the mode listens for changes by other processes.
    fn is_listening(&self) -> bool;
}
