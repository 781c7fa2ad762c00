//! The states of a mode in one family, and the one way through them.
//!
//! ```text
//!            reconcile                  commit fails, settings need it
//!   Fresh ───────────────▶ InSync ─────────────────────────────────────▶ Stale
//!                            ▲  └──── commit: only the changes            │
//!                            └────────────────────────────────────────────┘ reconcile
//! ```
//!
//! A mode implements [`Program`]: how plans become a transaction, how that is committed, and how the kernel is listed and
//! compared. The driver decides which of these is called. What always holds: plans are taken over whatever fails,
//! because the agent does not repeat them; drift is reported only if other processes may have caused it.

use crate::{Drift, Error, PlanChanges, Report, Settings};
use portway_model::Family;

/// The state of the kernel's rules, as far as the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was applied yet; the kernel may hold the rules of an earlier run, or of kube-proxy.
    Fresh,
    /// The kernel holds the applied rules.
    InSync,
    /// The kernel may hold something else: a commit failed, or another process changed the rules.
    Stale,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The changes are in force.
    Yes,
    /// The kernel holds something else than expected: everything has to be compared.
    CompareAll,
}

/// One mode in one family, as [`Driver`] drives it.
pub trait Program {
    /// The changes of one sync.
    type Transaction;

    /// The family.
    fn family(&self) -> Family;

    /// Takes over settings and plans, even if it returns an error. The transaction is used only in [`State::InSync`];
    /// `None` if only comparing everything can apply the changes.
    fn stage(
        &mut self,
        settings: &Settings,
        changes: PlanChanges,
        state: State,
        report: &mut Report,
    ) -> Result<Option<Self::Transaction>, Error>;

    /// Applies a transaction.
    fn commit(&mut self, transaction: &Self::Transaction, report: &mut Report) -> Result<Committed, Error>;

    /// Lists the kernel, and makes it hold the rules of all plans. The differences found first come back.
    fn reconcile(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error>;

    /// The rules are in force: everything that has to wait for that.
    fn finish(&mut self, report: &mut Report) -> Result<(), Error>;

    /// Compares the kernel with the applied rules, and changes nothing.
    fn verify(&mut self) -> Result<Drift, Error>;

    /// Other processes may have changed something: facts about the host that were remembered are stale too.
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
    /// Nothing is applied yet.
    pub fn new(program: P) -> Driver<P> {
        Driver { program, state: State::Fresh, tampered: false }
    }

    /// The mode.
    pub fn program(&mut self) -> &mut P {
        &mut self.program
    }

    /// The mode, to read.
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

    /// The kernel may hold something else, and the mode itself is the reason: the next sync compares everything, and
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
        // The changes of other processes are repaired before new plans are taken over, so that only they are drift.
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

    /// False if everything has to be compared instead.
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

    /// Other processes may have changed the rules: the next sync compares everything, and reports the differences.
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
