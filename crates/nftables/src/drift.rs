//! Detecting that another process changed the table.
//!
//! nf_tables announces every commit with the netlink port that it came from; a socket filter keeps the commits of this
//! mode from the listener, so every announcement that arrives is another process's. Listening begins after the first
//! sync; the ruleset's generation tells whether another process made a commit before.

use crate::TABLE;
use crate::mode::Nftables;
use portway_dataplane::{DriftDetector, DriftSignal, Driver, Outcome, Wake};
use portway_netlink::nft::{Announced, Watcher};
use std::time::{Duration, Instant};

/// Listens for changes of the mode's table in all families.
#[derive(Debug, Default)]
pub struct TableDetector {
    watcher: Option<Watcher>,
    wake: Wake,
    /// The generation before the sync that is under way, while no listener runs.
    generation: Option<u32>,
}

impl DriftDetector<Nftables> for TableDetector {
    fn set_wake(&mut self, wake: Wake) {
        self.wake = wake;
    }

    /// Every change is announced: nothing has to be compared periodically.
    fn set_audit_period(&mut self, _: Duration) {}

    fn sync_begins(&mut self, programs: &mut [Driver<Nftables>], _: Instant) {
        if self.watcher.is_none() {
            self.generation = generation(programs);
        }
    }

    fn sync_ended(&mut self, programs: &mut [Driver<Nftables>], outcomes: &[Outcome], _: Instant) -> bool {
        if self.watcher.is_some() {
            return false;
        }
        let ports: Vec<u32> = programs.iter().map(|p| p.as_program().port()).collect();
        let wake = self.wake.clone();
        match Watcher::start(&ports, &[TABLE], move || wake.wake()) {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => {
                tracing::warn!(%error, "changes of nftables rules by other processes cannot be noticed");
            }
        }
        let changed = |o: &&Outcome| o.result.as_ref().is_ok_and(|r| r.changed());
        let commits = outcomes.iter().filter(changed).count() as u32;
        let before_and_now = self.generation.zip(generation(programs));
        before_and_now.is_none_or(|(before, now)| now != before.wrapping_add(commits))
    }

    fn check(&mut self, _: &mut [Driver<Nftables>], _: Instant) -> Option<DriftSignal> {
        let process = match self.watcher.as_ref()?.next() {
            Announced::Nothing => return None,
            Announced::Commits(commits) => commits.first()?.process_name(),
            // A change of this table may be among the lost announcements.
            Announced::Lost(error) => format!("unknown: {error}"),
            Announced::Ended => {
                self.watcher = None;
                "unknown: the listener ended".to_owned()
            }
        };
        Some(DriftSignal::Attributed { process })
    }

    fn next_check(&self) -> Option<Instant> {
        None
    }

    fn restart(&mut self) {
        self.watcher = None;
    }

    fn is_listening(&self) -> bool {
        self.watcher.is_some()
    }
}

fn generation(programs: &mut [Driver<Nftables>]) -> Option<u32> {
    programs.first_mut()?.program().generation().ok()
}
