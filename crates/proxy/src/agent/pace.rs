//! When to sync. The first change after a pause is synced at once; under steady change, syncs take at most a tenth of
//! the time, unless they are so long that the pause reaches its limit. A configured `minSyncPeriod` replaces that rule.
//! Failed syncs are retried with growing pauses. Without any change there is a sync every `syncPeriod`, because a new
//! address of this node is not announced.

use crate::config::SyncPeriods;
use std::time::{Duration, Instant};

/// A sync that took `t` is followed by a pause of `9 t`, and at most of this.
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
    /// `periods` are the configured shortest and longest time between syncs.
    pub(crate) fn new(periods: SyncPeriods) -> Pace {
        Pace { periods, not_before: None, due: None, last: None, failures: 0 }
    }

    pub(crate) fn set_periods(&mut self, periods: SyncPeriods) {
        self.periods = periods;
    }

    /// Requests a sync because of a change; true if none was requested before.
    pub(crate) fn request(&mut self, now: Instant) -> bool {
        let first = self.due.is_none();
        self.due.get_or_insert_with(|| self.not_before.map_or(now, |t| t.max(now)));
        first
    }

    /// Requests a sync at `when` at the latest, for a repair, regardless of pauses and retries.
    pub(crate) fn request_by(&mut self, when: Instant) {
        self.due = Some(self.due.map_or(when, |due| due.min(when)));
    }

    /// When the next sync is due. `None` until the first one is requested.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.or_else(|| self.last.map(|last| last + self.periods.period))
    }

    /// Records the end of a sync.
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
    fn under_steady_change_syncs_take_at_most_a_tenth_of_the_time() {
        let start = Instant::now();
        let mut pace = pace(None);
        assert!(pace.request(start));
        assert_eq!(pace.due(), Some(start));
        pace.done(start, start + 2 * MS, false);
        assert_eq!(pace.due(), Some(start + 2 * MS + PERIOD));
        assert!(pace.request(start + 3 * MS));
        assert!(!pace.request(start + 4 * MS), "a sync is already due");
        assert_eq!(pace.due(), Some(start + 20 * MS));
        pace.done(start, start + 10_000 * MS, false);
        pace.request(start + 10_000 * MS);
        assert_eq!(pace.due(), Some(start + 11_000 * MS), "the pause is at most a second");
    }

    #[test]
    fn the_configured_min_sync_period_is_kept() {
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
        pace.request_by(start + 5 * MS);
        assert_eq!(pace.due(), Some(start + 5 * MS));
        pace.request_by(start + 9 * MS);
        assert_eq!(pace.due(), Some(start + 5 * MS));
    }

    #[test]
    fn failed_syncs_are_retried_with_growing_pauses() {
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
    fn no_sync_is_due_before_the_first_request() {
        let start = Instant::now();
        let mut pace = pace(None);
        assert_eq!(pace.due(), None);
        pace.done(start, start, false);
        pace.set_periods(SyncPeriods { period: MS, min: None });
        assert_eq!(pace.due(), Some(start + MS), "a new period applies at once");
    }
}
