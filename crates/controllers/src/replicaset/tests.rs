//! Tables of ReplicaSets: scale, adoption and release, which Pods are deleted, status, lost answers.

use super::{Failed, ReplicaSetController, reconcile};
use crate::controller::{Clock, Logic};
use crate::key::Key;
use crate::plan::{Object, Write};
use crate::workloads::pod::PodState;
use crate::workloads::testing::*;
use portway_api::{Pod, ReplicaSet, ReplicaSetStatus, Resource};
use proptest::prelude::*;
use serde_json::{Value, json};

fn status(cluster: &TestCluster) -> ReplicaSetStatus {
    cluster.get::<ReplicaSet>(&key("web")).and_then(|set| set.status).expect("a status")
}

fn scale(cluster: &mut TestCluster, replicas: i32) {
    cluster.change::<ReplicaSet>(&key("web"), |set| set["spec"]["replicas"] = replicas.into());
    cluster.settle();
}

fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    change(&mut pod);
    pod
}

#[test]
fn pods_are_created_from_the_template_and_counted() {
    let mut cluster = TestCluster::new();
    cluster.put::<ReplicaSet>(replica_set("web", 3));
    cluster.settle();
    let pods = cluster.all::<Pod>();
    assert_eq!(pods.len(), 3);
    let first = cluster.json(Pod::TYPE, &Key::of(&pods[0])).expect("a Pod");
    assert_eq!(first["spec"]["containers"][0]["image"], "v1", "fields that are not read are copied");
    assert_eq!(first["metadata"]["labels"], json!({"app": "web"}));
    let owner = &first["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["controller"], &owner["blockOwnerDeletion"]),
        (&json!("ReplicaSet"), &json!(true), &json!(true))
    );
    let status = status(&cluster);
    assert_eq!((status.replicas, status.ready_replicas, status.available_replicas), (3, 3, 3));
    assert_eq!((status.fully_labeled_replicas, status.observed_generation), (3, 1));
    assert_eq!(cluster.notes.iter().filter(|note| note.reason == "SuccessfulCreate").count(), 3);
    cluster.assert_fixed_point();
}

#[test]
fn a_scale_creates_or_deletes_the_difference() {
    let mut cluster = TestCluster::new();
    cluster.put::<ReplicaSet>(replica_set("web", 2));
    cluster.settle();
    for replicas in [5, 1, 0, 3] {
        scale(&mut cluster, replicas);
        assert_eq!(cluster.all::<Pod>().len() as i32, replicas);
        let status = status(&cluster);
        assert_eq!((status.replicas, status.ready_replicas), (replicas, replicas));
    }
    cluster.assert_fixed_point();
}

#[test]
fn a_pod_that_ends_or_is_deleted_is_replaced_under_another_name() {
    let mut cluster = TestCluster::new();
    cluster.put::<ReplicaSet>(replica_set("web", 2));
    cluster.settle();
    let before: Vec<Key> = cluster.all::<Pod>().iter().map(Key::of).collect();
    cluster.change::<Pod>(&before[0], |pod| pod["status"]["phase"] = "Failed".into());
    cluster.settle();
    assert_eq!(cluster.all::<Pod>().len(), 3, "the Pod that failed stays for inspection");
    assert_eq!(status(&cluster).replicas, 2);
    cluster.delete(Pod::TYPE, &before[1], None);
    cluster.settle();
    let names: Vec<Key> = cluster.all::<Pod>().iter().map(Key::of).collect();
    assert!(names.len() == 3 && !names.contains(&before[1]), "{names:?}");
}

