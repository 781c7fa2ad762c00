//! Drift: differences between the kernel and the rules that a mode applied, made by other processes.
//!
//! A mode detects drift in its own way: by the kernel's announcements, by sizes that are cheap to read, by comparing
//! a sample, and by comparing everything once in a while. [`DriftDetector`] is the common form; it has no clock and no
//! thread of the agent's: the current time is handed in, and a listener thread wakes the agent through [`Wake`].

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
    /// The first few of them, in words.
    pub examples: Vec<String>,
}

/// Examples that are kept for the log.
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
    /// Something that the mode uses looks different; another process may have changed only its own objects.
    Possible,
}

/// Wakes the agent, which then asks for a [`DriftSignal`]. Called from listener threads.
#[derive(Clone)]
pub struct Wake(Arc<dyn Fn() + Send + Sync>);

impl Wake {
    /// Calls `wake` whenever a listener thread has something to check.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Wake {
        Wake(Arc::new(wake))
    }

    /// Wakes.
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

/// How a mode detects drift in all of its families.
pub trait DriftDetector<P>: fmt::Debug {
    /// Listener threads call `wake` from now on.
    fn set_wake(&mut self, wake: Wake);

    /// Everything is compared at least this often, where nothing is announced.
    fn set_audit_period(&mut self, period: Duration);

    /// A sync is about to begin.
    fn sync_begins(&mut self, programs: &mut [Driver<P>], now: Instant);

    /// A sync has ended. Listening begins after the first one, because the kernel would announce every object of it.
    /// True if changes by other processes may have gone unnoticed.
    fn sync_ended(&mut self, programs: &mut [Driver<P>], outcomes: &[Outcome], now: Instant) -> bool;

    /// Checks whatever is due: called after a wake, and at [`DriftDetector::next_check`].
    fn check(&mut self, programs: &mut [Driver<P>], now: Instant) -> Option<DriftSignal>;

    /// When to check next though nothing woke the agent.
    fn next_check(&self) -> Option<Instant>;

    /// Announcements may have been lost: stop listening, and begin again with the next sync.
    fn restart(&mut self);

    /// Whether changes by other processes would be noticed.
    fn is_listening(&self) -> bool;
}

/// When the checks of a mode are due that nothing announces. Their cost decides how often they are made.
#[derive(Clone, Debug)]
pub struct CheckTimes {
    /// The next cheap check.
    cheap: Instant,
    /// After a false alarm: no check that costs anything before this time.
    quiet: Instant,
    /// The next sample.
    sample: Instant,
    /// The next comparison of everything.
    audit: Option<Instant>,
    /// Everything is compared at least this often.
    audit_period: Duration,
}

/// The time between cheap checks.
const CHEAP_PERIOD: Duration = Duration::from_secs(1);
/// The time between comparisons of everything, unless the configuration says otherwise.
const AUDIT_PERIOD: Duration = Duration::from_secs(30);
/// Comparing everything may take one part in this many of the time.
const AUDIT_SHARE: u32 = 100;
/// Comparing samples may take one part in this many of the time.
const SAMPLE_SHARE: u32 = 30;
/// After a comparison of everything that found nothing: this many times its duration without another.
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

    /// Everything is compared at least this often.
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

    /// Whether checks may be made that can give a false alarm.
    pub fn may_alarm(&self, now: Instant) -> bool {
        now >= self.quiet
    }

    /// Whether a sample may be compared.
    pub fn may_sample(&self, now: Instant) -> bool {
        now >= self.quiet.max(self.sample)
    }

    /// A sample was compared; the next one is the later, the longer it took.
    pub fn sampled(&mut self, began: Instant, ended: Instant) {
        self.sample = ended + (ended - began) * SAMPLE_SHARE;
    }

    /// Whether everything is to be compared with the next sync.
    pub fn audit_is_due(&self, now: Instant) -> bool {
        self.audit.is_some_and(|due| due <= now)
    }

    /// A sync has ended: if it compared everything, the next audit is due after a time that grows with its cost.
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
