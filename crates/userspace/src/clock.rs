//! Time as a number that fits an atomic.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since the first call of [`Moment::now`], plus one: an atomic 0 stands for "never".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// The present moment.
    pub fn now() -> Moment {
        Moment::of(START.elapsed())
    }

    /// The moment this long after the first.
    pub fn of(since: Duration) -> Moment {
        Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX - 1) + 1)
    }

    /// The moment this much later.
    pub fn after(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time until a later moment; zero if that is past.
    pub fn until(self, then: Moment) -> Duration {
        Duration::from_millis(then.0.saturating_sub(self.0))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn from_number(number: u64) -> Option<Moment> {
        (number > 0).then_some(Moment(number))
    }
}