#[test]
fn pods_are_adopted_and_released_by_their_labels() {
    let mut cluster = TestCluster::new();
    cluster.put::<Pod>(pod("alone", |_| {}));
    cluster.put::<Pod>(pod("other", |pod| pod["metadata"]["labels"] = json!({"app": "db"})));
    let controlled =
        json!([{"kind": "Job", "name": "x", "uid": "u", "apiVersion": "batch/v1", "controller": true}]);
    cluster.put::<Pod>(pod("controlled", |pod| pod["metadata"]["ownerReferences"] = controlled));
    cluster.put::<ReplicaSet>(replica_set("web", 2));
    cluster.settle();
    let owner = |cluster: &TestCluster, name: &str| {
        let pod = cluster.json(Pod::TYPE, &key(name)).expect("a Pod").clone();
        pod["metadata"]["ownerReferences"][0]["kind"].as_str().unwrap_or("none").to_owned()
    };
    assert_eq!(owner(&cluster, "alone"), "ReplicaSet");
    assert_eq!((owner(&cluster, "other"), owner(&cluster, "controlled")), ("none".into(), "Job".into()));
    assert_eq!(cluster.all::<Pod>().len(), 4, "one was adopted, one created");
    cluster.change::<Pod>(&key("alone"), |pod| pod["metadata"]["labels"] = json!({"app": "debug"}));
    cluster.settle();
    assert_eq!(owner(&cluster, "alone"), "none", "it is released");
    assert_eq!(cluster.all::<Pod>().len(), 5, "and replaced");
    cluster.assert_fixed_point();
}

#[test]
fn a_set_that_is_being_deleted_creates_and_adopts_nothing() {
    let mut cluster = TestCluster::new();
    cluster.put::<Pod>(pod("alone", |_| {}));
    let mut set = replica_set("web", 3);
    set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    set["metadata"]["finalizers"] = json!(["someone.example/wait"]);
    cluster.put::<ReplicaSet>(set);
    cluster.settle();
    assert_eq!(cluster.all::<Pod>().len(), 1);
    assert_eq!(status(&cluster).replicas, 0);
}

/// A change of a Pod.
type Edit = Box<dyn FnOnce(&mut Value)>;

#[test]
fn the_pods_that_serve_least_are_deleted_first() {
    let ready = |pod: &mut Value, at: i64| {
        pod["status"]["conditions"][0]["lastTransitionTime"] = portway_api::time::format_rfc3339(at).into();
    };
    let cost = |pod: &mut Value, cost: &str| {
        pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] = cost.into();
    };
    // Each Pod goes before the next one.
    let mut cluster = TestCluster::new();
    cluster.no_kubelet = true;
    let order: Vec<(&str, Edit)> = vec![
        ("i-unassigned", Box::new(|pod| pod["spec"] = json!({}))),
        ("h-pending", Box::new(|pod| pod["status"]["phase"] = "Pending".into())),
        ("g-unready", Box::new(|pod| pod["status"]["conditions"][0]["status"] = "False".into())),
        ("f-cheap", Box::new(move |pod| cost(pod, "-5"))),
        ("e-crowded-late", Box::new(move |pod| ready(pod, 9000))),
        ("d-crowded", Box::new(move |pod| ready(pod, 100))),
        (
            "c-restarted",
            Box::new(move |pod| {
                ready(pod, 100);
                pod["spec"]["nodeName"] = "node-b".into();
                pod["status"]["containerStatuses"] = json!([{"restartCount": 4}]);
            }),
        ),
        (
            "b-alone",
            Box::new(move |pod| {
                ready(pod, 100);
                pod["spec"]["nodeName"] = "node-c".into();
            }),
        ),
        ("a-dear", Box::new(move |pod| cost(pod, "7"))),
    ];
    let names: Vec<String> = order.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (name, change) in order {
        cluster.put::<Pod>(pod(name, change));
    }
    cluster.put::<ReplicaSet>(replica_set("web", 9));
    cluster.settle();
    for left in (0..9).rev() {
        scale(&mut cluster, left);
        let mut kept: Vec<String> =
            cluster.all::<Pod>().iter().map(|pod| Key::of(pod).name().to_owned()).collect();
        kept.sort_by_key(|name| names.iter().position(|known| known == name));
        assert_eq!(kept, names[9 - left as usize..], "with {left} left");
    }
}

#[test]
fn pods_are_available_after_min_ready_seconds() {
    let mut cluster = TestCluster::new();
    let mut set = replica_set("web", 2);
    set["spec"]["minReadySeconds"] = 30.into();
    cluster.put::<ReplicaSet>(set);
    cluster.settle();
    assert_eq!((status(&cluster).ready_replicas, status(&cluster).available_replicas), (2, 0));
    let plan = cluster.plan("ReplicaSet", &key("web"));
    assert_eq!(plan.again_after.map(|wait| wait.as_secs()), Some(30));
    cluster.pass(30);
    cluster.settle();
    assert_eq!(status(&cluster).available_replicas, 2);
    assert_eq!(cluster.plan("ReplicaSet", &key("web")).again_after, None);
}

