//! The node lifecycle controller: a Node that is not heard of any more is not ready, and neither are its Pods, so that
//! their endpoints receive no traffic. When it is heard of again, both are ready again.
//!
//! In: a Node, when it was last heard of, and its Pods. Out: conditions of the Node and of its Pods, and taints of the
//! Node. Pure: the time is handed in.

use crate::cluster::{Cause, Touched};
use crate::controller::{Clock, Logic};
use crate::key::Key;
use crate::plan::{Change, Note, Plan, Read, Reasoned, Version, Write};
use crate::views::Views;
use crate::workloads::Workloads;
use crate::workloads::node::{LEASES, Nodes, ready};
use crate::workloads::pod::{NODE_NOT_READY, Phase, PodState};
use portway_api::time::format_rfc3339;
use portway_api::{Condition, Lease, Node, Pod, Resource, Taint, Time};
use portway_client::{Regarding, Subresource};
use serde_json::{Value, json};
use std::time::Duration;

/// The reason in the conditions of a Node that is not heard of.
const NODE_STATUS_UNKNOWN: &str = "NodeStatusUnknown";
/// The same for a Node that never reported a status.
const NEVER_UPDATED: &str = "NodeStatusNeverUpdated";
/// The reason in the condition of a Node that is heard of again, until it reports a status itself.
const LEASE_RENEWED: &str = "LeaseRenewed";
/// Taint of a Node that is not heard of.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Taint of a Node that says that it is not ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Conditions that a Node reports itself.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Decides what to write for a Node.
pub fn reconcile(workloads: &Workloads, key: &Key, grace: Duration, clock: Clock) -> Plan {
    let nodes = &workloads.nodes;
    let (Some(node), Some(seen)) = (nodes.get(key), nodes.last_seen(key)) else { return Plan::default() };
    let mut plan = Plan::default();
    if !nodes.was_heard_of(key) {
        return plan;
    }
    let left = grace.checked_sub(clock.now.saturating_duration_since(seen)).filter(|left| !left.is_zero());
    let health = Health::of(nodes, key, node, left.is_none());
    // A watch may hang for longer than a Node may be silent, so that is read before anything is written.
    let is_new = ready(node).is_none_or(|condition| condition.status != "Unknown");
    if left.is_none() && is_new && !nodes.is_checked_since(key, seen + grace) {
        plan.reads.push(sign_of_life(nodes, key));
        return plan;
    }
    plan_conditions(node, health, clock.wall, &mut plan);
    if plan.writes.is_empty() {
        plan_taints(node, health, clock.wall, &mut plan);
    }
    if !plan.writes.is_empty() {
        // One write of an object at a time: each changes its version.
        plan.again_after = Some(Duration::ZERO);
        return plan;
    }
    plan_pods(workloads, key, health, clock.wall, &mut plan);
    plan.again_after = left;
    plan
}

/// The object in which a Node shows that it is there.
fn sign_of_life(nodes: &Nodes, key: &Key) -> Read {
    let (resource, key) = match nodes.has_lease(key) {
        true => (Lease::TYPE, Key::new(LEASES, key.name())),
        false => (Node::TYPE, key.clone()),
    };
    Read { resource, key, uid: None }
}

/// The state of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It is heard of and says that it is ready.
    Ready,
    /// It is heard of and says that it is not ready, or nothing about it.
    NotReady,
    /// It is not heard of, or was not when that was last known.
    Unreachable,
    /// It is heard of again, and was marked when it was not.
    Back,
}

impl Health {
    fn of(nodes: &Nodes, key: &Key, node: &Node, expired: bool) -> Health {
        let condition = ready(node);
        match condition.map_or("", |condition| condition.status.as_str()) {
            _ if expired => Health::Unreachable,
            "True" => Health::Ready,
            // A kubelet reports itself when it is ready again; its Lease says only that it runs.
            "Unknown" if condition.is_some_and(is_marked) && nodes.is_renewed(key) && !nodes.reports(key) => {
                Health::Back
            }
            "Unknown" => Health::Unreachable,
            _ => Health::NotReady,
        }
    }
}

/// Whether this controller wrote a condition.
fn is_marked(condition: &Condition) -> bool {
    condition.reason == NODE_STATUS_UNKNOWN || condition.reason == NEVER_UPDATED
}

fn plan_conditions(node: &Node, health: Health, wall: i64, plan: &mut Plan) {
    let meta = node.metadata.clone().unwrap_or_default();
    let known = node.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let now = Some(Time { seconds: wall });
    let mut changed: Vec<Value> = Vec::new();
    for kind in REPORTED {
        let condition = known.iter().find(|condition| condition.kind == kind);
        let status = condition.map_or("", |condition| condition.status.as_str());
        let (status, reason, message) = match health {
            Health::Unreachable if status == "Unknown" => continue,
            Health::Unreachable if condition.is_none() => {
                ("Unknown", NEVER_UPDATED, "The Node has never reported this condition.")
            }
            Health::Unreachable => {
                ("Unknown", NODE_STATUS_UNKNOWN, "The Node stopped reporting: its Lease has expired.")
            }
            Health::Back if condition.is_some_and(is_marked) => {
                let healthy = if kind == "Ready" { "True" } else { "False" };
                (healthy, LEASE_RENEWED, "The Node renews its Lease again.")
            }
            _ => continue,
        };
        changed.push(json!({
            "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
        }));
    }
    if changed.is_empty() {
        return;
    }
    let change = Change::of(
        Node::TYPE,
        &Version::of(&meta),
        Subresource::Status,
        json!({ "status": { "conditions": changed } }),
    );
    let (reason, note) = match health {
        Health::Back => ("its Lease is renewed again", "NodeReady"),
        _ => ("its Lease has expired", NODE_NOT_READY),
    };
    let text = format!("Node {} status is now: {note}", meta.name);
    let write = Reasoned::new(Write::Change(Box::new(change.by_item())), reason);
    plan.writes.push(write.note(Note::report(note, text)));
}

