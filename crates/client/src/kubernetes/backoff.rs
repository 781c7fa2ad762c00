//! How long to wait before asking again.
//!
//! In: how often it failed in a row, and a random number. Out: a duration. The figures are those of client-go's
//! reflector: a cluster's nodes must not come back all at once, nor stay away for long.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);

/// The wait after `failures` failures in a row (at least one); `random` is in `0.0..1.0`.
pub(super) fn wait(failures: u32, random: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(LONGEST).mul_f64(0.75 + random / 2.0)
}

/// How long the server may keep a watch open, in seconds: 5 to 10 minutes, so that the watches of many nodes
/// spread over the servers again after one of them restarted.
pub(super) fn watch_seconds(random: f64) -> u32 {
    300 + (random * 300.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_half_a_minute() {
        let middle = |failures| wait(failures, 0.5);
        assert_eq!(middle(1), Duration::from_millis(800));
        assert_eq!(middle(2), Duration::from_millis(1600));
        assert_eq!(middle(6), Duration::from_millis(25_600));
        assert_eq!(middle(7), Duration::from_secs(30));
        assert_eq!(middle(u32::MAX), Duration::from_secs(30));
    }

    #[test]
    fn spreads_by_a_quarter_to_either_side() {
        assert_eq!(wait(1, 0.0), Duration::from_millis(600));
        assert!(wait(1, 0.999) > Duration::from_millis(990));
        assert_eq!((watch_seconds(0.0), watch_seconds(0.999)), (300, 599));
    }
}
