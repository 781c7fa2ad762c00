//! A mode at work, as the agent knows it.

use crate::trace::{Host, Packet, Trace};
use crate::{CounterSource, Drift, DriftSignal, Error, Location, Report, Settings, Wake};
use portway_model::{Family, ServiceName, ServicePlan};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Services whose plan is new, or gone, in one family.
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

/// A mode at work in every address family that it programs.
///
/// The cost of [`Backend::sync`] is that of the changes. After an error, and after [`Backend::mark_stale`], the next
/// sync lists the kernel and repairs what differs: recovery is the same code as the first start.
pub trait Backend: fmt::Debug {
    /// The families that it programs.
    fn families(&self) -> Vec<Family>;

    /// Makes the kernel hold the rules of `settings` and of all plans so far.
    fn sync(&mut self, family: Family, settings: &Settings, changes: PlanChanges) -> Result<Report, Error>;

    /// Other processes may have changed the rules: the next sync compares everything.
    fn mark_stale(&mut self);

    /// Compares the kernel with the applied rules, and changes nothing.
    fn verify(&mut self, family: Family) -> Result<Drift, Error>;

    /// Follows the first packet of a connection through the applied rules.
    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error>;

    /// The places in the host that it uses, and that therefore are not leftovers.
    fn locations(&self) -> Vec<Location>;

    /// The metric, without its prefix, that counts failed syncs.
    fn failure_metric(&self) -> &'static str {
        "sync_proxy_rules_iptables_restore_failures_total"
    }

    /// Counters of connections for each Service, if the mode has them.
    fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        None
    }

    /// The agent is about to stop: everything that works only while it runs is handed over to the kernel.
    fn stop(&mut self, _settings: &Settings) {}

    /// Listener threads call `wake`, and then [`Backend::detect_drift`] has something to say.
    fn set_wake(&mut self, wake: Wake);

    /// Everything is compared at least this often, where the kernel announces nothing.
    fn set_audit_period(&mut self, period: Duration);

    /// The syncs of all families are about to begin.
    fn sync_begins(&mut self, now: Instant);

    /// The syncs of all families have ended. True if changes by other processes may have gone unnoticed.
    fn sync_ended(&mut self, outcomes: &[Outcome], now: Instant) -> bool;

    /// Checks for drift: after a wake, and at [`Backend::next_drift_check`].
    fn detect_drift(&mut self, now: Instant) -> Option<DriftSignal>;

    /// When to check for drift though nothing woke the agent.
    fn next_drift_check(&self) -> Option<Instant>;

    /// Announcements of the kernel may have been lost: listening begins anew with the next sync.
    fn restart_drift_detection(&mut self);

    /// Whether changes by other processes would be noticed.
    fn is_listening(&self) -> bool;
}
