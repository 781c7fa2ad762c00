//! Which warnings are due to be written.
//!
//! In: warnings and the time. Out: write it, count it up, or leave it. The memory is bounded: when it is full, the
//! warning that was written longest ago is forgotten, which at worst writes it again too early.

use super::Warning;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The same warning is written at most this often.
const QUIET: Duration = Duration::from_secs(600);

/// What to do about a warning.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It was written a short while ago.
    Not,
    /// It is new.
    First,
    /// The Event of this name has now happened so often.
    Again { event: String, count: i32 },
}

struct Entry {
    since: Instant,
    count: i32,
    /// The Event's name; empty if it could not be written.
    event: String,
}

/// The warnings of late.
pub(super) struct Series {
    room: usize,
    entries: HashMap<Warning, Entry>,
}

impl Series {
    pub(super) fn new(room: usize) -> Self {
        Series { room, entries: HashMap::new() }
    }

    /// Counts a warning and says what to do about it. One that could not be written is not tried again before its
    /// time either: the API server may be failing under load.
    pub(super) fn due(&mut self, warning: &Warning, now: Instant) -> Due {
        if let Some(entry) = self.entries.get_mut(warning) {
            entry.count = entry.count.saturating_add(1);
            if now.saturating_duration_since(entry.since) < QUIET {
                return Due::Not;
            }
            entry.since = now;
            return match entry.event.is_empty() {
                true => Due::First,
                false => Due::Again { event: entry.event.clone(), count: entry.count },
            };
        }
        if self.entries.len() >= self.room {
            let oldest =
                self.entries.iter().min_by_key(|(_, entry)| entry.since).map(|(warning, _)| warning.clone());
            oldest.and_then(|warning| self.entries.remove(&warning));
        }
        self.entries.insert(warning.clone(), Entry { since: now, count: 1, event: String::new() });
        Due::First
    }

    /// Remembers the Event a warning was written to.
    pub(super) fn written(&mut self, warning: &Warning, event: String) {
        if let Some(entry) = self.entries.get_mut(warning) {
            entry.event = event;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Regarding;
    use super::*;
    use portway_api::{Node, Resource};

    fn warning(note: &str) -> Warning {
        let regarding = Regarding {
            resource: Node::TYPE,
            namespace: String::new(),
            name: "n".into(),
            uid: String::new(),
        };
        Warning { regarding, reason: "R".into(), note: note.into() }
    }

    #[test]
    fn a_repetition_waits_and_is_counted() {
        let start = Instant::now();
        let mut series = Series::new(10);
        assert_eq!(series.due(&warning("a"), start), Due::First);
        series.written(&warning("a"), "n.1".into());
        assert_eq!(series.due(&warning("a"), start + Duration::from_secs(599)), Due::Not);
        assert_eq!(series.due(&warning("b"), start), Due::First);
        let later = start + Duration::from_secs(600);
        assert_eq!(series.due(&warning("a"), later), Due::Again { event: "n.1".into(), count: 3 });
        assert_eq!(series.due(&warning("a"), later), Due::Not);
    }

    #[test]
    fn one_that_was_not_written_is_new_next_time() {
        let start = Instant::now();
        let mut series = Series::new(10);
        series.due(&warning("a"), start);
        assert_eq!(series.due(&warning("a"), start + QUIET), Due::First);
    }

    #[test]
    fn the_oldest_makes_room() {
        let start = Instant::now();
        let mut series = Series::new(2);
        for (index, note) in ["a", "b", "c"].iter().enumerate() {
            series.due(&warning(note), start + Duration::from_secs(index as u64));
        }
        assert_eq!(series.entries.len(), 2);
        assert_eq!(series.due(&warning("c"), start), Due::Not);
        assert_eq!(series.due(&warning("a"), start), Due::First);
    }
}
