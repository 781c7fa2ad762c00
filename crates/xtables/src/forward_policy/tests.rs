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
    policy.accepting.push(Accepting {
        variant: Variant::Nft,
        family: Family::V4,
        rules,
        failures: 0,
        retry_at: None,
    });
    // A sync at the time of the next attempt.
    let sync = |policy: &mut ForwardPolicy| {
        policy.accepting[0].retry_at = None;
        let report = policy.sync(Family::V4, &Settings::default(), Vec::new()).expect("the mode's own rules");
        report.warnings.len()
    };
    for (failures, warnings) in [1, 0, 0, 0].into_iter().enumerate() {
        assert_eq!(sync(&mut policy), warnings, "after {failures} failures");
        assert!(policy.accepting[0].retry_at.is_some());
    }
    assert_eq!([0, 1, 2, 3, 4, 40].map(|failures| wait(failures).as_secs()), [1, 2, 4, 8, 16, 65536]);
    // Until then, syncs for other reasons do not try.
    let failures = policy.accepting[0].failures;
    policy.sync(Family::V4, &Settings::default(), Vec::new()).expect("the mode's own rules");
    assert_eq!(policy.accepting[0].failures, failures);
    fails.store(false, Ordering::Relaxed);
    assert_eq!(sync(&mut policy), 0);
    fails.store(true, Ordering::Relaxed);
    assert_eq!(sync(&mut policy), 1, "a new failure after a success is reported");
}
