//! Tables of Nodes that fall silent and come back.

use crate::key::Key;
use crate::workloads::testing::*;
use portway_api::{Lease, Node, Pod, Resource};
use serde_json::{Value, json};

fn node() -> Value {
    json!({"metadata": {"name": "node-a"}, "status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
        {"type": "MemoryPressure", "status": "False"},
    ]}})
}

/// A Node whose conditions no kubelet reports.
fn node_without_kubelet() -> Value {
    json!({"metadata": {"name": "node-a"}, "status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "AgentReady"},
        {"type": "MemoryPressure", "status": "False"},
    ]}})
}

fn lease(renewed: &str) -> Value {
    json!({"metadata": {"namespace": "kube-node-lease", "name": "node-a"},
        "spec": {"holderIdentity": "node-a", "renewTime": renewed}})
}

fn pod(name: &str, ready: &str) -> Value {
    json!({"metadata": {"namespace": NAMESPACE, "name": name}, "spec": {"nodeName": "node-a"},
        "status": {"phase": "Running", "conditions": [
            {"type": "ContainersReady", "status": "True"},
            {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}

fn started() -> TestCluster {
    started_with(node())
}

fn started_with(node: Value) -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.no_kubelet = true;
    cluster.put::<Node>(node);
    cluster.put::<Lease>(lease("2026-01-01T00:00:00.000000Z"));
    cluster.put::<Pod>(pod("web", "True"));
    cluster.put::<Pod>(pod("starting", "False"));
    cluster.settle();
    cluster
}

fn key_of_node() -> Key {
    Key::new("", "node-a")
}

/// Status and reason of a condition.
fn condition(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"].as_array().expect("conditions");
    let found = conditions.iter().find(|condition| condition["type"] == kind).expect("the condition");
    format!("{} {}", found["status"].as_str().unwrap_or(""), found["reason"].as_str().unwrap_or(""))
}

fn node_condition(cluster: &TestCluster, kind: &str) -> String {
    condition(cluster.json(Node::TYPE, &key_of_node()).expect("a Node"), kind)
}

fn pod_ready(cluster: &TestCluster, name: &str) -> String {
    condition(cluster.json(Pod::TYPE, &key(name)).expect("a Pod"), "Ready")
}

fn taints(cluster: &TestCluster) -> Vec<String> {
    let node = cluster.json(Node::TYPE, &key_of_node()).expect("a Node");
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints
        .iter()
        .map(|t| format!("{}:{}", t["key"].as_str().unwrap_or(""), t["effect"].as_str().unwrap_or("")))
        .collect()
}

#[test]
fn a_node_that_renews_its_lease_stays_ready() {
    let mut cluster = started();
    let wait = cluster.plan("NodeHealth", &key_of_node()).again_after;
    assert_eq!(wait.map(|wait| wait.as_secs()), Some(50));
    for minute in 0..5 {
        cluster.pass(40);
        // The clock of the Node may be wrong: what counts is that the time changes.
        cluster.put::<Lease>(lease(&format!("1999-01-01T00:0{minute}:00.000000Z")));
        cluster.settle();
    }
    assert_eq!((node_condition(&cluster, "Ready"), taints(&cluster)), ("True KubeletReady".into(), vec![]));
    assert_eq!(pod_ready(&cluster, "web"), "True ");
}

#[test]
fn a_silent_node_and_its_pods_are_not_ready_until_it_is_back() {
    let mut cluster = started_with(node_without_kubelet());
    cluster.pass(49);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "True AgentReady");
    cluster.pass(1);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "Unknown NodeStatusUnknown");
    assert_eq!(node_condition(&cluster, "MemoryPressure"), "Unknown NodeStatusUnknown");
    assert_eq!(node_condition(&cluster, "DiskPressure"), "Unknown NodeStatusNeverUpdated");
    assert_eq!(
        taints(&cluster),
        ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"]
    );
    assert_eq!(
        (pod_ready(&cluster, "web"), pod_ready(&cluster, "starting")),
        ("False NodeNotReady".into(), "False ".into())
    );
    assert_eq!(
        condition(cluster.json(Pod::TYPE, &key("web")).expect("a Pod"), "ContainersReady"),
        "True ",
        "other conditions stay"
    );
    let about: Vec<&str> = cluster
        .notes
        .iter()
        .filter(|n| n.reason == "NodeNotReady")
        .map(|n| n.about.as_ref().map_or("node", |about| about.name.as_str()))
        .collect();
    assert_eq!(about, ["node", "web"]);
    cluster.writes.clear();
    cluster.pass(1000);
    cluster.settle();
    assert_eq!(cluster.writes, [""; 0], "once is enough");

    cluster.put::<Lease>(lease("2026-01-01T01:00:00.000000Z"));
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "True LeaseRenewed");
    assert_eq!(node_condition(&cluster, "MemoryPressure"), "False LeaseRenewed");
    assert_eq!(taints(&cluster), [""; 0]);
    assert_eq!(
        (pod_ready(&cluster, "web"), pod_ready(&cluster, "starting")),
        ("True ".into(), "False ".into()),
        "a Pod that was not ready before is not"
    );
}

#[test]
fn a_kubelet_that_is_back_reports_its_pods_itself() {
    let mut cluster = started();
    cluster.pass(50);
    cluster.settle();
    assert_eq!(pod_ready(&cluster, "web"), "False NodeNotReady");
    cluster.put::<Lease>(lease("2026-01-01T01:00:00.000000Z"));
    cluster.settle();
    assert_eq!(
        node_condition(&cluster, "Ready"),
        "Unknown NodeStatusUnknown",
        "a Lease says only that it runs"
    );
    cluster.change::<Node>(&key_of_node(), |object| {
        let mut reported = node();
        reported["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T01:00:05Z".into();
        object["status"] = reported["status"].take();
    });
    cluster.settle();
    assert_eq!(taints(&cluster), [""; 0]);
    assert_eq!(pod_ready(&cluster, "web"), "False NodeNotReady");
}

#[test]
fn an_old_lease_brings_no_node_back() {
    let mut cluster = started_with(node_without_kubelet());
    cluster.pass(50);
    cluster.settle();
    cluster.writes.clear();
    for event in ["a new process", "the end of an outage"] {
        if event == "a new process" {
            cluster.restart();
        } else {
            let now = cluster.now;
            let mut touched = Vec::new();
            cluster.views.workloads.as_mut().expect("workloads").nodes.resume(now, &mut touched);
        }
        cluster.settle();
        cluster.pass(60);
        cluster.settle();
        assert_eq!(cluster.writes, [""; 0], "{event}");
    }
    // The next renewal that is seen does.
    cluster.put::<Lease>(lease("2026-01-01T01:00:00.000000Z"));
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "True LeaseRenewed");
}

#[test]
fn a_killed_process_is_succeeded_by_one_that_marks_the_pods_too() {
    let mut cluster = started_with(node_without_kubelet());
    cluster.pass(50);
    // The Lease is read, then the Node is marked; and there it ends.
    for _ in 0..2 {
        let plan = cluster.plan("NodeHealth", &key_of_node());
        cluster.step("NodeHealth", &key_of_node(), plan);
    }
    assert_eq!(node_condition(&cluster, "Ready"), "Unknown NodeStatusUnknown");
    assert_eq!(pod_ready(&cluster, "web"), "True ");
    cluster.restart();
    cluster.settle();
    assert_eq!(pod_ready(&cluster, "web"), "False NodeNotReady");
}

#[test]
fn a_renewal_that_the_watch_has_not_seen_is_read_before_a_node_is_marked() {
    let mut cluster = started();
    for minute in 0..5 {
        cluster.pass(50);
        cluster.store(Lease::TYPE, lease(&format!("2026-01-01T02:0{minute}:00.000000Z")));
        cluster.settle();
        assert_eq!(node_condition(&cluster, "Ready"), "True KubeletReady", "minute {minute}");
    }
    cluster.pass(50);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "Unknown NodeStatusUnknown");
}

