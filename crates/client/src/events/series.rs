//! Counts repeated reports and decides when each is written.
//!
//! In: reports and the time. Out: whether to create an Event, to update the count of one, or to do neither. The number
//! of entries is bounded: when the limit is reached, the entry that was written longest ago is removed, and its
//! report may then be written again too early.

use super::Report;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Minimum time between two writes of the same report.
const INTERVAL: Duration = Duration::from_secs(600);

/// Whether a report is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The last write, or attempt, was less than [`INTERVAL`] ago.
    NotYet,
    /// Create an Event.
    First,
    /// Update the Event of this name with this count.
    Repeated { event: String, count: i32 },
}

struct Entry {
    /// Time of the last write or attempt.
    since: Instant,
    count: i32,
    /// The Event's name; empty if it was not written.
    event: String,
}

/// Recent reports and their counts.
pub(super) struct Series {
    capacity: usize,
    entries: HashMap<Report, Entry>,
}

impl Series {
    pub(super) fn new(capacity: usize) -> Self {
        Series { capacity, entries: HashMap::new() }
    }

    /// Counts a report and returns whether to write it. A failed write is not repeated within [`INTERVAL`] either,
    /// since the API server may be overloaded.
    pub(super) fn due(&mut self, report: &Report, now: Instant) -> Due {
        if let Some(entry) = self.entries.get_mut(report) {
            entry.count = entry.count.saturating_add(1);
            if now.saturating_duration_since(entry.since) < INTERVAL {
                return Due::NotYet;
            }
            entry.since = now;
            return match entry.event.is_empty() {
                true => Due::First,
                false => Due::Repeated { event: entry.event.clone(), count: entry.count },
            };
        }
        if self.entries.len() >= self.capacity {
            let oldest =
                self.entries.iter().min_by_key(|(_, entry)| entry.since).map(|(report, _)| report.clone());
            oldest.and_then(|report| self.entries.remove(&report));
        }
        self.entries.insert(report.clone(), Entry { since: now, count: 1, event: String::new() });
        Due::First
    }

    /// Stores the name of the Event to which a report was written.
    pub(super) fn written(&mut self, report: &Report, event: String) {
        if let Some(entry) = self.entries.get_mut(report) {
            entry.event = event;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Regarding;
    use super::*;
    use portway_api::{Node, Resource};

    fn report(note: &str) -> Report {
        let regarding = Regarding {
            resource: Node::TYPE,
            namespace: String::new(),
            name: "n".into(),
            uid: String::new(),
        };
        Report { severity: "Warning", regarding, reason: "R".into(), note: note.into() }
    }

    #[test]
    fn repetitions_are_counted_and_written_after_the_interval() {
        let start = Instant::now();
        let mut series = Series::new(10);
        assert_eq!(series.due(&report("a"), start), Due::First);
        series.written(&report("a"), "n.1".into());
        assert_eq!(series.due(&report("a"), start + Duration::from_secs(599)), Due::NotYet);
        assert_eq!(series.due(&report("b"), start), Due::First);
        let later = start + Duration::from_secs(600);
        assert_eq!(series.due(&report("a"), later), Due::Repeated { event: "n.1".into(), count: 3 });
        assert_eq!(series.due(&report("a"), later), Due::NotYet);
    }

    #[test]
    fn a_report_whose_write_failed_creates_an_event_next_time() {
        let start = Instant::now();
        let mut series = Series::new(10);
        series.due(&report("a"), start);
        assert_eq!(series.due(&report("a"), start + INTERVAL), Due::First);
    }

    #[test]
    fn the_oldest_report_is_removed_when_the_limit_is_reached() {
        let start = Instant::now();
        let mut series = Series::new(2);
        for (index, note) in ["a", "b", "c"].iter().enumerate() {
            series.due(&report(note), start + Duration::from_secs(index as u64));
        }
        assert_eq!(series.entries.len(), 2);
        assert_eq!(series.due(&report("c"), start), Due::NotYet);
        assert_eq!(series.due(&report("a"), start), Due::First);
    }
}