/// The taints that say why no Pod should be started on a Node.
fn plan_taints(node: &Node, health: Health, wall: i64, plan: &mut Plan) {
    let meta = node.metadata.clone().unwrap_or_default();
    let taints = node.spec.as_ref().map_or(&[][..], |spec| &spec.taints);
    let wanted = match health {
        Health::Unreachable => Some(UNREACHABLE),
        Health::NotReady => Some(NOT_READY),
        Health::Ready | Health::Back => None,
    };
    let is_ours = |taint: &Taint| taint.key == UNREACHABLE || taint.key == NOT_READY;
    let mut new: Vec<Taint> =
        taints.iter().filter(|taint| !is_ours(taint) || Some(&*taint.key) == wanted).cloned().collect();
    for effect in ["NoSchedule", "NoExecute"] {
        let Some(key) = wanted else { break };
        if !new.iter().any(|taint| taint.key == key && taint.effect == effect) {
            let time_added = (effect == "NoExecute").then_some(Time { seconds: wall });
            let (key, effect) = (key.to_owned(), effect.to_owned());
            new.push(Taint { key, value: String::new(), effect, time_added });
        }
    }
    if new != taints {
        let fields = json!({ "spec": { "taints": new } });
        let change = Change::of(Node::TYPE, &Version::of(&meta), Subresource::None, fields);
        let reason = wanted.map_or("it is ready".to_owned(), |taint| format!("taint {taint}"));
        plan.writes.push(Reasoned::new(Write::Change(Box::new(change)), reason));
    }
}

/// The readiness of the Pods on a Node.
fn plan_pods(workloads: &Workloads, node: &Key, health: Health, wall: i64, plan: &mut Plan) {
    plan.independent = true;
    // A kubelet that is back reports the state of its Pods itself; without one, they are as they were.
    let reports = workloads.nodes.reports(node);
    for (key, pod) in workloads.pods_on(node.name()).into_iter().filter(|(_, pod)| pod.phase != Phase::Ended)
    {
        match health {
            Health::Unreachable if pod.ready => {
                let note = Note {
                    about: Some(key.regarding(Pod::TYPE, pod.uid.to_string())),
                    ..Note::warning(NODE_NOT_READY, "Node is not ready".to_owned())
                };
                let reason = format!("Node {} is not heard of", node.name());
                plan.writes.push(set_ready(key, pod, false, wall, reason).note(note));
            }
            Health::Ready | Health::Back if pod.node_not_ready && !reports => {
                let reason = format!("Node {} is heard of again", node.name());
                plan.writes.push(set_ready(key, pod, true, wall, reason));
            }
            _ => {}
        }
    }
}

fn set_ready(key: &Key, pod: &PodState, ready: bool, wall: i64, reason: String) -> Reasoned {
    let condition = json!({
        "type": "Ready",
        "status": if ready { "True" } else { "False" },
        "reason": if ready { Value::Null } else { NODE_NOT_READY.into() },
        "lastTransitionTime": format_rfc3339(wall),
    });
    let fields = json!({ "status": { "conditions": [condition] } });
    let change = Change::of(Pod::TYPE, &pod.at_version(key), Subresource::Status, fields);
    Reasoned::new(Write::Change(Box::new(change.by_item())), reason)
}

/// The node lifecycle controller.
#[derive(Debug)]
pub(crate) struct NodeLifecycle {
    pub(crate) grace: Duration,
}

impl Logic for NodeLifecycle {
    fn delay(&mut self, touched: &Touched, views: &Views) -> Option<Duration> {
        match touched.by {
            Cause::NodeHealth => Some(Duration::ZERO),
            // The renewals of a Node that is ready change nothing.
            Cause::NodeLease => {
                let node = views.workloads.as_ref()?.nodes.get(&touched.key)?;
                let is_ready = ready(node).is_some_and(|condition| condition.status == "True");
                (!is_ready).then_some(Duration::ZERO)
            }
            _ => None,
        }
    }

    fn reconcile(&mut self, views: &Views, key: &Key, clock: Clock) -> Plan {
        views.workloads.as_ref().map(|w| reconcile(w, key, self.grace, clock)).unwrap_or_default()
    }

    fn subject(&self, views: &Views, key: &Key) -> Regarding {
        let node = views.workloads.as_ref().and_then(|workloads| workloads.nodes.get(key));
        let uid = node.and_then(|node| node.metadata.as_ref()).map(|meta| meta.uid.clone());
        key.regarding(Node::TYPE, uid.unwrap_or_default())
    }

    fn keys(&self, views: &Views) -> Vec<Key> {
        views.workloads.as_ref().map(|workloads| workloads.nodes.keys()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
