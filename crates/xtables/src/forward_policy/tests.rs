//! Tests of `forward_policy`; those with real packets are the agent's.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// A backend whose syncs fail while it is told so.
#[derive(Debug, Default)]
struct Stub {
    fails: Arc<AtomicBool>,
}

impl Backend for Stub {
    fn families(&self) -> Vec<Family> {
        vec![Family::V4]
    }

    fn sync(&mut self, _: Family, _: &Settings, _: PlanChanges) -> Result<Report, Error> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(Error::Unsupported { feature: "a rule".into(), hint: "none".into() }),
            false => Ok(Report::default()),
        }
    }

    fn mark_stale(&mut self) {}

    fn verify(&mut self, _: Family) -> Result<Drift, Error> {
        Ok(Drift::default())
    }

    fn trace(&mut self, _: &Packet, _: &Host) -> Result<Trace, Error> {
        Err(Error::Unsupported { feature: "a trace".into(), hint: "none".into() })
    }

    fn locations(&self) -> Vec<Location> {
        Vec::new()
    }

    fn set_wake(&mut self, _: Wake) {}

    fn set_audit_period(&mut self, _: Duration) {}

    fn sync_begins(&mut self, _: Instant) {}

    fn sync_ended(&mut self, _: &[Outcome], _: Instant) -> bool {
        false
    }

    fn detect_drift(&mut self, _: Instant) -> Option<DriftSignal> {
        None
    }

    fn next_drift_check(&self) -> Option<Instant> {
        None
    }

    fn restart_drift_detection(&mut self) {}

    fn is_listening(&self) -> bool {
        true
    }
}

#[test]
fn rules_that_cannot_be_written_are_reported_once_and_tried_again_with_growing_waits() {
    let fails = Arc::new(AtomicBool::new(true));
    let rules = Box::new(Stub { fails: fails.clone() });
    let mut policy = ForwardPolicy::new(Box::new(Stub::default()), Instant::now());
    policy.is_due = false;
    policy.accepting.push(Accepting { variant: Variant::Nft, family: Family::V4, rules, failures: 0 });
    let mut sync = || {
        let before = Instant::now();
        let report = policy.sync(Family::V4, &Settings::default(), Vec::new()).expect("the mode's own rules");
        (report.warnings.len(), policy.next_check.saturating_duration_since(before).as_secs())
    };
    for (warnings, at_least) in [(1, 1), (0, 2), (0, 4), (0, 8), (0, 16), (0, 30), (0, 30)] {
        let (reported, wait) = sync();
        assert_eq!(reported, warnings, "a wait of {at_least} s");
        assert!(wait >= at_least, "{wait} s instead of {at_least} s");
    }
    fails.store(false, Ordering::Relaxed);
    assert_eq!(sync().0, 0);
    fails.store(true, Ordering::Relaxed);
    assert_eq!(sync().0, 1, "a new failure after a success is reported");
}
