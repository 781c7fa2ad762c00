//! The state of `/healthz` and `/livez`, and the two pages.
//!
//! A process has parts, such as the address families of a proxy. It is healthy while no update of any part, the first
//! one included, has waited for longer than the timeout, and while its event loop has sent a heartbeat within that time. `/healthz`, for load balancers, also fails before the first sync
//! of every part, and if the node is not eligible for traffic. `/livez`, for the kubelet, does not: a restart would not
//! help (KEP-3836).

use crate::page::page;
use crate::rfc3339;
use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A point in time by two clocks: the monotonic one for durations, the other one for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// The monotonic time.
    pub instant: Instant,
    /// The wall-clock time.
    pub wall: SystemTime,
}

impl Timestamp {
    /// The current time.
    pub fn now() -> Self {
        Timestamp { instant: Instant::now(), wall: SystemTime::now() }
    }
}

/// The answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 or 503.
    pub status: u16,
    /// JSON, in kube-proxy's format.
    pub body: String,
}

impl Answer {
    /// Whether the status is 200.
    pub fn is_healthy(&self) -> bool {
        self.status == 200
    }
}

/// The health of a process and of its node.
#[derive(Clone, Debug)]
pub struct HealthState {
    timeout: Duration,
    node_eligible: bool,
    parts: BTreeMap<String, PartHealth>,
    /// When the event loop last ran; `None` before it begins.
    heartbeat: Option<Instant>,
}

/// The health of one part.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartHealth {
    /// The time of the last sync.
    pub synced: Option<SystemTime>,
    /// Since when the oldest update waits for a sync.
    pub waiting_since: Option<Instant>,
}

impl HealthState {
    /// A state without parts; the node is not eligible.
    pub fn new(timeout: Duration) -> Self {
        HealthState { timeout, node_eligible: false, parts: BTreeMap::new(), heartbeat: None }
    }

    /// Records that the event loop runs.
    pub fn beat(&mut self, now: Timestamp) {
        self.heartbeat = Some(now.instant);
    }

    /// Whether the event loop has run within the timeout.
    fn is_running(&self, now: Timestamp) -> bool {
        self.heartbeat.is_none_or(|last| now.instant.saturating_duration_since(last) < self.timeout)
    }

    /// Sets how long an update may wait.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Records an update that waits for a sync. The timeout starts with the first one since the last sync.
    pub fn queued(&mut self, now: Timestamp, part: impl Display) {
        self.parts.entry(part.to_string()).or_default().waiting_since.get_or_insert(now.instant);
    }

    /// Records that updates wait no longer, since another process serves.
    pub fn stand_back(&mut self) {
        self.parts.values_mut().for_each(|part| part.waiting_since = None);
    }

    /// Records a sync of all updates.
    pub fn synced(&mut self, now: Timestamp, part: impl Display) {
        self.parts.insert(part.to_string(), PartHealth { synced: Some(now.wall), waiting_since: None });
    }

    /// Sets whether the node is eligible for traffic.
    pub fn set_node_eligible(&mut self, eligible: bool) {
        self.node_eligible = eligible;
    }

    /// Whether the process is healthy, regardless of the node.
    pub fn is_healthy(&self, now: Timestamp) -> bool {
        self.is_running(now) && self.parts.values().all(|part| self.is_part_healthy(part, now))
    }

    /// Whether the node is eligible for traffic.
    pub fn node_eligible(&self) -> bool {
        self.node_eligible
    }

    /// The parts by name.
    pub fn parts(&self) -> &BTreeMap<String, PartHealth> {
        &self.parts
    }

    /// Whether every part was synced once.
    fn is_ready(&self) -> bool {
        !self.parts.is_empty() && self.parts.values().all(|part| part.synced.is_some())
    }

    /// The answer of `/healthz`.
    pub fn healthz(&self, now: Timestamp) -> Answer {
        self.answer(now, self.is_healthy(now) && self.is_ready(), Some(self.node_eligible))
    }

    /// The answer of `/livez`.
    pub fn livez(&self, now: Timestamp) -> Answer {
        self.answer(now, self.is_healthy(now), None)
    }

    /// Whether no update of a part has waited for longer than the timeout.
    pub fn is_part_healthy(&self, part: &PartHealth, now: Timestamp) -> bool {
        part.waiting_since.is_none_or(|since| now.instant.saturating_duration_since(since) < self.timeout)
    }

    fn answer(&self, now: Timestamp, healthy: bool, node_eligible: Option<bool>) -> Answer {
        let ok = healthy && node_eligible.unwrap_or(true);
        let time = |at: Option<SystemTime>| at.map_or(rfc3339::NEVER.to_owned(), rfc3339::format);
        let last_synced = self.parts.values().filter_map(|part| part.synced).max();
        let status = self.parts.iter().map(|(name, part)| {
            let report =
                PartReport { last_updated: time(part.synced), healthy: self.is_part_healthy(part, now) };
            (name.as_str(), report)
        });
        let report = Report {
            // Old monitoring compares this with the clock, so with status 200 it is the time of the answer.
            last_updated: time(if ok { Some(now.wall) } else { last_synced }),
            current_time: rfc3339::format(now.wall),
            node_eligible,
            healthy,
            status: status.collect(),
        };
        // Strings, booleans and a map with string keys always serialize.
        let body = serde_json::to_string(&report).unwrap_or_default();
        Answer { status: if ok { 200 } else { 503 }, body }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'a str, PartReport>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PartReport {
    last_updated: String,
    healthy: bool,
}

/// A [`HealthState`] that the process writes and its servers read.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<HealthState>>);

impl Health {
    /// Makes a state shareable.
    pub fn new(state: HealthState) -> Self {
        Health(Arc::new(Mutex::new(state)))
    }

