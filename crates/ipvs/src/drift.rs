//! Detects changes of virtual servers, sets, addresses and rules by other processes.
//!
//! The detector of the iptables engine checks the rules. The kernel sends notifications of address changes, but none of
//! changes of sets and virtual servers, so these are sampled every second as long as that is cheap, and all objects are
//! compared once per audit period.

use crate::commit::Kernel;
use crate::mode::Ipvs;
use portway_dataplane::{CheckTimes, DriftDetector, DriftSignal, Driver, Outcome, State, Wake};
use portway_xtables::Variant;
use portway_xtables::commit::Tool;
use portway_xtables::drift::{Engines, TablesDetector};
use portway_xtables::engine::Engine;
use std::time::{Duration, Instant};

/// Detects drift of both families.
#[derive(Debug)]
pub struct IpvsDetector {
    rules: TablesDetector,
    times: CheckTimes,
}

/// The detector of the rules, which all modes with iptables rules share.
type Rules = dyn DriftDetector<Engine<Tool>>;

impl IpvsDetector {
    /// Nothing is checked before the first sync.
    pub fn new(variant: Variant, now: Instant) -> IpvsDetector {
        IpvsDetector { rules: TablesDetector::new(variant, now), times: CheckTimes::new(now) }
    }

    fn rules(&mut self) -> &mut Rules {
        &mut self.rules
    }
}

fn engines(programs: &mut [Driver<Ipvs>]) -> Engines<'_> {
    programs.iter_mut().map(|p| p.program().rules()).collect()
}

impl DriftDetector<Ipvs> for IpvsDetector {
    fn set_wake(&mut self, wake: Wake) {
        self.rules().set_wake(wake);
    }

    fn set_audit_period(&mut self, period: Duration) {
        self.times.set_audit_period(period);
        self.rules().set_audit_period(period);
    }

    fn sync_begins(&mut self, programs: &mut [Driver<Ipvs>], now: Instant) {
        if self.times.audit_is_due(now) {
            programs.iter_mut().for_each(Driver::mark_stale);
        }
    }

    fn sync_ended(&mut self, programs: &mut [Driver<Ipvs>], outcomes: &[Outcome], now: Instant) -> bool {
        self.times.sync_ended(outcomes, now);
        self.rules.listen(engines(programs), outcomes, now)
    }

    fn check(&mut self, programs: &mut [Driver<Ipvs>], now: Instant) -> Option<DriftSignal> {
        let signal = self.rules.check_engines(engines(programs), now);
        if signal.is_some() || !self.times.take_cheap(now) {
            return signal;
        }
        // All families read their notifications, even if the first one has found a change.
        let applied = programs.iter_mut().filter(|p| !p.is_fresh());
        let announced = applied.map(|p| p.program().addresses_changed()).fold(false, |any, one| any | one);
        let mut differs = announced;
        if !announced && self.times.may_sample(now) {
            let began = Instant::now();
            differs = programs.iter_mut().map(sample).fold(false, |any, one| any | one);
            self.times.sampled(began, Instant::now());
        }
        differs.then_some(DriftSignal::Possible)
    }

    fn next_check(&self) -> Option<Instant> {
        Some(self.times.next_cheap())
    }

    fn restart(&mut self) {
        self.rules().restart();
    }

    fn is_listening(&self) -> bool {
        let rules: &Rules = &self.rules;
        rules.is_listening()
    }
}

/// Removes drained endpoints, and compares the sizes of sets, the virtual servers, and the endpoints of some of these.
/// True if a difference was found.
pub fn sample<K: Kernel, R: portway_xtables::commit::Kernel>(driver: &mut Driver<Ipvs<K, R>>) -> bool {
    if driver.state() != State::InSync {
        return false;
    }
    match driver.program().remove_drained() {
        Ok(true) => {}
        // The mode's own change failed, so this is no drift: the next sync compares all objects and reports none.
        Ok(false) => {
            driver.invalidate();
            return false;
        }
        Err(error) => {
            tracing::debug!(family = %driver.family(), %error, "draining endpoints could not be checked");
            driver.invalidate();
            return false;
        }
    }
    driver.program().sample_differs()
}
