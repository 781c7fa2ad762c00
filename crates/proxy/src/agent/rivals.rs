//! Other proxies that program the Services of this node: another agent, or kube-proxy.
//!
//! In: the other proxy that runs now, and whether rules have to be repaired again and again. Out: whether this agent
//! serves, and what to report. Two proxies that use the same chains would undo each other's changes for ever, so one has
//! to stand back: of two agents the second, and Portway if kube-proxy was there first, since kube-proxy does not know of
//! Portway. If kube-proxy starts later, Portway goes on as long as the two do not use the same chains: its rules would
//! otherwise grow stale beside those of kube-proxy.

pub(crate) mod processes;

use super::presence::Presence;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// So many repairs within [`WINDOW`] mean that another proxy changes the same rules.
const REPAIRS: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// Repairs within this time are one.
const ONE_REPAIR: Duration = Duration::from_millis(500);

/// Kube-proxy has ended if its process was not seen for so long: it may be about to be started again.
const ABSENCE: Duration = Duration::from_secs(10);

/// Another proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    pub(crate) kind: RivalKind,
    /// Not known if the process is in another container.
    pub(crate) process: Option<u32>,
    pub(crate) mode: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RivalKind {
    Agent,
    KubeProxy,
}

impl Rival {
    /// Whether both are the same process. Its arguments, and so its mode, cannot be read while it exits.
    fn is(&self, other: &Rival) -> bool {
        (self.kind, self.process) == (other.kind, other.process)
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.process.map(|process| format!("process {process}"));
        let mode = self.mode.as_ref().map(|mode| format!("mode {mode}"));
        let known: Vec<String> = [process, mode].into_iter().flatten().collect();
        f.write_str(match self.kind {
            RivalKind::Agent => "another portway agent",
            RivalKind::KubeProxy => "kube-proxy",
        })?;
        if known.is_empty() { Ok(()) } else { write!(f, " ({})", known.join(", ")) }
    }
}

/// The other proxy of this node, and what this agent does about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Alone,
    /// Kube-proxy started after this agent, and both serve.
    Beside(Rival),
    /// This agent programs nothing.
    StandsBack { rival: Rival, seen: Instant },
}

/// A change that has to be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The agent stands back.
    StandsBack(Rival),
    /// Another proxy runs, and the agent serves too.
    Beside(Rival),
    /// The other proxy has ended, and the agent serves again.
    Resumes(Rival),
    /// The other proxy has ended. The agent was serving.
    Ended(Rival),
}

/// What the agent knows about other proxies.
#[derive(Debug, Default)]
pub(crate) struct Rivals {
    presence: Presence,
    state: State,
    repairs: Repairs,
}

impl Rivals {
    /// Looks for other proxies.
    pub(crate) fn check(&mut self, at_start: bool, now: Instant) -> Option<Change> {
        let agent = self.presence.announce().map(|peer| processes::agent(peer.process));
        let found = agent.or_else(processes::find_kube_proxy);
        let may_stand_back = at_start || self.repairs.are_frequent(now);
        let (state, change) = step(std::mem::take(&mut self.state), found, may_stand_back, now);
        self.state = state;
        if matches!(change, Some(Change::Resumes(_))) {
            self.repairs = Repairs::default();
        }
        change
    }

    /// Records a repair of rules that another process had changed.
    pub(crate) fn record_repair(&mut self, now: Instant) {
        self.repairs.record(now);
    }

    /// Whether the agent programs Services.
    pub(crate) fn serves(&self) -> bool {
        !matches!(self.state, State::StandsBack { .. })
    }

    /// Whether another proxy runs.
    pub(crate) fn exist(&self) -> bool {
        self.state != State::Alone
    }
}

fn step(state: State, found: Option<Rival>, may_stand_back: bool, now: Instant) -> (State, Option<Change>) {
    let stand_back = |rival: Rival| {
        (State::StandsBack { rival: rival.clone(), seen: now }, Some(Change::StandsBack(rival)))
    };
    match (state, found) {
        (State::Alone, None) => (State::Alone, None),
        (State::Alone | State::Beside(_), Some(rival))
            if may_stand_back || rival.kind == RivalKind::Agent =>
        {
            stand_back(rival)
        }
        (State::Beside(known), Some(rival)) if known.is(&rival) => (State::Beside(known), None),
        (State::Alone | State::Beside(_), Some(rival)) => {
            (State::Beside(rival.clone()), Some(Change::Beside(rival)))
        }
        (State::Beside(known), None) => (State::Alone, Some(Change::Ended(known))),
        (State::StandsBack { rival: known, .. }, Some(rival)) if known.is(&rival) => {
            (State::StandsBack { rival: known, seen: now }, None)
        }
        (State::StandsBack { .. }, Some(rival)) => stand_back(rival),
        (State::StandsBack { rival, seen }, None)
            if rival.kind == RivalKind::KubeProxy && now.saturating_duration_since(seen) < ABSENCE =>
        {
            (State::StandsBack { rival, seen }, None)
        }
        (State::StandsBack { rival, .. }, None) => (State::Alone, Some(Change::Resumes(rival))),
    }
}

