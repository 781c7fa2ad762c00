//! When to sync: at once when all is calm, and under steady change so that syncing takes at most a tenth of the
//! time. A `minSyncPeriod` in the configuration is kept to instead. After a failure: later and later. When nothing
//! happens, once in a `syncPeriod`: a new address of this machine is not announced.

use crate::config::SyncPeriods;
use std::time::{Duration, Instant};

/// A sync that took `t` is followed by a pause of `9 t`, but by no longer one than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Decides when the next sync is due.
#[derive(Debug)]
pub(crate) struct Pace {
    periods: SyncPeriods,
    not_before: Option<Instant>,
    due: Option<Instant>,
    last: Option<Instant>,
    failures: u32,
}

impl Pace {
    /// With the least and the longest time between syncs that the configuration asks for.
    pub(crate) fn new(periods: SyncPeriods) -> Pace {
        Pace { periods, not_before: None, due: None, last: None, failures: 0 }
    }

    pub(crate) fn set_periods(&mut self, periods: SyncPeriods) {
        self.periods = periods;
    }

    /// Something changed; true if nothing was waiting before.
    pub(crate) fn request(&mut self, now: Instant) -> bool {
        let fresh = self.due.is_none();
        self.due.get_or_insert_with(|| self.not_before.map_or(now, |t| t.max(now)));
        fresh
    }

    /// Something has to be mended at `when`, whatever else was planned for later.
    pub(crate) fn hurry(&mut self, when: Instant) {
        self.due = Some(self.due.map_or(when, |due| due.min(when)));
    }

    /// When to sync next. The first one has to be requested.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.or_else(|| self.last.map(|last| last + self.periods.period))
    }

    /// A sync is over.
    pub(crate) fn done(&mut self, started: Instant, now: Instant, failed: bool) {
        let took = now.saturating_duration_since(started);
        let pause =
            self.periods.min.map_or_else(|| (took * 9).min(LONGEST_PAUSE), |min| min.saturating_sub(took));
        self.not_before = Some(now + pause);
        self.last = Some(now);
        self.failures = if failed { self.failures + 1 } else { 0 };
        self.due = failed.then(|| {
            let wait = FIRST_RETRY.saturating_mul(1 << (self.failures - 1).min(10));
            now + wait.min(LAST_RETRY)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PERIOD: Duration = Duration::from_secs(30);

    fn pace(min: Option<Duration>) -> Pace {
        Pace::new(SyncPeriods { period: PERIOD, min })
    }

    #[test]
    fn calm_means_at_once_and_steady_change_a_tenth_of_the_time() {
        let start = Instant::now();
        let mut pace = pace(None);
        assert!(pace.request(start));
        assert_eq!(pace.due(), Some(start));
        pace.done(start, start + 2 * MS, false);
        assert_eq!(pace.due(), Some(start + 2 * MS + PERIOD));
        assert!(pace.request(start + 3 * MS));
        assert!(!pace.request(start + 4 * MS), "one is already waiting");
        assert_eq!(pace.due(), Some(start + 20 * MS));
        pace.done(start, start + 10_000 * MS, false);
        pace.request(start + 10_000 * MS);
        assert_eq!(pace.due(), Some(start + 11_000 * MS), "however long the sync took");
    }

    #[test]
    fn the_configured_period_is_kept() {
        let start = Instant::now();
        let mut pace = pace(Some(Duration::from_secs(1)));
        pace.request(start);
        pace.done(start, start + 5 * MS, false);
        pace.request(start + 6 * MS);
        assert_eq!(pace.due(), Some(start + 1000 * MS));
    }

    #[test]
    fn a_repair_does_not_wait_for_a_retry() {
        let start = Instant::now();
        let mut pace = Pace::new(SyncPeriods { period: Duration::from_secs(30), min: None });
        for _ in 0..40 {
            pace.done(start, start, true);
        }
        pace.hurry(start + 5 * MS);
        assert_eq!(pace.due(), Some(start + 5 * MS));
        pace.hurry(start + 9 * MS);
        assert_eq!(pace.due(), Some(start + 5 * MS));
    }

    #[test]
    fn failures_are_tried_again_later_and_later() {
        let start = Instant::now();
        let mut pace = pace(None);
        pace.done(start, start, true);
        assert_eq!(pace.due(), Some(start + 500 * MS));
        pace.done(start, start, true);
        assert_eq!(pace.due(), Some(start + 1000 * MS));
        for _ in 0..40 {
            pace.done(start, start, true);
        }
        assert_eq!(pace.due(), Some(start + 30_000 * MS));
        pace.done(start, start, false);
        assert_eq!(pace.due(), Some(start + PERIOD));
    }

    #[test]
    fn nothing_is_synced_unless_asked_for_once() {
        let start = Instant::now();
        let mut pace = pace(None);
        assert_eq!(pace.due(), None);
        pace.done(start, start, false);
        pace.set_periods(SyncPeriods { period: MS, min: None });
        assert_eq!(pace.due(), Some(start + MS), "a new period counts at once");
    }
}
