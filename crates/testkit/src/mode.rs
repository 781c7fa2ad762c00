//! A mode in one family over a fake kernel, as the packet tables and properties drive it.

use portway_dataplane::{Drift, Driver, Error, PlanChanges, Program, Report, Settings};
use portway_model::Family;

/// One family of a mode.
pub trait FamilyMode {
    /// The family.
    fn family(&self) -> Family;

    /// Programs the rules of `settings` and of all plans so far.
    fn sync(&mut self, settings: &Settings, changes: PlanChanges) -> Result<Report, Error>;

    /// Another process may have changed the rules: the next sync lists the kernel.
    fn mark_stale(&mut self);

    /// Compares the kernel with the applied rules.
    fn verify(&mut self) -> Result<Drift, Error>;
}

impl<P: Program> FamilyMode for Driver<P> {
    fn family(&self) -> Family {
        Driver::family(self)
    }

    fn sync(&mut self, settings: &Settings, changes: PlanChanges) -> Result<Report, Error> {
        Driver::sync(self, settings, changes)
    }

    fn mark_stale(&mut self) {
        Driver::mark_stale(self);
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        Driver::verify(self)
    }
}