/// The times of the last repairs of changed rules.
#[derive(Debug, Default)]
struct Repairs(VecDeque<Instant>);

impl Repairs {
    /// Both families are usually repaired at once, which counts as one repair.
    fn record(&mut self, now: Instant) {
        if self.0.back().is_some_and(|last| now.saturating_duration_since(*last) < ONE_REPAIR) {
            return;
        }
        self.0.push_back(now);
        while self.0.len() > REPAIRS {
            self.0.pop_front();
        }
    }

    /// Whether repairs are so frequent that another proxy changes the same rules.
    fn are_frequent(&self, now: Instant) -> bool {
        let first = self.0.front().filter(|_| self.0.len() == REPAIRS);
        first.is_some_and(|first| now.saturating_duration_since(*first) < WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rival(kind: RivalKind, process: u32) -> Rival {
        Rival { kind, process: Some(process), mode: None }
    }

    /// The changes of each check, from the agent's start on, one check a second.
    fn follow(checks: &[(Option<Rival>, bool)]) -> (State, Vec<Option<Change>>) {
        let start = Instant::now();
        let mut state = State::Alone;
        let mut changes = Vec::new();
        for (second, (found, may_stand_back)) in checks.iter().enumerate() {
            let now = start + Duration::from_secs(second as u64);
            let (next, change) = step(state, found.clone(), *may_stand_back, now);
            state = next;
            changes.push(change);
        }
        (state, changes)
    }

    #[test]
    fn of_two_agents_the_second_stands_back_until_the_first_has_ended() {
        let first = rival(RivalKind::Agent, 7);
        let found = Some(first.clone());
        let (state, changes) = follow(&[(found.clone(), true), (found, false), (None, false), (None, false)]);
        let resumes = Some(Change::Resumes(first.clone()));
        assert_eq!(changes, [Some(Change::StandsBack(first)), None, resumes, None]);
        assert_eq!(state, State::Alone);
    }

    #[test]
    fn a_short_absence_of_kube_proxy_is_not_its_end() {
        let (old, new) = (rival(RivalKind::KubeProxy, 7), rival(RivalKind::KubeProxy, 8));
        let mut checks = vec![(Some(old.clone()), true)];
        checks.extend(vec![(None, false); 5]);
        checks.push((Some(new.clone()), false));
        checks.extend(vec![(None, false); 10]);
        let (state, changes) = follow(&checks);
        let reported: Vec<(usize, Change)> = changes
            .into_iter()
            .enumerate()
            .filter_map(|(at, change)| change.map(|change| (at, change)))
            .collect();
        let expected =
            [(0, Change::StandsBack(old)), (6, Change::StandsBack(new.clone())), (16, Change::Resumes(new))];
        assert_eq!(reported, expected);
        assert_eq!(state, State::Alone);
    }

    #[test]
    fn the_agent_goes_on_beside_a_later_kube_proxy_unless_they_undo_each_others_changes() {
        let later = rival(RivalKind::KubeProxy, 7);
        let found = Some(later.clone());
        let (_, changes) =
            follow(&[(None, true), (found.clone(), false), (found.clone(), false), (None, false)]);
        let beside = Some(Change::Beside(later.clone()));
        assert_eq!(changes, [None, beside.clone(), None, Some(Change::Ended(later.clone()))]);
        let (state, changes) = follow(&[(None, true), (found.clone(), false), (found, true)]);
        assert_eq!(changes, [None, beside, Some(Change::StandsBack(later))]);
        assert!(matches!(state, State::StandsBack { .. }));
    }

    #[test]
    fn three_repairs_within_a_minute_are_frequent() {
        let (start, mut repairs) = (Instant::now(), Repairs::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        repairs.record(at(0));
        repairs.record(at(50));
        assert!(!repairs.are_frequent(at(50)));
        repairs.record(at(70));
        assert!(!repairs.are_frequent(at(70)));
        repairs.record(at(71));
        repairs.record(at(71) + ONE_REPAIR / 2);
        assert!(repairs.are_frequent(at(71)));
        assert!(!repairs.are_frequent(at(111)));
    }
}
