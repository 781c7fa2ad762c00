//! Whether this proxy and its node are fit for traffic: the state behind `:10256`.
//!
//! The proxy is well while no update has been waiting for longer than the timeout (twice the sync period). A node
//! is eligible while its Node object is there and not on its way out; only `/healthz`, which load balancers ask,
//! tells. `/livez`, which the kubelet asks, must not fail for it: a restart would not help (KEP-3836).
//!
//! One thing is done better than upstream, which calls a proxy well that never got its first sync done: here an
//! update that waits counts from the beginning.

use super::rfc3339;
use portway_model::{Family, NodeState};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A point in time by both clocks: one to measure with, one to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Never goes back.
    pub instant: Instant,
    /// What a clock on the wall shows.
    pub wall: SystemTime,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Moment { instant: Instant::now(), wall: SystemTime::now() }
    }
}

/// What a probe is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 or 503.
    pub status: u16,
    /// JSON, as kube-proxy has it.
    pub body: String,
}

impl Answer {
    /// Whether all is well.
    pub fn is_healthy(&self) -> bool {
        self.status == 200
    }
}

/// The health of the proxy and of its node.
#[derive(Clone, Debug)]
pub struct HealthState {
    timeout: Duration,
    node: NodeState,
    families: BTreeMap<Family, FamilyState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FamilyState {
    synced: Option<SystemTime>,
    waiting_since: Option<Instant>,
}

impl HealthState {
    /// Nothing has happened yet, and the Node has not been seen.
    pub fn new(timeout: Duration) -> Self {
        HealthState { timeout, node: NodeState::Missing, families: BTreeMap::new() }
    }

    /// The sync period was changed.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// An update came in. The first one not yet synced is the one whose waiting counts.
    pub fn queued(&mut self, now: Moment, family: Family) {
        self.families.entry(family).or_default().waiting_since.get_or_insert(now.instant);
    }

    /// Everything that had come in is in the kernel.
    pub fn synced(&mut self, now: Moment, family: Family) {
        self.families.insert(family, FamilyState { synced: Some(now.wall), waiting_since: None });
    }

    /// The Node changed.
    pub fn node(&mut self, state: NodeState) {
        self.node = state;
    }

    /// Whether the proxy keeps up, the node aside.
    pub fn is_healthy(&self, now: Moment) -> bool {
        self.families.values().all(|family| self.keeps_up(family, now))
    }

    /// What `/healthz` says.
    pub fn healthz(&self, now: Moment) -> Answer {
        let eligible = self.node == NodeState::Present;
        self.answer(now, self.is_healthy(now) && eligible, Some(eligible))
    }

    /// What `/livez` says.
    pub fn livez(&self, now: Moment) -> Answer {
        self.answer(now, self.is_healthy(now), None)
    }

    fn keeps_up(&self, family: &FamilyState, now: Moment) -> bool {
        family.waiting_since.is_none_or(|since| now.instant.saturating_duration_since(since) < self.timeout)
    }

    fn answer(&self, now: Moment, well: bool, node_eligible: Option<bool>) -> Answer {
        let time = |at: Option<SystemTime>| at.map_or(rfc3339::NEVER.to_owned(), rfc3339::format);
        let last_synced = self.families.values().filter_map(|family| family.synced).max();
        let status = self.families.iter().map(|(family, state)| {
            let status =
                FamilyStatus { last_updated: time(state.synced), healthy: self.keeps_up(state, now) };
            (family.to_string(), status)
        });
        let report = Report {
            // Monitoring of old compared this with the clock; while all is well it is as fresh as that.
            last_updated: time(if well { Some(now.wall) } else { last_synced }),
            current_time: rfc3339::format(now.wall),
            node_eligible,
            healthy: self.is_healthy(now),
            status: status.collect(),
        };
        // Strings, booleans and a map with string keys always serialise.
        let body = serde_json::to_string(&report).unwrap_or_default();
        Answer { status: if well { 200 } else { 503 }, body }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<String, FamilyStatus>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: String,
    healthy: bool,
}

/// A [`HealthState`] that the event loop writes and the servers read.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<HealthState>>);

impl Health {
    /// Shares a state.
    pub fn new(state: HealthState) -> Self {
        Health(Arc::new(Mutex::new(state)))
    }

