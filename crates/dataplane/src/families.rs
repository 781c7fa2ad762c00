//! Joins a mode's programs of all families and its drift detector to one [`Backend`].

use crate::trace::{Host, Packet, Trace};
use crate::{
    Backend, CounterSource, Drift, DriftDetector, DriftSignal, Driver, Error, Location, Outcome, PlanChanges,
    Program, Report, Settings, Wake,
};
use portway_model::Family;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The methods that [`Families`] needs besides those of [`Program`].
pub trait FamilyProgram: Program + fmt::Debug {
    /// The metric, without its prefix, that counts failed syncs.
    const FAILURE_METRIC: &'static str;

    /// The locations that it uses.
    fn locations(&self) -> Vec<Location>;

    /// Counters of the mode, of all families.
    fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        None
    }

    /// Follows the first packet of a connection through the rules of the last sync.
    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error>;
}

/// One program for each family, and the drift detector of all of them.
#[derive(Debug)]
pub struct Families<P, D> {
    programs: Vec<Driver<P>>,
    drift: D,
}

impl<P: FamilyProgram, D: DriftDetector<P>> Families<P, D> {
    /// Opens a program for each family. If IPv6 is not supported, only IPv4 is programmed; other errors are returned.
    pub fn open(
        families: &[Family],
        open: impl Fn(Family) -> Result<P, Error>,
        drift: D,
    ) -> Result<Families<P, D>, Error> {
        let mut programs = Vec::new();
        for family in families {
            match open(*family) {
                Ok(program) => programs.push(Driver::new(program)),
                Err(error) if *family == Family::V6 && !programs.is_empty() && !error.is_permission() => {
                    tracing::warn!("only IPv4 is programmed: {error}");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Families { programs, drift })
    }

    fn program(&mut self, family: Family) -> Result<&mut Driver<P>, Error> {
        let found = self.programs.iter_mut().find(|p| p.family() == family);
        found.ok_or_else(|| Error::kernel(family, "this family is not programmed"))
    }
}

impl<P: FamilyProgram, D: DriftDetector<P>> Backend for Families<P, D> {
    fn families(&self) -> Vec<Family> {
        self.programs.iter().map(Driver::family).collect()
    }

    fn sync(&mut self, family: Family, settings: &Settings, changes: PlanChanges) -> Result<Report, Error> {
        self.program(family)?.sync(settings, changes)
    }

    fn mark_stale(&mut self) {
        self.programs.iter_mut().for_each(Driver::mark_stale);
    }

    fn verify(&mut self, family: Family) -> Result<Drift, Error> {
        self.program(family)?.verify()
    }

    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error> {
        self.program(Family::of(packet.destination))?.program().trace(packet, host)
    }

    fn locations(&self) -> Vec<Location> {
        self.programs.iter().flat_map(|p| p.as_program().locations()).collect()
    }

    fn failure_metric(&self) -> &'static str {
        P::FAILURE_METRIC
    }

    fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        self.programs.first()?.as_program().counters()
    }

    fn set_wake(&mut self, wake: Wake) {
        self.drift.set_wake(wake);
    }

    fn set_audit_period(&mut self, period: Duration) {
        self.drift.set_audit_period(period);
    }

    fn sync_begins(&mut self, now: Instant) {
        self.drift.sync_begins(&mut self.programs, now);
    }

    fn sync_ended(&mut self, outcomes: &[Outcome], now: Instant) -> bool {
        self.drift.sync_ended(&mut self.programs, outcomes, now)
    }

    fn detect_drift(&mut self, now: Instant) -> Option<DriftSignal> {
        self.drift.check(&mut self.programs, now)
    }

    fn next_drift_check(&self) -> Option<Instant> {
        self.drift.next_check()
    }

    fn restart_drift_detection(&mut self) {
        self.drift.restart();
    }

    fn is_listening(&self) -> bool {
        self.drift.is_listening()
    }
}
