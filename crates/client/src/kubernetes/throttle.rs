//! The client-side rate limit: `qps` requests per second on average, `burst` at once.
//!
//! In: the time of a request. Out: how long the request has to wait. As in client-go, there is no limit if the rate is
//! zero or less.

use std::time::{Duration, Instant};

/// Marks a request that is not limited: a page after the first one of a list. At the default of five requests per
/// second, 10,000 Services would otherwise take seconds longer in pages than in one response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unlimited;

/// A token bucket for requests.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    pub(super) fn new(qps: f32, burst: i32, now: Instant) -> Option<Self> {
        let burst = f64::from(burst.max(1));
        (qps > 0.0).then(|| Bucket { per_second: f64::from(qps), burst, tokens: burst, filled: now })
    }

    /// Takes a token and returns how long to wait for it. Tokens that are not available yet are reserved.
    pub(super) fn take(&mut self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst) - 1.0;
        self.filled = now;
        Duration::from_secs_f64((-self.tokens / self.per_second).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_burst_wait() {
        let start = Instant::now();
        let mut bucket = Bucket::new(4.0, 2, start).unwrap();
        assert_eq!(bucket.take(start), Duration::ZERO);
        assert_eq!(bucket.take(start), Duration::ZERO);
        assert_eq!(bucket.take(start), Duration::from_millis(250));
        assert_eq!(bucket.take(start), Duration::from_millis(500));
        assert_eq!(bucket.take(start + Duration::from_secs(60)), Duration::ZERO);
    }

    #[test]
    fn a_rate_of_zero_or_less_is_no_limit() {
        assert!(Bucket::new(0.0, 10, Instant::now()).is_none());
        assert!(Bucket::new(-1.0, 10, Instant::now()).is_none());
    }
}
