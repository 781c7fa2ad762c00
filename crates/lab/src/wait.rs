//! Waiting for a condition.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// Between attempts, at least; an attempt that takes its time gets as much afterwards, lest looking be all that happens.
const INTERVAL: Duration = Duration::from_millis(10);
/// And at most.
const LONGEST: Duration = Duration::from_secs(1);

/// It did not become true in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gave up after {waited:?} and {attempts} attempts: {last}")]
pub struct GaveUp {
    /// How long.
    pub waited: Duration,
    /// How often it was tried.
    pub attempts: usize,
    /// Why the last attempt failed.
    pub last: String,
}

/// Tries until it succeeds, at least once, and gives up after `timeout`.
pub fn eventually<T, E: fmt::Display>(
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, GaveUp> {
    let start = Instant::now();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let begun = Instant::now();
        let last = match attempt() {
            Ok(result) => return Ok(result),
            Err(error) => error,
        };
        if start.elapsed() >= timeout {
            return Err(GaveUp { waited: start.elapsed(), attempts, last: last.to_string() });
        }
        thread::sleep(begun.elapsed().clamp(INTERVAL, LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_failure_is_told() {
        let mut n = 0;
        let gave_up = eventually(Duration::from_millis(15), || {
            n += 1;
            Err::<(), _>(format!("attempt {n}"))
        });
        let gave_up = gave_up.unwrap_err();
        assert_eq!(gave_up.last, format!("attempt {}", gave_up.attempts));
        assert!(gave_up.attempts >= 2);
    }

    #[test]
    fn success_ends_it() {
        let mut n = 0;
        let third = eventually(Duration::from_secs(60), || {
            n += 1;
            (n == 3).then_some(n).ok_or("not yet")
        });
        assert_eq!(third, Ok(3));
    }
}