#[test]
fn refused_pods_are_reported_in_the_status_until_they_are_created() {
    let mut cluster = TestCluster::new();
    cluster.refuse_pods = true;
    cluster.put::<ReplicaSet>(replica_set("web", 2));
    cluster.settle();
    let conditions = status(&cluster).conditions;
    assert_eq!(conditions.len(), 1);
    assert_eq!(
        (conditions[0].kind.as_str(), conditions[0].reason.as_str()),
        ("ReplicaFailure", "FailedCreate")
    );
    cluster.refuse_pods = false;
    cluster.pass(5);
    cluster.settle();
    assert_eq!((status(&cluster).replicas, status(&cluster).conditions), (2, Vec::new()));
}

#[test]
fn an_empty_selector_selects_nothing() {
    let mut cluster = TestCluster::new();
    cluster.put::<Pod>(pod("alone", |_| {}));
    let mut set = replica_set("web", 0);
    set["spec"]["selector"] = json!({});
    cluster.put::<ReplicaSet>(set);
    cluster.settle();
    assert!(cluster.json(Pod::TYPE, &key("alone")).expect("a Pod")["metadata"]["ownerReferences"].is_null());
}

#[test]
fn a_lost_answer_does_not_lead_to_another_pod() {
    let mut cluster = TestCluster::new();
    cluster.put::<ReplicaSet>(replica_set("web", 1));
    let plan = cluster.plan("ReplicaSet", &key("web"));
    let Write::Create(Object::Json(resource, value)) = &plan.writes[0].write else { panic!("{plan:?}") };
    // The Pod is stored, but neither answer nor event has arrived.
    cluster.store(*resource, (**value).clone());
    cluster.settle();
    assert_eq!(cluster.all::<Pod>().len(), 1);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Scale(i32),
    Delete(usize),
    Fail(usize),
    Relabel(usize),
    Alone,
    Restart,
    Settle,
}

#[test]
fn a_repeated_creation_has_the_same_names_although_the_set_has_changed() {
    let mut cluster = TestCluster::new();
    cluster.no_kubelet = true;
    cluster.put::<ReplicaSet>(replica_set("web", 3));
    let mut controller = ReplicaSetController::default();
    let names = |controller: &mut ReplicaSetController, cluster: &TestCluster| {
        let clock = Clock { now: cluster.now, wall: cluster.wall };
        let plan = controller.reconcile(&cluster.views, &key("web"), clock);
        let created = plan.writes.iter().filter(|r| matches!(r.write, Write::Create(_)));
        created.map(|r| r.write.key().name().to_owned()).collect::<Vec<_>>()
    };
    let first = names(&mut controller, &cluster);
    assert_eq!(first.len(), 3);
    let change = |cluster: &mut TestCluster, n: i32| {
        cluster.change::<ReplicaSet>(&key("web"), |set| {
            set["metadata"]["annotations"]["n"] = n.to_string().into();
        });
    };
    change(&mut cluster, 1);
    assert_eq!(names(&mut controller, &cluster), first);
    controller.succeeded(&key("web"));
    change(&mut cluster, 2);
    assert_ne!(names(&mut controller, &cluster), first);
}

#[test]
fn another_message_about_the_same_failure_is_no_reason_to_write() {
    let mut cluster = TestCluster::new();
    cluster.put::<ReplicaSet>(replica_set("web", 1));
    let plan = |cluster: &TestCluster, message: &str| {
        let failed = Failed { reason: "FailedCreate", message: message.to_owned() };
        let workloads = cluster.views.workloads.as_ref().expect("workloads");
        reconcile(workloads, &key("web"), Some(&failed), None, cluster.wall)
    };
    let first = plan(&cluster, "web-abcde is refused");
    let [status, creation] = &first.writes[..] else { panic!("{first:?}") };
    assert!(matches!((&status.write, &creation.write), (Write::Change(_), Write::Create(_))));
    cluster.refuse_pods = true;
    cluster.step("ReplicaSet", &key("web"), first);
    let second = plan(&cluster, "web-fghij is refused");
    assert!(
        matches!(&second.writes[..], [creation] if matches!(creation.write, Write::Create(_))),
        "{second:?}"
    );
}

