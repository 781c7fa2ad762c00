//! A mode that does not program the kernel: it keeps the plans in memory, and never has drift.
//!
//! It is the smallest implementation of the contract between agent and mode, for tests and as an example of a mode.

use portway_dataplane::trace::{Host, Packet, Trace};
use portway_dataplane::{
    Backend, Clear, Committed, Drift, DriftDetector, DriftSignal, Driver, Error, Families, FamilyProgram,
    Location, Mode, OpenOptions, Outcome, PlanChanges, Program, Report, Settings, State, Wake,
};
use portway_model::{Family, ServiceName, ServicePlan};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The mode.
pub const MODE: &dyn Mode = &Noop;

struct Noop;

impl Mode for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    fn open(&self, options: &OpenOptions<'_>) -> Result<Box<dyn Backend>, Error> {
        let open = |family| Ok(Plans { family, plans: HashMap::new() });
        Ok(Box::new(Families::open(options.families, open, NoDrift)?))
    }

    fn locations(&self) -> Vec<Location> {
        Vec::new()
    }

    fn clear(&self, _: &Location, _: Clear, _: &Settings) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}

/// The plans of one family.
#[derive(Debug)]
struct Plans {
    family: Family,
    plans: HashMap<ServiceName, ServicePlan>,
}

impl Program for Plans {
    type Transaction = usize;

    fn family(&self) -> Family {
        self.family
    }

    fn stage(
        &mut self,
        _: &Settings,
        changes: PlanChanges,
        _: State,
        _: &mut Report,
    ) -> Result<Option<usize>, Error> {
        let mut changed = 0;
        for (name, plan) in changes {
            let before = match plan.clone() {
                Some(plan) => self.plans.insert(name, plan),
                None => self.plans.remove(&name),
            };
            changed += usize::from(before != plan);
        }
        Ok(Some(changed))
    }

    fn commit(&mut self, changed: &usize, report: &mut Report) -> Result<Committed, Error> {
        report.added += changed;
        Ok(Committed::Yes)
    }

    fn reconcile(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error> {
        report.added += if fresh { self.plans.len() } else { 0 };
        Ok(Drift::default())
    }

    fn finish(&mut self, _: &mut Report) -> Result<(), Error> {
        Ok(())
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        Ok(Drift::default())
    }
}

impl FamilyProgram for Plans {
    const FAILURE_METRIC: &'static str = "sync_proxy_rules_nftables_sync_failures_total";

    fn locations(&self) -> Vec<Location> {
        Vec::new()
    }

    fn trace(&mut self, _: &Packet, _: &Host) -> Result<Trace, Error> {
        Ok(Trace::untouched())
    }
}

/// Detects no drift: no other process can change plans that are only in memory.
#[derive(Debug)]
struct NoDrift;

impl DriftDetector<Plans> for NoDrift {
    fn set_wake(&mut self, _: Wake) {}

    fn set_audit_period(&mut self, _: Duration) {}

    fn sync_begins(&mut self, _: &mut [Driver<Plans>], _: Instant) {}

    fn sync_ended(&mut self, _: &mut [Driver<Plans>], _: &[Outcome], _: Instant) -> bool {
        false
    }

    fn check(&mut self, _: &mut [Driver<Plans>], _: Instant) -> Option<DriftSignal> {
        None
    }

    fn next_check(&self) -> Option<Instant> {
        None
    }

    fn restart(&mut self) {}

    fn is_listening(&self) -> bool {
        true
    }
}
