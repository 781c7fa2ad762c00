//! What the controllers of workloads keep of a Pod.

use crate::cluster::meta::version;
use crate::key::Key;
use crate::plan::Version;
use portway_api::{LabelSelector, OwnerReference, Pod};

/// The annotation that says how dear the deletion of a Pod is.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The reason in the condition of a Pod that is not ready because its Node is not.
pub(crate) const NODE_NOT_READY: &str = "NodeNotReady";

/// The phase of a Pod, in the order in which Pods are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    #[default]
    Pending,
    Unknown,
    Running,
    /// It has succeeded or failed.
    Ended,
}

/// What the controllers of workloads keep of a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    pub(crate) uid: Box<str>,
    pub(crate) version: u64,
    resource_version: Box<str>,
    labels: Box<[(Box<str>, Box<str>)]>,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) node: Box<str>,
    pub(crate) phase: Phase,
    pub(crate) created: i64,
    pub(crate) ready: bool,
    /// Since when it is ready or not, in seconds since the epoch.
    pub(crate) ready_since: Option<i64>,
    /// It is not ready because its Node is not.
    pub(crate) node_not_ready: bool,
    /// Those of the container that was restarted most.
    pub(crate) restarts: i32,
    pub(crate) deletion_cost: i32,
    /// It is being deleted.
    pub(crate) terminating: bool,
    /// A controller has deleted it; the event of that may not have arrived.
    pub(crate) deletion_requested: bool,
}

impl PodState {
    pub(crate) fn new(pod: &Pod) -> PodState {
        let meta = pod.metadata.clone().unwrap_or_default();
        let status = pod.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready");
        let mut labels: Vec<(Box<str>, Box<str>)> =
            meta.labels.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect();
        labels.sort_unstable();
        PodState {
            version: version(&meta),
            uid: meta.uid.into(),
            resource_version: meta.resource_version.into(),
            labels: labels.into(),
            owners: meta.owner_references,
            node: pod.spec.as_ref().map_or("", |spec| &spec.node_name).into(),
            phase: match status.phase.as_str() {
                "Running" => Phase::Running,
                "Succeeded" | "Failed" => Phase::Ended,
                "Unknown" => Phase::Unknown,
                _ => Phase::Pending,
            },
            created: meta.creation_timestamp.map_or(0, |time| time.seconds),
            ready: ready.is_some_and(|condition| condition.status == "True"),
            ready_since: ready.and_then(|condition| condition.last_transition_time).map(|time| time.seconds),
            node_not_ready: ready.is_some_and(|c| c.status == "False" && c.reason == NODE_NOT_READY),
            restarts: status
                .container_statuses
                .iter()
                .map(|container| container.restart_count)
                .max()
                .unwrap_or(0),
            deletion_cost: meta.annotations.get(DELETION_COST).and_then(|c| c.parse().ok()).unwrap_or(0),
            terminating: meta.deletion_timestamp.is_some(),
            deletion_requested: false,
        }
    }

    /// The Pod after a controller deleted it.
    pub(crate) fn ending(&self) -> PodState {
        PodState { terminating: true, deletion_requested: true, ..self.clone() }
    }

    /// The value of a label.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let position = self.labels.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.labels[position].1)
    }

    /// Whether a selector with requirements selects it.
    pub(crate) fn is_selected_by(&self, selector: &LabelSelector) -> bool {
        !selector.is_empty() && selector.matches(|name| self.label(name))
    }

    /// Whether it runs, or will.
    pub(crate) fn is_active(&self) -> bool {
        self.phase != Phase::Ended && !self.terminating
    }

    /// Whether it is about to end.
    pub(crate) fn is_terminating(&self) -> bool {
        self.phase != Phase::Ended && self.terminating
    }

    /// The time from which it is available: it has been ready for this long then.
    pub(crate) fn available_at(&self, min_ready_seconds: i32) -> Option<i64> {
        match (self.ready, min_ready_seconds) {
            (false, _) => None,
            (true, ..=0) => Some(i64::MIN),
            (true, seconds) => Some(self.ready_since? + i64::from(seconds)),
        }
    }

    /// The Pod at its version.
    pub(crate) fn at_version(&self, key: &Key) -> Version {
        Version {
            key: key.clone(),
            uid: self.uid.to_string(),
            resource_version: self.resource_version.to_string(),
        }
    }
}