    /// The state, for the length of a statement.
    pub fn lock(&self) -> MutexGuard<'_, HealthState> {
        // No method leaves the state half changed, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    /// So many seconds after a beginning at 2024-02-29T12:34:56Z.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Moment {
            let wall = UNIX_EPOCH + Duration::from_secs(1_709_210_096 + seconds);
            Moment { instant: self.0 + Duration::from_secs(seconds), wall }
        }
    }

    fn start() -> (Clock, HealthState) {
        let mut state = HealthState::new(Duration::from_secs(60));
        state.node(NodeState::Present);
        (Clock(Instant::now()), state)
    }

    #[test]
    fn the_body_is_kube_proxys() {
        let (clock, mut state) = start();
        state.synced(clock.at(1), Family::V4);
        state.synced(clock.at(2), Family::V6);
        state.queued(clock.at(3), Family::V6);
        let healthz = state.healthz(clock.at(63));
        assert_eq!(healthz.status, 503);
        assert_eq!(
            healthz.body,
            concat!(
                r#"{"lastUpdated":"2024-02-29T12:34:58Z","currentTime":"2024-02-29T12:35:59Z","nodeEligible":true,"#,
                r#""healthy":false,"status":{"IPv4":{"lastUpdated":"2024-02-29T12:34:57Z","healthy":true},"#,
                r#""IPv6":{"lastUpdated":"2024-02-29T12:34:58Z","healthy":false}}}"#
            )
        );
        let livez = state.livez(clock.at(62));
        assert_eq!(livez.status, 200);
        assert!(livez.body.starts_with(
            r#"{"lastUpdated":"2024-02-29T12:35:58Z","currentTime":"2024-02-29T12:35:58Z","healthy":true"#
        ));
    }

    #[test]
    fn the_first_update_that_waits_sets_the_term() {
        let (clock, mut state) = start();
        state.synced(clock.at(0), Family::V4);
        state.queued(clock.at(10), Family::V4);
        state.queued(clock.at(50), Family::V4);
        assert!(state.is_healthy(clock.at(69)));
        assert!(!state.is_healthy(clock.at(70)));
        state.synced(clock.at(71), Family::V4);
        assert!(state.is_healthy(clock.at(1000)));
    }

    #[test]
    fn a_first_sync_that_never_comes_is_noticed() {
        let (clock, mut state) = start();
        assert_eq!(state.livez(clock.at(1000)).status, 200);
        state.queued(clock.at(0), Family::V4);
        let answer = state.livez(clock.at(60));
        assert_eq!(answer.status, 503);
        assert!(answer.body.contains(r#""lastUpdated":"0001-01-01T00:00:00Z""#), "{}", answer.body);
    }

    #[test]
    fn a_node_on_its_way_out_fails_healthz_only() {
        let (clock, mut state) = start();
        state.synced(clock.at(0), Family::V4);
        for (node, status) in
            [(NodeState::Missing, 503), (NodeState::Leaving, 503), (NodeState::Present, 200)]
        {
            state.node(node);
            assert_eq!(state.healthz(clock.at(1)).status, status, "{node:?}");
            assert_eq!(state.livez(clock.at(1)).status, 200, "{node:?}");
            assert!(!state.livez(clock.at(1)).body.contains("nodeEligible"));
        }
    }

    #[test]
    fn a_new_timeout_counts_at_once() {
        let (clock, mut state) = start();
        state.queued(clock.at(0), Family::V4);
        state.set_timeout(Duration::from_secs(5));
        assert!(!state.is_healthy(clock.at(5)));
    }
}
