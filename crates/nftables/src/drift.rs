//! Detects changes of the table by other processes.
//!
//! nf_tables notifies listeners of every commit, with the netlink port that the commit came from. A socket filter
//! drops the notifications of this mode's own commits, so every notification that arrives is of another process's
//! commit. Listening begins when the first sync has ended. The ruleset's generation shows whether another process made
//! a commit during that sync.

use crate::TABLE;
use crate::mode::Nftables;
use portway_dataplane::{DriftDetector, DriftSignal, Driver, Outcome, Wake};
use portway_netlink::nft::{Notification, Watcher};
use std::time::{Duration, Instant};

/// Detects drift of the mode's table in all families.
#[derive(Debug, Default)]
pub struct TableDetector {
    watcher: Option<Watcher>,
    wake: Wake,
    /// The generation before the current sync, if nothing listens yet.
    generation: Option<u32>,
}

impl DriftDetector<Nftables> for TableDetector {
    fn set_wake(&mut self, wake: Wake) {
        self.wake = wake;
    }

    /// The kernel notifies of every change, so there is no periodic audit.
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
                tracing::warn!(%error, "cannot listen for nftables changes; changes by other processes are not detected");
            }
        }
        let changed = |o: &&Outcome| o.result.as_ref().is_ok_and(|r| r.changed());
        let commits = outcomes.iter().filter(changed).count() as u32;
        let before_and_now = self.generation.zip(generation(programs));
        before_and_now.is_none_or(|(before, now)| now != before.wrapping_add(commits))
    }

    fn check(&mut self, _: &mut [Driver<Nftables>], _: Instant) -> Option<DriftSignal> {
        let process = match self.watcher.as_ref()?.next() {
            Notification::Nothing => return None,
            Notification::Commits(commits) => commits.first()?.process_name(),
            // A change of this table may be among the lost notifications.
            Notification::Lost(error) => format!("unknown: {error}"),
            Notification::Ended => {
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
