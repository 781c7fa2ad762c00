//! The state of a mode's rules in one family, and its transitions.
//!
//! ```text
//!            reconcile                  commit fails, settings need it
//!   Fresh ───────────────▶ InSync ─────────────────────────────────────▶ Stale
//!                            ▲  └──── commit: only the changes            │
//!                            └────────────────────────────────────────────┘ reconcile
//! ```
//!
//! A mode implements [`Program`]: how plans become a transaction, how that is committed, and how the kernel is listed and
//! compared. The driver decides which of these is called. Invariants: plans are staged even if the sync fails, because
//! the agent does not repeat them; drift is reported only if other processes may have caused it.

use crate::{Drift, Error, PlanChanges, Report, Settings};
use portway_model::Family;

/// The state of the kernel's rules, as known to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was applied yet; the kernel may hold the rules of an earlier run, or of kube-proxy.
    Fresh,
    /// The kernel holds the applied rules.
    InSync,
    /// The kernel may hold other rules: a commit failed, or another process changed the rules.
    Stale,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The changes are in force.
    Yes,
    /// The kernel holds other rules than expected: all rules have to be compared.
    CompareAll,
}

/// One mode in one family. [`Driver`] calls these methods.
pub trait Program {
    /// The changes of one sync.
    type Transaction;

    /// The family.
    fn family(&self) -> Family;

    /// Stores settings and plans, even if it returns an error. The transaction is used only in [`State::InSync`];
    /// `None` if the changes can be applied only by [`Program::reconcile`].
    fn stage(
        &mut self,
        settings: &Settings,
        changes: PlanChanges,
        state: State,
        report: &mut Report,
    ) -> Result<Option<Self::Transaction>, Error>;

    /// Applies a transaction.
    fn commit(&mut self, transaction: &Self::Transaction, report: &mut Report) -> Result<Committed, Error>;

    /// Lists the kernel's rules, and makes the kernel hold the rules of all plans. Returns the differences that were
    /// found before.
    fn reconcile(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error>;

    /// Called when the rules are in force, for work that has to be done after that.
    fn finish(&mut self, report: &mut Report) -> Result<(), Error>;

    /// Compares the kernel with the applied rules, and changes nothing.
    fn verify(&mut self) -> Result<Drift, Error>;

    /// Called when other processes may have changed the rules: cached facts about the host are stale too.
    fn mark_stale(&mut self) {}
}

/// A mode in one family, and the state of its rules.
#[derive(Debug)]
pub struct Driver<P> {
    program: P,
    state: State,
    /// Another process may have changed the rules since the last comparison.
    tampered: bool,
}

impl<P> Driver<P> {
    /// A driver in state [`State::Fresh`].
    pub fn new(program: P) -> Driver<P> {
        Driver { program, state: State::Fresh, tampered: false }
    }

    /// The mode's program.
    pub fn program(&mut self) -> &mut P {
        &mut self.program
    }

    /// The mode's program, immutable.
    pub fn as_program(&self) -> &P {
        &self.program
    }

    /// The state of the kernel's rules.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether nothing was applied yet.
    pub fn is_fresh(&self) -> bool {
        self.state == State::Fresh
    }

    /// Called when the kernel may hold other rules because of the mode itself: the next sync compares all rules, and
    /// reports no drift.
    pub fn invalidate(&mut self) {
        if self.state == State::InSync {
            self.state = State::Stale;
        }
    }
}

impl<P: Program> Driver<P> {
    /// Makes the kernel hold the rules of `settings` and of all plans so far.
    pub fn sync(&mut self, settings: &Settings, changes: PlanChanges) -> Result<Report, Error> {
        let mut report = Report::default();
        // Changes by other processes are repaired before new plans are staged, so that the new plans do not count as
        // drift.
        let repaired = if self.tampered { self.reconcile(&mut report) } else { Ok(()) };
        let staged = self.program.stage(settings, changes, self.state, &mut report);
        repaired?;
        let transaction = staged.inspect_err(|_| self.invalidate())?;
        if !self.commit(transaction, &mut report)? {
            self.reconcile(&mut report)?;
        }
        self.program.finish(&mut report)?;
        Ok(report)
    }

    /// Commits a transaction; false if all rules have to be compared instead.
    fn commit(&mut self, transaction: Option<P::Transaction>, report: &mut Report) -> Result<bool, Error> {
        let Some(transaction) = transaction.filter(|_| self.state == State::InSync) else { return Ok(false) };
        let committed = self.program.commit(&transaction, report).inspect_err(|_| self.invalidate())?;
        if committed == Committed::CompareAll {
            self.invalidate();
        }
        Ok(committed == Committed::Yes)
    }

    fn reconcile(&mut self, report: &mut Report) -> Result<(), Error> {
        let fresh = self.state == State::Fresh;
        report.full = true;
        let drift = self.program.reconcile(fresh, report).inspect_err(|_| self.invalidate())?;
        if self.tampered {
            report.drift.merge(drift);
        }
        (self.state, self.tampered) = (State::InSync, false);
        Ok(())
    }

    /// Called when other processes may have changed the rules: the next sync compares all rules, and reports the
    /// differences.
    pub fn mark_stale(&mut self) {
        self.program.mark_stale();
        if self.state != State::Fresh {
            (self.state, self.tampered) = (State::Stale, true);
        }
    }

    /// Compares the kernel with the applied rules, and changes nothing.
    pub fn verify(&mut self) -> Result<Drift, Error> {
        self.program.verify()
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.program.family()
    }
}

#[cfg(test)]
mod tests;
