//! How long to wait before the next request of a list and watch.
//!
//! In: the number of consecutive failures, and a random number. Out: a duration. The figures are those of client-go's
//! reflector: the nodes of a cluster must not reconnect all at once, nor wait for long.

use std::time::Duration;

const INITIAL: Duration = Duration::from_millis(800);
const MAX: Duration = Duration::from_secs(30);

/// The wait after `failures` consecutive failures (at least one); `random` is in `0.0..1.0`.
pub(super) fn wait(failures: u32, random: f64) -> Duration {
    let doubled = INITIAL.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(MAX).mul_f64(0.75 + random / 2.0)
}

/// The time-out of a watch in seconds: 5 to 10 minutes, so that the watches of many nodes spread over all API servers
/// again after one of them restarted.
pub(super) fn watch_seconds(random: f64) -> u32 {
    300 + (random * 300.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_30_seconds() {
        let middle = |failures| wait(failures, 0.5);
        assert_eq!(middle(1), Duration::from_millis(800));
        assert_eq!(middle(2), Duration::from_millis(1600));
        assert_eq!(middle(6), Duration::from_millis(25_600));
        assert_eq!(middle(7), Duration::from_secs(30));
        assert_eq!(middle(u32::MAX), Duration::from_secs(30));
    }

    #[test]
    fn the_wait_varies_by_a_quarter_in_either_direction() {
        assert_eq!(wait(1, 0.0), Duration::from_millis(600));
        assert!(wait(1, 0.999) > Duration::from_millis(990));
        assert_eq!((watch_seconds(0.0), watch_seconds(0.999)), (300, 599));
    }
}
