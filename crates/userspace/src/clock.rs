//! Time as a number that fits an atomic.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since the process began to ask; never 0, which stands for "not at all".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Now.
    pub fn now() -> Moment {
        Moment::of(START.elapsed())
    }

    /// So long after the beginning.
    pub fn of(since: Duration) -> Moment {
        Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX - 1) + 1)
    }

    /// Later by so much.
    pub fn after(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }

    /// How long until then; nothing if it is past.
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
