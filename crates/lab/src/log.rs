//! The output of a process: the last lines are kept, and can be searched and waited for.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The number of lines that are kept.
const KEPT: usize = 20_000;

/// A line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it was read, counted from the start.
    pub at: Duration,
    /// Its text.
    pub text: String,
}

/// The output of a process, of which the last lines are kept. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Log {
    shared: Arc<(Mutex<Lines>, Condvar)>,
    start: Instant,
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<LogLine>,
    /// How many lines were dropped before those kept.
    dropped: usize,
    /// How many pipes are still open.
    open: usize,
}

impl Default for Log {
    fn default() -> Log {
        Log { shared: Arc::default(), start: Instant::now() }
    }
}

impl Log {
    /// The lines that are kept.
    pub fn lines(&self) -> Vec<LogLine> {
        self.lock().kept.iter().cloned().collect()
    }

    /// Whether a line contains `text`.
    pub fn contains(&self, text: &str) -> bool {
        self.count(text) > 0
    }

    /// How many lines contain `text`.
    pub fn count(&self, text: &str) -> usize {
        self.lock().kept.iter().filter(|line| line.text.contains(text)).count()
    }

    /// Whether a line has a level: `ERROR`, `WARN` or `INFO`.
    pub fn has_level(&self, level: &str) -> bool {
        self.lock().kept.iter().any(|line| line_has_level(&line.text, level))
    }

    /// The last `count` lines as text.
    pub fn tail(&self, count: usize) -> String {
        let lines = self.lock();
        let skip = lines.kept.len().saturating_sub(count);
        lines.kept.iter().skip(skip).map(|line| format!("  {}\n", line.text)).collect()
    }

    /// Reads a pipe to its end, on a thread of its own.
    pub(crate) fn follow(&self, pipe: impl Read + Send + 'static) {
        self.lock().open += 1;
        let log = self.clone();
        thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut bytes = Vec::new();
            while pipe.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
                log.push(String::from_utf8_lossy(bytes.trim_ascii_end()).into_owned());
                bytes.clear();
            }
            log.lock().open -= 1;
            log.shared.1.notify_all();
        });
    }

    fn push(&self, text: String) {
        let line = LogLine { at: self.start.elapsed(), text };
        let mut lines = self.lock();
        lines.kept.push_back(line);
        if lines.kept.len() > KEPT {
            lines.kept.pop_front();
            lines.dropped += 1;
        }
        drop(lines);
        self.shared.1.notify_all();
    }

    /// Whether all pipes are closed, so that no line can follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.lock().open == 0
    }

    /// Finds the first line after the first `seen` that matches; waits for more lines until `deadline`.
    pub(crate) fn wait_for(
        &self,
        seen: &mut usize,
        predicate: impl Fn(&str) -> bool,
        deadline: Instant,
    ) -> Option<String> {
        let mut lines = self.lock();
        loop {
            let skip = seen.saturating_sub(lines.dropped);
            let found = lines.kept.iter().skip(skip).find(|line| predicate(&line.text));
            if let Some(line) = found {
                return Some(line.text.clone());
            }
            *seen = lines.dropped + lines.kept.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.1.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // A panic while it was locked leaves it consistent: predicates, which may panic, only read it.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{:>9.3}s {}", line.at.as_secs_f64(), line.text))
    }
}

/// Whether a line in klog's format has a level: its first letter, followed by month and day.
pub fn line_has_level(line: &str, level: &str) -> bool {
    let mut characters = line.chars();
    characters.next() == level.chars().next() && characters.next().is_some_and(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_up_to_a_limit_and_found_once() {
        let log = Log::default();
        let text: String = (0..KEPT + 5).map(|n| format!("line {n}\n")).collect();
        log.follow(std::io::Cursor::new(text));
        let deadline = || Instant::now() + Duration::from_secs(10);
        let last = format!("line {}", KEPT + 4);
        let mut seen = 0;
        assert_eq!(log.wait_for(&mut seen, |line| line == last, deadline()), Some(last.clone()));
        assert_eq!(log.lines().len(), KEPT);
        assert_eq!(log.lines()[0].text, "line 5");
        assert_eq!(log.tail(2), format!("  line {}\n  {last}\n", KEPT + 3));
        assert_eq!(log.wait_for(&mut 0, |line| line == "never", Instant::now()), None);
    }
}
