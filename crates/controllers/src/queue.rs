//! A work queue: each key is in it once, keys are taken in the order in which they came, and a key that is being worked
//! on is not taken again until that is done. A key whose work failed comes back after a wait that grows with every
//! failure. Pure: the time is handed in.

use crate::key::Key;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The wait after the first failure.
const FIRST_WAIT: Duration = Duration::from_millis(5);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Counts and times, for metrics.
#[derive(Debug, Default)]
pub struct QueueFigures {
    /// Keys that were added.
    pub adds: u64,
    /// Keys that were added after a failure.
    pub retries: u64,
    /// How long keys waited before they were taken, since this was last read.
    pub waits: Vec<Duration>,
    /// How long the work took, since this was last read.
    pub works: Vec<Duration>,
}

/// The state of a key.
#[derive(Debug, Default)]
struct Entry {
    /// Since when it is due, if it is in the queue.
    due: Option<Instant>,
    /// When it will be due, if it waits.
    later: Option<Instant>,
    /// Since when it is worked on.
    working: Option<Instant>,
    /// It was added while it was worked on.
    again: Option<Instant>,
    failures: u32,
}

/// A work queue.
#[derive(Debug, Default)]
pub struct Queue {
    entries: HashMap<Key, Entry>,
    due: VecDeque<Key>,
    later: BTreeSet<(Instant, Key)>,
    working: usize,
    figures: QueueFigures,
}

impl Queue {
    /// Adds a key that is due at `at`, or earlier if it already is.
    pub fn add(&mut self, key: &Key, at: Instant, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        self.figures.adds += u64::from(entry.due.is_none() && entry.again.is_none());
        if entry.working.is_some() {
            entry.again = Some(entry.again.map_or(at, |again| again.min(at)));
            return;
        }
        self.schedule(key, at, now);
    }

    fn schedule(&mut self, key: &Key, at: Instant, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.due.is_some() {
            return;
        }
        if at <= now {
            if let Some(later) = entry.later.take() {
                self.later.remove(&(later, key.clone()));
            }
            entry.due = Some(now);
            self.due.push_back(key.clone());
        } else if entry.later.is_none_or(|later| at < later) {
            if let Some(later) = entry.later.replace(at) {
                self.later.remove(&(later, key.clone()));
            }
            self.later.insert((at, key.clone()));
        }
    }

    /// Takes the next key that is due. The caller says when the work on it is done.
    pub fn take(&mut self, now: Instant) -> Option<Key> {
        while let Some((at, key)) = self.later.first().cloned().filter(|(at, _)| *at <= now) {
            self.later.remove(&(at, key.clone()));
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.later = None;
            }
            self.schedule(&key, now, now);
        }
        let key = self.due.pop_front()?;
        let entry = self.entries.entry(key.clone()).or_default();
        if let Some(since) = entry.due.take() {
            self.figures.waits.push(now.saturating_duration_since(since));
        }
        entry.working = Some(now);
        self.working += 1;
        Some(key)
    }

    /// The work on a key has ended; if it failed, the key comes back after a wait. Returns the wait.
    pub fn done(&mut self, key: &Key, failed: bool, now: Instant) -> Option<Duration> {
        let entry = self.entries.get_mut(key)?;
        let since = entry.working.take()?;
        self.working -= 1;
        self.figures.works.push(now.saturating_duration_since(since));
        let wait = failed.then(|| FIRST_WAIT.saturating_mul(1 << entry.failures.min(20)).min(LONGEST_WAIT));
        entry.failures = if failed { entry.failures + 1 } else { 0 };
        let again = entry.again.take();
        if wait.is_some() {
            self.figures.retries += 1;
        }
        // A change ends the wait, as it does for a key that waits already.
        match wait.map(|wait| now + wait).into_iter().chain(again).min() {
            Some(at) => self.schedule(key, at, now),
            None => _ = self.entries.remove(key),
        }
        wait
    }

    /// When the next key that waits is due; `None` if none waits. Keys that are due already do not count.
    pub fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// The number of keys that are due.
    pub fn depth(&self) -> usize {
        self.due.len()
    }

    /// How often in a row the work on a key has failed.
    pub fn failures(&self, key: &Key) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// How long the keys that are worked on have been: together, and the longest.
    pub fn unfinished(&self, now: Instant) -> (Duration, Duration) {
        if self.working == 0 {
            return Default::default();
        }
        let working = self.entries.values().filter_map(|entry| entry.working);
        let times = working.map(|since| now.saturating_duration_since(since));
        times.fold(Default::default(), |(sum, longest): (Duration, Duration), time| {
            (sum + time, longest.max(time))
        })
    }

    /// Counts and times; times are cleared.
    pub fn take_figures(&mut self) -> QueueFigures {
        let QueueFigures { adds, retries, .. } = self.figures;
        std::mem::replace(&mut self.figures, QueueFigures { adds, retries, ..QueueFigures::default() })
    }
}

#[cfg(test)]
mod tests;
