//! Limits the reports about one field of an object: a client that writes the same bad object again and again must not
//! fill the log, nor the API server with Events.
//!
//! In: a report about an object. Out: the report, if it is to be made now. The reports that are held back are counted, and
//! the last of them is made with their number when the interval is over.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The shortest time between two reports about an object.
const INTERVAL: Duration = Duration::from_secs(10);

/// The reports about each object, or field of one.
#[derive(Debug)]
pub(crate) struct Repetition<R> {
    objects: HashMap<String, Entry<R>>,
}

#[derive(Debug)]
struct Entry<R> {
    made: Instant,
    held_back: u64,
    last: Option<R>,
}

/// The last report of those that were held back, and how many it stands for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldBack<R> {
    pub(crate) report: R,
    pub(crate) count: u64,
}

impl<R> Default for Repetition<R> {
    fn default() -> Repetition<R> {
        Repetition { objects: HashMap::new() }
    }
}

impl<R> Repetition<R> {
    /// Returns a report about an object if it is to be made now.
    pub(crate) fn admit(&mut self, object: String, report: R, now: Instant) -> Option<R> {
        if let Some(entry) = self.objects.get_mut(&object) {
            entry.held_back += 1;
            entry.last = Some(report);
            return None;
        }
        self.objects.insert(object, Entry { made: now, held_back: 0, last: None });
        Some(report)
    }

    /// The reports that are due, one for each object.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<HeldBack<R>> {
        let mut due = Vec::new();
        self.objects.retain(|_, entry| {
            if now.saturating_duration_since(entry.made) < INTERVAL {
                return true;
            }
            let count = std::mem::take(&mut entry.held_back);
            entry.made = now;
            let last = entry.last.take();
            let was_quiet = last.is_none();
            due.extend(last.map(|report| HeldBack { report, count }));
            !was_quiet
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_reports_are_counted_and_the_last_is_due_later() {
        let (start, mut reports) = (Instant::now(), Repetition::default());
        let admit = |reports: &mut Repetition<String>, object: &str, report: &str, now| {
            reports.admit(object.to_owned(), report.to_owned(), now).is_some()
        };
        assert!(admit(&mut reports, "a", "a1", start));
        assert!(admit(&mut reports, "b", "b1", start));
        for number in 2..=250 {
            assert!(!admit(&mut reports, "a", &format!("a{number}"), start));
        }
        assert_eq!(reports.due(start + Duration::from_secs(9)), []);
        let due = reports.due(start + INTERVAL);
        assert_eq!(due, [HeldBack { report: "a250".to_owned(), count: 249 }]);
        // b was quiet, so its next report is made at once; that of a after another interval.
        assert!(admit(&mut reports, "b", "b2", start + INTERVAL));
        assert!(!admit(&mut reports, "a", "a251", start + INTERVAL));
        assert_eq!(reports.due(start + 2 * INTERVAL).len(), 1);
        assert_eq!(reports.due(start + 3 * INTERVAL), []);
        assert!(reports.objects.is_empty(), "quiet objects are forgotten");
    }
}