#[test]
fn a_pod_that_becomes_ready_on_a_silent_node_is_marked() {
    let mut cluster = started();
    cluster.pass(50);
    cluster.settle();
    cluster.put::<Pod>(pod("starting", "True"));
    cluster.settle();
    assert_eq!(pod_ready(&cluster, "starting"), "False NodeNotReady");
}

#[test]
fn a_node_that_is_created_again_beside_its_old_lease_is_marked() {
    let mut cluster = started_with(node_without_kubelet());
    cluster.delete(Node::TYPE, &key_of_node(), None);
    cluster.settle();
    cluster.put::<Node>(node_without_kubelet());
    cluster.settle();
    cluster.pass(50);
    cluster.settle();
    assert_eq!(pod_ready(&cluster, "web"), "False NodeNotReady");
}

#[test]
fn a_node_without_a_lease_is_heard_of_by_its_reports() {
    let mut cluster = TestCluster::new();
    cluster.put::<Node>(node());
    cluster.settle();
    cluster.pass(40);
    cluster.change::<Node>(&key_of_node(), |node| {
        node["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:00:40Z".into();
    });
    cluster.settle();
    cluster.pass(20);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "True KubeletReady");
    cluster.pass(31);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "Unknown NodeStatusUnknown");
}

#[test]
fn a_node_that_was_never_heard_of_is_left_as_it_is() {
    let mut cluster = TestCluster::new();
    cluster.put::<Node>(json!({"metadata": {"name": "node-a"}}));
    cluster.pass(1000);
    cluster.settle();
    assert_eq!(cluster.writes, [""; 0]);
}