    /// Locks the state. The guard should live for one statement only.
    pub fn lock(&self) -> MutexGuard<'_, HealthState> {
        // No method leaves the state inconsistent, so the state is valid after a panic of another thread.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthPage {
    /// `/healthz`.
    Healthz,
    /// `/livez`.
    Livez,
}

/// The router of the two pages. `answered` is called for each answer with whether its status is 200.
pub fn health_router(
    health: Health,
    answered: impl Fn(HealthPage, bool) + Clone + Send + Sync + 'static,
) -> Router {
    let route = |page: HealthPage| {
        let (health, answered) = (health.clone(), answered.clone());
        any(move || {
            let state = health.lock();
            let answer = match page {
                HealthPage::Healthz => state.healthz(Timestamp::now()),
                HealthPage::Livez => state.livez(Timestamp::now()),
            };
            drop(state);
            answered(page, answer.is_healthy());
            std::future::ready(to_response(answer))
        })
    };
    Router::new().route("/healthz", route(HealthPage::Healthz)).route("/livez", route(HealthPage::Livez))
}

fn to_response(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    (status, page("application/json", answer.body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    /// A clock that starts at 2024-02-29T12:34:56Z.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Timestamp {
            let wall = UNIX_EPOCH + Duration::from_secs(1_709_210_096 + seconds);
            Timestamp { instant: self.0 + Duration::from_secs(seconds), wall }
        }
    }

    fn start() -> (Clock, HealthState) {
        let mut state = HealthState::new(Duration::from_secs(60));
        state.set_node_eligible(true);
        (Clock(Instant::now()), state)
    }

    #[test]
    fn the_body_has_kube_proxys_format() {
        let (clock, mut state) = start();
        state.synced(clock.at(1), "IPv4");
        state.synced(clock.at(2), "IPv6");
        state.queued(clock.at(3), "IPv6");
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
    fn the_oldest_waiting_update_starts_the_timeout() {
        let (clock, mut state) = start();
        state.synced(clock.at(0), "IPv4");
        state.queued(clock.at(10), "IPv4");
        state.queued(clock.at(50), "IPv4");
        assert!(state.is_healthy(clock.at(69)));
        assert!(!state.is_healthy(clock.at(70)));
        state.synced(clock.at(71), "IPv4");
        assert!(state.is_healthy(clock.at(1000)));
    }

    #[test]
    fn a_missing_first_sync_fails_livez() {
        let (clock, mut state) = start();
        assert_eq!(state.livez(clock.at(1000)).status, 200);
        state.queued(clock.at(0), "IPv4");
        let answer = state.livez(clock.at(60));
        assert_eq!(answer.status, 503);
        assert!(answer.body.contains(r#""lastUpdated":"0001-01-01T00:00:00Z""#), "{}", answer.body);
    }

    #[test]
    fn healthz_fails_until_every_part_was_synced_once() {
        let (clock, mut state) = start();
        let statuses =
            |state: &HealthState| [state.healthz(clock.at(3)), state.livez(clock.at(3))].map(|a| a.status);
        assert_eq!(statuses(&state), [503, 200]);
        state.queued(clock.at(0), "IPv4");
        state.queued(clock.at(0), "IPv6");
        state.synced(clock.at(1), "IPv4");
        assert_eq!(statuses(&state), [503, 200]);
        assert!(state.healthz(clock.at(3)).body.contains(r#""nodeEligible":true,"healthy":false"#));
        state.synced(clock.at(2), "IPv6");
        assert_eq!(statuses(&state), [200, 200]);
        state.queued(clock.at(3), "IPv6");
        assert_eq!(statuses(&state), [200, 200]);
    }

    #[test]
    fn an_ineligible_node_fails_healthz_only() {
        let (clock, mut state) = start();
        state.synced(clock.at(0), "IPv4");
        for (eligible, status) in [(false, 503), (true, 200)] {
            state.set_node_eligible(eligible);
            assert_eq!(state.healthz(clock.at(1)).status, status, "{eligible}");
            assert_eq!(state.livez(clock.at(1)).status, 200, "{eligible}");
            assert!(!state.livez(clock.at(1)).body.contains("nodeEligible"));
        }
    }

    #[test]
    fn a_new_timeout_applies_at_once() {
        let (clock, mut state) = start();
        state.queued(clock.at(0), "IPv4");
        state.set_timeout(Duration::from_secs(5));
        assert!(!state.is_healthy(clock.at(5)));
    }

    #[test]
    fn a_stalled_loop_is_unhealthy_after_the_timeout() {
        let start = Timestamp::now();
        let later =
            |seconds| Timestamp { instant: start.instant + Duration::from_secs(seconds), wall: start.wall };
        let mut state = HealthState::new(Duration::from_secs(60));
        state.set_node_eligible(true);
        state.synced(start, "IPv4");
        state.beat(start);
        assert!(state.livez(later(59)).is_healthy() && state.healthz(later(59)).is_healthy());
        assert!(!state.livez(later(60)).is_healthy() && !state.healthz(later(60)).is_healthy());
        state.beat(later(60));
        assert!(state.livez(later(61)).is_healthy());
    }
}
