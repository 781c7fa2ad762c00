//! Limits the log lines about one field of an object: a client that writes the same bad object again and again must not
//! fill the log.
//!
//! In: a message about an object. Out: whether to log it now. The messages that were held back are counted, and the last
//! of them is logged with their number when the interval is over.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// The shortest time between two lines about an object.
const INTERVAL: Duration = Duration::from_secs(10);

/// The lines about each object.
#[derive(Debug)]
pub(crate) struct Repetition<K> {
    objects: HashMap<K, Line>,
}

#[derive(Debug)]
struct Line {
    logged: Instant,
    held_back: u64,
    last: String,
}

/// A message that was held back, and how many of the same object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldBack {
    pub(crate) message: String,
    pub(crate) count: u64,
}

impl<K> Default for Repetition<K> {
    fn default() -> Repetition<K> {
        Repetition { objects: HashMap::new() }
    }
}

impl<K: Eq + Hash> Repetition<K> {
    /// Whether to log a message about an object now.
    pub(crate) fn may_log(&mut self, object: K, message: &str, now: Instant) -> bool {
        match self.objects.get_mut(&object) {
            Some(line) => {
                line.held_back += 1;
                message.clone_into(&mut line.last);
                false
            }
            None => {
                self.objects.insert(object, Line { logged: now, held_back: 0, last: String::new() });
                true
            }
        }
    }

    /// The messages that are due, one for each object.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<HeldBack> {
        let mut due = Vec::new();
        self.objects.retain(|_, line| {
            if now.saturating_duration_since(line.logged) < INTERVAL {
                return true;
            }
            let count = std::mem::take(&mut line.held_back);
            line.logged = now;
            if count > 0 {
                due.push(HeldBack { message: std::mem::take(&mut line.last), count });
            }
            count > 0
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_messages_are_counted_and_the_last_is_due_later() {
        let (start, mut lines) = (Instant::now(), Repetition::default());
        assert!(lines.may_log("a", "a1", start));
        assert!(lines.may_log("b", "b1", start));
        for number in 2..=250 {
            assert!(!lines.may_log("a", &format!("a{number}"), start));
        }
        assert_eq!(lines.due(start + Duration::from_secs(9)), []);
        let due = lines.due(start + INTERVAL);
        assert_eq!(due, [HeldBack { message: "a250".to_owned(), count: 249 }]);
        // b was quiet, so its next message is logged at once; that of a after another interval.
        assert!(lines.may_log("b", "b2", start + INTERVAL));
        assert!(!lines.may_log("a", "a251", start + INTERVAL));
        assert_eq!(lines.due(start + 2 * INTERVAL).len(), 1);
        assert_eq!(lines.due(start + 3 * INTERVAL), []);
        assert!(lines.objects.is_empty(), "quiet objects are forgotten");
    }
}
