//! Tests of `driver`.

use super::*;

/// Records the calls of the driver. Each name in `fails` makes one call fail.
#[derive(Default)]
struct Recorder {
    calls: Vec<&'static str>,
    fails: Vec<&'static str>,
    compare_all: bool,
    needs_all: bool,
    staged: usize,
}

impl Recorder {
    fn call(&mut self, name: &'static str) -> Result<(), Error> {
        self.calls.push(name);
        match self.fails.iter().position(|f| *f == name) {
            Some(i) => {
                self.fails.remove(i);
                Err(Error::kernel(Family::V4, name))
            }
            None => Ok(()),
        }
    }
}

impl Program for Recorder {
    type Transaction = ();

    fn family(&self) -> Family {
        Family::V4
    }

    fn stage(
        &mut self,
        _: &Settings,
        changes: PlanChanges,
        _: State,
        _: &mut Report,
    ) -> Result<Option<()>, Error> {
        self.staged += changes.len();
        self.call("stage")?;
        Ok((!self.needs_all).then_some(()))
    }

    fn commit(&mut self, (): &(), _: &mut Report) -> Result<Committed, Error> {
        self.call("commit")?;
        Ok(if self.compare_all { Committed::CompareAll } else { Committed::Yes })
    }

    fn reconcile(&mut self, fresh: bool, _: &mut Report) -> Result<Drift, Error> {
        self.call(if fresh { "reconcile fresh" } else { "reconcile" })?;
        Ok(Drift { missing: 1, ..Drift::default() })
    }

    fn finish(&mut self, _: &mut Report) -> Result<(), Error> {
        self.call("finish")
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        Ok(Drift::default())
    }
}

fn sync(driver: &mut Driver<Recorder>) -> (Vec<&'static str>, Result<Report, Error>) {
    let change = (portway_model::ServiceName::new("ns", "web"), None);
    let result = driver.sync(&Settings::default(), vec![change]);
    (std::mem::take(&mut driver.program.calls), result)
}

fn in_sync() -> Driver<Recorder> {
    let mut driver = Driver::new(Recorder::default());
    sync(&mut driver).1.expect("the first sync");
    driver
}

#[test]
fn the_first_sync_compares_and_reports_no_drift() {
    let mut driver = Driver::new(Recorder::default());
    driver.mark_stale();
    let (calls, report) = sync(&mut driver);
    assert_eq!(calls, ["stage", "reconcile fresh", "finish"]);
    let report = report.expect("no fault");
    assert!(report.full && report.drift.is_empty());
}

#[test]
fn a_change_costs_one_commit() {
    let mut driver = in_sync();
    let (calls, report) = sync(&mut driver);
    assert_eq!(calls, ["stage", "commit", "finish"]);
    assert!(!report.expect("no fault").full);
}

#[test]
fn foreign_changes_are_repaired_before_new_plans_and_reported_once() {
    let mut driver = in_sync();
    driver.mark_stale();
    let (calls, report) = sync(&mut driver);
    assert_eq!(calls, ["reconcile", "stage", "commit", "finish"]);
    assert_eq!(report.expect("no fault").drift.missing, 1);
    assert!(sync(&mut driver).1.expect("no fault").drift.is_empty());
}

#[test]
fn after_a_failed_commit_the_next_sync_reconciles_without_drift() {
    let mut driver = in_sync();
    driver.program.fails = vec!["commit"];
    let (calls, result) = sync(&mut driver);
    assert_eq!(calls, ["stage", "commit"]);
    assert!(result.is_err());
    let (calls, report) = sync(&mut driver);
    assert_eq!(calls, ["stage", "reconcile", "finish"]);
    assert!(report.expect("no fault").drift.is_empty());
}

#[test]
fn plans_are_staged_even_if_the_sync_fails() {
    for fails in ["stage", "commit", "reconcile"] {
        let mut driver = in_sync();
        driver.program.staged = 0;
        driver.mark_stale();
        driver.program.fails = vec![fails];
        assert!(sync(&mut driver).1.is_err(), "{fails}");
        assert_eq!(driver.program.staged, 1, "{fails}");
        assert!(sync(&mut driver).1.is_ok(), "{fails}");
    }
}

#[test]
fn drift_is_reported_once_its_repair_succeeds() {
    let mut driver = in_sync();
    driver.mark_stale();
    driver.program.fails = vec!["reconcile"];
    assert!(sync(&mut driver).1.is_err());
    assert_eq!(sync(&mut driver).1.expect("no fault").drift.missing, 1);
}

#[test]
fn a_transaction_that_cannot_be_committed_is_followed_by_a_reconcile() {
    let mut driver = in_sync();
    driver.program.compare_all = true;
    assert_eq!(sync(&mut driver).0, ["stage", "commit", "reconcile", "finish"]);
    driver.program.needs_all = true;
    assert_eq!(sync(&mut driver).0, ["stage", "reconcile", "finish"]);
}