#[test]
fn a_large_set_is_created_in_parts_with_a_status_each() {
    let mut cluster = TestCluster::new();
    cluster.no_kubelet = true;
    cluster.put::<ReplicaSet>(replica_set("web", 250));
    let mut seen = Vec::new();
    for _ in 0..4 {
        let plan = cluster.plan("ReplicaSet", &key("web"));
        cluster.step("ReplicaSet", &key("web"), plan);
        seen.push((cluster.all::<Pod>().len(), status(&cluster).replicas));
    }
    assert_eq!(seen, [(100, 0), (200, 100), (250, 100), (250, 250)]);
}

#[test]
fn terminating_pods_are_counted() {
    let mut cluster = TestCluster::new();
    cluster.put::<ReplicaSet>(replica_set("web", 2));
    cluster.settle();
    cluster.no_kubelet = true;
    for pod in cluster.all::<Pod>() {
        cluster
            .change::<Pod>(&Key::of(&pod), |pod| pod["metadata"]["finalizers"] = json!(["example.org/wait"]));
    }
    scale(&mut cluster, 1);
    let status = status(&cluster);
    assert_eq!((status.replicas, status.terminating_replicas), (1, Some(1)));
}

#[test]
fn a_pod_of_which_it_is_not_known_since_when_it_is_ready_is_not_available_and_goes_first() {
    let mut unknown = PodState::default();
    unknown.ready = true;
    assert_eq!((unknown.available_at(0), unknown.available_at(5)), (Some(i64::MIN), None));
    let mut cluster = TestCluster::new();
    cluster.no_kubelet = true;
    cluster.put::<Pod>(pod("known", |pod| {
        pod["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
    }));
    cluster.put::<Pod>(pod("unknown", |_| {}));
    cluster.put::<ReplicaSet>(replica_set("web", 2));
    cluster.settle();
    scale(&mut cluster, 1);
    let left: Vec<String> = cluster.all::<Pod>().iter().map(|pod| Key::of(pod).name().to_owned()).collect();
    assert!(left.contains(&"known".to_owned()), "{left:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn every_state_leads_to_as_many_pods_as_wanted(steps in prop::collection::vec(prop_oneof![
        (0i32..6).prop_map(Step::Scale), (0usize..6).prop_map(Step::Delete), (0usize..6).prop_map(Step::Fail),
        (0usize..6).prop_map(Step::Relabel), Just(Step::Alone), Just(Step::Restart), Just(Step::Settle),
    ], 1..20)) {
        let mut cluster = TestCluster::new();
        cluster.put::<ReplicaSet>(replica_set("web", 2));
        for (number, step) in steps.into_iter().enumerate() {
            let pods: Vec<Key> = cluster.all::<Pod>().iter().map(Key::of).collect();
            match step {
                Step::Scale(replicas) => cluster
                    .change::<ReplicaSet>(&key("web"), |set| set["spec"]["replicas"] = replicas.into()),
                Step::Delete(n) => if let Some(pod) = pods.get(n) { cluster.delete(Pod::TYPE, pod, None) },
                Step::Fail(n) => if let Some(pod) = pods.get(n) {
                    cluster.change::<Pod>(pod, |pod| pod["status"]["phase"] = "Failed".into());
                },
                Step::Relabel(n) => if let Some(pod) = pods.get(n) {
                    cluster.change::<Pod>(pod, |pod| pod["metadata"]["labels"] = json!({"app": "debug"}));
                },
                Step::Alone => cluster.put::<Pod>(pod(&format!("alone-{number}"), |_| {})),
                Step::Restart => cluster.restart(),
                Step::Settle => cluster.settle(),
            }
        }
        cluster.settle();
        let wanted = cluster.get::<ReplicaSet>(&key("web")).and_then(|s| s.spec?.replicas).unwrap_or(0);
        let status = status(&cluster);
        prop_assert_eq!((status.replicas, status.ready_replicas), (wanted, wanted));
        cluster.assert_fixed_point();
    }
}