#[test]
fn a_node_that_says_that_it_is_not_ready_is_tainted_and_its_pods_are_its_own_business() {
    let mut cluster = started();
    cluster.change::<Node>(&key_of_node(), |node| {
        node["status"]["conditions"][0]["status"] = "False".into();
        node["spec"]["taints"] = json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]);
    });
    cluster.settle();
    assert_eq!(
        taints(&cluster),
        [
            "dedicated:NoSchedule",
            "node.kubernetes.io/not-ready:NoSchedule",
            "node.kubernetes.io/not-ready:NoExecute"
        ]
    );
    assert_eq!(pod_ready(&cluster, "web"), "True ");
    cluster.change::<Node>(&key_of_node(), |node| node["status"]["conditions"][0]["status"] = "True".into());
    cluster.settle();
    assert_eq!(taints(&cluster), ["dedicated:NoSchedule"], "taints of others stay");
}

#[test]
fn no_time_passes_while_the_api_server_cannot_be_read() {
    let mut cluster = started();
    let workloads = |cluster: &mut TestCluster| cluster.views.workloads.take().expect("workloads");
    let mut paused = workloads(&mut cluster);
    paused.nodes.pause();
    cluster.views.workloads = Some(paused);
    cluster.pass(500);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "True KubeletReady");
    let mut resumed = workloads(&mut cluster);
    let mut touched = Vec::new();
    resumed.nodes.resume(cluster.now, &mut touched);
    cluster.views.workloads = Some(resumed);
    assert_eq!(touched.len(), 1);
    cluster.pass(49);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "True KubeletReady", "the whole grace period begins again");
    cluster.pass(1);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "Unknown NodeStatusUnknown");
}

#[test]
fn a_new_process_gives_every_node_the_grace_period() {
    let mut cluster = started();
    cluster.pass(45);
    cluster.restart();
    cluster.pass(45);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "True KubeletReady");
    cluster.pass(5);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "Unknown NodeStatusUnknown");
}

#[test]
fn the_condition_that_the_controller_writes_is_no_report_of_the_node() {
    let mut cluster = TestCluster::new();
    cluster.put::<Node>(json!({"metadata": {"name": "node-a"}}));
    cluster.put::<Lease>(lease("2026-01-01T00:00:00.000000Z"));
    cluster.settle();
    cluster.pass(50);
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "Unknown NodeStatusNeverUpdated");
    // The event of it has a zero time in protobuf.
    cluster.change::<Node>(&key_of_node(), |node| {
        let conditions = node["status"]["conditions"].as_array_mut().expect("conditions");
        conditions.iter_mut().for_each(|c| c["lastHeartbeatTime"] = "1970-01-01T00:00:00Z".into());
    });
    cluster.settle();
    assert_eq!(node_condition(&cluster, "Ready"), "Unknown NodeStatusNeverUpdated");
}
