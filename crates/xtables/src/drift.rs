//! Detects changes of the rules in iptables' tables by other processes.
//!
//! The nf_tables variant has its tables in nf_tables, which notifies listeners of every commit. Other programs use the
//! same tables, so each commit is attributed to this mode's tool or to another process. Legacy xtables has no
//! notifications: the sizes of the tables are read every second, with one system call per table. In both variants all
//! rules are compared periodically.

use crate::engine::Engine;
use crate::variant::Variant;
use crate::{commit::Tool, is_proxy_chain};
use portway_dataplane::{CheckTimes, DriftDetector, DriftSignal, Driver, Outcome, Wake};
use portway_netlink::nft::{Commit, Notification, Watcher};
use std::time::{Duration, Instant};

/// The tables that modes have rules in.
const TABLES: [&str; 3] = ["nat", "filter", "mangle"];
/// The time between comparisons of all rules in the nf_tables variant: the attribution of commits is a heuristic.
const NFT_AUDIT_PERIOD: Duration = Duration::from_secs(300);

/// Notifications that are read in one check.
const NOTIFICATIONS: usize = 64;

/// The drivers of both families.
pub type Engines<'e> = Vec<&'e mut Driver<Engine<Tool>>>;

/// Detects drift in the tables of one variant.
#[derive(Debug)]
pub struct TablesDetector {
    variant: Variant,
    watcher: Option<Watcher>,
    wake: Wake,
    times: CheckTimes,
}

impl TablesDetector {
    /// A detector that begins to listen after the first sync.
    pub fn new(variant: Variant, now: Instant) -> TablesDetector {
        TablesDetector { variant, watcher: None, wake: Wake::default(), times: CheckTimes::new(now) }
    }

    /// Legacy tables have no notifications, only sizes.
    fn is_legacy(&self) -> bool {
        self.variant == Variant::Legacy
    }

    /// Whether the sync that is about to begin has to compare all rules.
    pub fn audit_is_due(&self, now: Instant) -> bool {
        self.times.audit_is_due(now)
    }

    /// A sync has ended: see [`DriftDetector::sync_ended`].
    pub fn listen(&mut self, mut engines: Engines<'_>, outcomes: &[Outcome], now: Instant) -> bool {
        self.times.sync_ended(outcomes, now);
        if self.is_legacy() || self.watcher.is_some() {
            return false;
        }
        let wake = self.wake.clone();
        match Watcher::start(&[], &TABLES, move || wake.wake()) {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => {
                tracing::warn!(%error, "cannot listen for iptables changes; changes by other processes are not detected until all rules are compared");
            }
        }
        missed_changes(&mut engines)
    }

    /// Runs the checks that are due: see [`DriftDetector::check`].
    pub fn check_engines(&mut self, mut engines: Engines<'_>, now: Instant) -> Option<DriftSignal> {
        if self.is_legacy() {
            if !self.times.take_cheap(now) {
                return None;
            }
            // Other programs change sizes too, and then a comparison of all rules was for nothing. A built-in chain
            // without the rule that this mode has there was flushed: that is no false alarm, however long ago the last
            // comparison was.
            let flushed = engines.iter_mut().any(|e| was_flushed(e));
            let differs = self.times.may_alarm(now) && engines.iter_mut().any(|e| has_other_sizes(e));
            return (flushed || differs).then_some(DriftSignal::Possible);
        }
        for _ in 0..NOTIFICATIONS {
            let attributed = |process: String| Some(DriftSignal::Attributed { process });
            match self.watcher.as_ref()?.next() {
                Notification::Nothing => return None,
                Notification::Commits(commits) => {
                    if let Some(commit) = commits.iter().find(|c| concerns(&mut engines, c)) {
                        return attributed(commit.process_name());
                    }
                }
                // A change of these rules may be among the lost notifications.
                Notification::Lost(error) => return attributed(format!("unknown: {error}")),
                Notification::Ended => {
                    self.watcher = None;
                    return attributed("unknown: the listener ended".to_owned());
                }
            }
        }
        // More notifications may wait. The agent does its other work first.
        self.wake.wake();
        None
    }
}

fn has_other_sizes(engine: &mut Driver<Engine<Tool>>) -> bool {
    if engine.is_fresh() {
        return false;
    }
    let engine = engine.program();
    engine.kernel().has_other_sizes() || engine.lacks_hooks()
}

fn was_flushed(engine: &mut Driver<Engine<Tool>>) -> bool {
    !engine.is_fresh() && engine.program().lost_hooks()
}

/// Whether another process changed the ruleset before listening began: while this mode's tool ran, or after it.
fn missed_changes(engines: &mut Engines<'_>) -> bool {
    let now = engines.first_mut().and_then(|e| e.program().kernel().generation());
    let tool = |e: &&mut Driver<Engine<Tool>>| e.as_program().tool().known_generation();
    let last = engines.iter().filter_map(tool).max();
    now != last || engines.iter().any(|e| !e.as_program().tool().was_only_writer())
}

/// Whether another process made this commit, and it changed a chain or a hook of the mode.
fn concerns(engines: &mut Engines<'_>, commit: &Commit) -> bool {
    for engine in engines {
        let engine = engine.program();
        let tool = engine.tool();
        if tool.made_commit(commit) {
            return false;
        }
        let family = tool.nft_family().number();
        let mut other_chains = false;
        for touched in commit.touched.iter().filter(|t| t.family == family) {
            match &touched.chain {
                Some(chain) if is_proxy_chain(chain) => return true,
                // A chain of another program, or a built-in one, whose hooks may be missing now.
                Some(_) => other_chains = true,
                None => return true,
            }
        }
        if other_chains && engine.lacks_hooks() {
            return true;
        }
    }
    false
}

impl DriftDetector<Engine<Tool>> for TablesDetector {
    fn set_wake(&mut self, wake: Wake) {
        self.wake = wake;
    }

    fn set_audit_period(&mut self, period: Duration) {
        self.times.set_audit_period(if self.is_legacy() { period } else { NFT_AUDIT_PERIOD });
    }

    fn sync_begins(&mut self, programs: &mut [Driver<Engine<Tool>>], now: Instant) {
        if self.audit_is_due(now) {
            programs.iter_mut().for_each(Driver::mark_stale);
        }
    }

    fn sync_ended(
        &mut self,
        programs: &mut [Driver<Engine<Tool>>],
        outcomes: &[Outcome],
        now: Instant,
    ) -> bool {
        self.listen(programs.iter_mut().collect(), outcomes, now)
    }

    fn check(&mut self, programs: &mut [Driver<Engine<Tool>>], now: Instant) -> Option<DriftSignal> {
        self.check_engines(programs.iter_mut().collect(), now)
    }

    fn next_check(&self) -> Option<Instant> {
        self.is_legacy().then(|| self.times.next_cheap())
    }

    fn restart(&mut self) {
        self.watcher = None;
    }

    fn is_listening(&self) -> bool {
        self.is_legacy() || self.watcher.is_some()
    }
}
