//! Drift: differences between the kernel and the rules that a mode applied, made by other processes.
//!
//! Each mode detects drift in its own way: by the kernel's notifications, by sizes that are cheap to read, by comparing
//! a sample, and by comparing all rules from time to time. [`DriftDetector`] is the common interface. It has no clock:
//! the caller passes the current time, and a listener thread of the mode wakes the agent through [`Wake`].

use crate::{Driver, Outcome};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Differences between the kernel and the applied rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Objects that were applied and are gone.
    pub missing: usize,
    /// Objects that were applied and have other contents.
    pub altered: usize,
    /// Objects of other processes in a table or chain that belongs to the mode.
    pub foreign: usize,
    /// Descriptions of the first few of these objects.
    pub examples: Vec<String>,
}

/// The number of examples that are kept for the log.
const EXAMPLES: usize = 8;

impl Drift {
    /// Whether the kernel holds exactly the applied rules.
    pub fn is_empty(&self) -> bool {
        self.missing + self.altered + self.foreign == 0
    }

    /// Keeps an example, up to a limit.
    pub fn note(&mut self, example: impl fmt::Display) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(example.to_string());
        }
    }

    /// Adds the differences of another part of the mode.
    pub fn merge(&mut self, other: Drift) {
        self.missing += other.missing;
        self.altered += other.altered;
        self.foreign += other.foreign;
        other.examples.into_iter().for_each(|example| self.note(example));
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no difference");
        }
        write!(f, "{} missing, {} altered, {} foreign", self.missing, self.altered, self.foreign)?;
        if let Some((first, rest)) = self.examples.split_first() {
            write!(f, ": {first}")?;
            rest.iter().try_for_each(|e| write!(f, ", {e}"))?;
            if self.examples.len() < self.missing + self.altered + self.foreign {
                f.write_str(", …")?;
            }
        }
        Ok(())
    }
}

/// A reason to compare the kernel with the applied rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriftSignal {
    /// Another process changed the rules.
    Attributed {
        /// The process, as far as the kernel names it: `nft (process 25318)`.
        process: String,
    },
    /// A table or counter that the mode shares with other programs changed; its own rules may not be affected.
    Possible,
}

/// Wakes the agent, which then calls [`DriftDetector::check`]. Called from listener threads.
#[derive(Clone)]
pub struct Wake(Arc<dyn Fn() + Send + Sync>);

impl Wake {
    /// Calls `wake` whenever a listener thread has something to check.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Wake {
        Wake(Arc::new(wake))
    }

    /// Wakes the agent.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl Default for Wake {
    fn default() -> Wake {
        Wake::new(|| ())
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

/// Detects drift of a mode in all of its families.
pub trait DriftDetector<P>: fmt::Debug {
    /// Sets the function that listener threads call.
    fn set_wake(&mut self, wake: Wake);

    /// Sets the time between comparisons of all rules, for changes that the kernel does not announce. Expensive
    /// comparisons are less frequent.
    fn set_audit_period(&mut self, period: Duration);

    /// Called before a sync.
    fn sync_begins(&mut self, programs: &mut [Driver<P>], now: Instant);

    /// Called after a sync. Listening begins after the first one, because the kernel would announce every object of it.
    /// Returns whether changes by other processes may have gone unnoticed.
    fn sync_ended(&mut self, programs: &mut [Driver<P>], outcomes: &[Outcome], now: Instant) -> bool;

    /// Makes the checks that are due. Called after a wake, and at [`DriftDetector::next_check`].
    fn check(&mut self, programs: &mut [Driver<P>], now: Instant) -> Option<DriftSignal>;

    /// When to check next if no listener thread wakes the agent.
    fn next_check(&self) -> Option<Instant>;

    /// Called when notifications of the kernel may have been lost: stops listening until the next sync.
    fn restart(&mut self);

    /// Whether the detector listens for changes by other processes.
    fn is_listening(&self) -> bool;
}

/// The times of a mode's periodic checks. The cost of a check decides how often it is made.
#[derive(Clone, Debug)]
pub struct CheckTimes {
    /// The next cheap check.
    cheap: Instant,
    /// After a false alarm: no check that may cause another one before this time.
    quiet: Instant,
    /// The next sample.
    sample: Instant,
    /// The next comparison of all rules.
    audit: Option<Instant>,
    /// The shortest time between two comparisons of all rules.
    audit_period: Duration,
}

/// The time between cheap checks.
const CHEAP_PERIOD: Duration = Duration::from_secs(1);
/// The default time between comparisons of all rules.
const AUDIT_PERIOD: Duration = Duration::from_secs(30);
/// Comparisons of all rules take at most one part in this many of the time.
const AUDIT_SHARE: u32 = 100;
/// Comparisons of samples take at most one part in this many of the time.
const SAMPLE_SHARE: u32 = 30;
/// After a comparison of all rules that found no difference, the pause is this many times its duration.
const FALSE_ALARM: u32 = 10;

impl CheckTimes {
    /// The first cheap check is due in a second.
    pub fn new(now: Instant) -> CheckTimes {
        CheckTimes {
            cheap: now + CHEAP_PERIOD,
            quiet: now,
            sample: now,
            audit: None,
            audit_period: AUDIT_PERIOD,
        }
    }

    /// Sets the shortest time between two comparisons of all rules.
    pub fn set_audit_period(&mut self, period: Duration) {
        self.audit_period = period;
    }

    /// When the next cheap check is due.
    pub fn next_cheap(&self) -> Instant {
        self.cheap
    }

    /// Whether the cheap check is due; the next one is a second later.
    pub fn take_cheap(&mut self, now: Instant) -> bool {
        let due = now >= self.cheap;
        if due {
            self.cheap = now + CHEAP_PERIOD;
        }
        due
    }

    /// Whether checks that can cause a false alarm may be made.
    pub fn may_alarm(&self, now: Instant) -> bool {
        now >= self.quiet
    }

    /// Whether a sample may be compared.
    pub fn may_sample(&self, now: Instant) -> bool {
        now >= self.quiet.max(self.sample)
    }

    /// Records the comparison of a sample; the pause until the next one grows with its duration.
    pub fn sampled(&mut self, began: Instant, ended: Instant) {
        self.sample = ended + (ended - began) * SAMPLE_SHARE;
    }

    /// Whether a comparison of all rules is due.
    pub fn audit_is_due(&self, now: Instant) -> bool {
        self.audit.is_some_and(|due| due <= now)
    }

    /// Records the end of a sync. If it compared all rules, the pause until the next audit grows with its duration.
    pub fn sync_ended(&mut self, outcomes: &[Outcome], now: Instant) {
        let full = || outcomes.iter().filter(|o| o.result.as_ref().is_ok_and(|r| r.full));
        let took: Duration = full().map(|o| o.took).sum();
        if took.is_zero() {
            return;
        }
        self.audit = Some(now + self.audit_period.max(took * AUDIT_SHARE));
        let changed = full().any(|o| o.result.as_ref().is_ok_and(|r| r.changed()));
        self.cheap = now + CHEAP_PERIOD;
        self.quiet = now + if changed { Duration::ZERO } else { took * FALSE_ALARM };
    }
}
