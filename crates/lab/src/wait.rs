//! Waiting for a condition.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// The shortest pause between attempts. A pause is as long as the attempt before it, so that attempts take at most half
/// of the processor's time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The condition did not become true in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gave up after {waited:?} and {attempts} attempts: {last}")]
pub struct GaveUp {
    /// How long it was waited for.
    pub waited: Duration,
    /// The number of attempts.
    pub attempts: usize,
    /// Why the last attempt failed.
    pub last: String,
}

/// Calls `attempt` until it succeeds, at least once, and gives up after `timeout`.
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
        thread::sleep(begun.elapsed().clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_has_the_last_failure() {
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
    fn the_first_success_ends_the_wait() {
        let mut n = 0;
        let third = eventually(Duration::from_secs(60), || {
            n += 1;
            (n == 3).then_some(n).ok_or("not yet")
        });
        assert_eq!(third, Ok(3));
    }
}
