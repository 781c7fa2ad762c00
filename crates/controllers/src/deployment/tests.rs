//! Tables of Deployments: rollouts within their limits, scale, pause, progress, history, adoption.

use crate::key::Key;
use crate::workloads::testing::*;
use portway_api::{Deployment, DeploymentStatus, Pod, ReplicaSet, Resource};
use proptest::prelude::*;
use serde_json::{Value, json};

fn status(cluster: &TestCluster) -> DeploymentStatus {
    cluster.get::<Deployment>(&key("web")).and_then(|d| d.status).expect("a status")
}

fn change(cluster: &mut TestCluster, change: impl FnOnce(&mut Value)) {
    cluster.change::<Deployment>(&key("web"), change);
}

fn set_image(cluster: &mut TestCluster, image: &str) {
    change(cluster, |d| d["spec"]["template"]["spec"]["containers"][0]["image"] = image.into());
}

/// The reason in a condition.
fn reason(cluster: &TestCluster, kind: &str) -> String {
    let conditions = status(cluster).conditions;
    let found = conditions.iter().find(|condition| condition.kind == kind);
    found.map_or("none".to_owned(), |condition| format!("{} {}", condition.status, condition.reason))
}

fn images(cluster: &TestCluster) -> Vec<String> {
    let pods = cluster.all::<Pod>();
    let image = |pod: &Pod| {
        cluster.json(Pod::TYPE, &Key::of(pod)).map(|p| p["spec"]["containers"][0]["image"].clone())
    };
    let mut images: Vec<String> =
        pods.iter().filter_map(image).map(|i| i.as_str().unwrap_or("").to_owned()).collect();
    images.sort();
    images
}

fn started(replicas: i32) -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.put::<Deployment>(deployment("web", replicas));
    cluster.settle();
    cluster
}

#[test]
fn a_deployment_creates_a_replica_set_with_the_hash_of_its_template() {
    let mut cluster = started(3);
    let sets = cluster.all::<ReplicaSet>();
    assert_eq!(sets.len(), 1);
    let set = cluster.json(ReplicaSet::TYPE, &Key::of(&sets[0])).expect("a set").clone();
    let hash = set["metadata"]["labels"]["pod-template-hash"].as_str().expect("a hash").to_owned();
    assert_eq!(set["metadata"]["name"], format!("web-{hash}"));
    assert_eq!(set["spec"]["selector"]["matchLabels"], json!({"app": "web", "pod-template-hash": hash}));
    assert_eq!(set["spec"]["template"]["metadata"]["labels"]["pod-template-hash"], hash);
    assert_eq!(
        set["metadata"]["annotations"],
        json!({
            "deployment.kubernetes.io/revision": "1",
            "deployment.kubernetes.io/desired-replicas": "3",
            "deployment.kubernetes.io/max-replicas": "4",
        })
    );
    let deployment = cluster.json(Deployment::TYPE, &key("web")).expect("a Deployment");
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    let status = status(&cluster);
    assert_eq!((status.replicas, status.updated_replicas, status.available_replicas), (3, 3, 3));
    assert_eq!((status.unavailable_replicas, status.observed_generation), (0, 1));
    assert_eq!(reason(&cluster, "Available"), "True MinimumReplicasAvailable");
    assert_eq!(reason(&cluster, "Progressing"), "True NewReplicaSetAvailable");
    assert!(cluster.notes.iter().any(|n| n.reason == "ScalingReplicaSet" && n.text.ends_with("from 0 to 3")));
    cluster.assert_fixed_point();
}

#[test]
fn a_new_template_replaces_all_pods_and_gets_the_next_revision() {
    let mut cluster = started(4);
    set_image(&mut cluster, "v2");
    cluster.settle();
    assert_eq!(images(&cluster), ["v2"; 4]);
    assert_eq!(cluster.sizes(), [0, 4]);
    let deployment = cluster.json(Deployment::TYPE, &key("web")).expect("a Deployment");
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    assert_eq!(reason(&cluster, "Progressing"), "True NewReplicaSetAvailable");
    cluster.assert_fixed_point();
    // Back to the first template: its ReplicaSet is used again, as the newest revision.
    set_image(&mut cluster, "v1");
    cluster.settle();
    assert_eq!((cluster.all::<ReplicaSet>().len(), images(&cluster)), (2, vec!["v1".to_owned(); 4]));
    let sets = cluster.all::<ReplicaSet>();
    let annotations: Vec<_> = sets.iter().filter_map(|s| s.metadata.clone()).map(|m| m.annotations).collect();
    let first =
        annotations.iter().find(|a| a["deployment.kubernetes.io/revision"] == "3").expect("revision 3");
    assert_eq!(first["deployment.kubernetes.io/revision-history"], "1");
    cluster.assert_fixed_point();
}

#[test]
fn a_rolling_update_never_leaves_its_limits() {
    for (replicas, surge, unavailable, most, least) in [
        (4, json!("25%"), json!("25%"), 5, 3),
        (4, json!(0), json!(1), 4, 3),
        (4, json!(2), json!(0), 6, 4),
        (3, json!("50%"), json!("10%"), 5, 3),
        (1, json!(0), json!(0), 1, 0),
        (10, json!("100%"), json!("0%"), 20, 10),
    ] {
        let mut cluster = started(replicas);
        change(&mut cluster, |d| {
            d["spec"]["strategy"]["rollingUpdate"] =
                json!({"maxSurge": surge, "maxUnavailable": unavailable});
        });
        cluster.settle();
        set_image(&mut cluster, "v2");
        let (mut seen_most, mut seen_least) = (0, i32::MAX);
        // Every decision is followed, with Pods that become ready one round after the other.
        for _ in 0..400 {
            let Some((by, key)) = cluster.touched.pop_first() else {
                if !cluster.step_kubelet() {
                    break;
                }
                continue;
            };
            let plan = cluster.plan(&by, &key);
            cluster.step(&by, &key, plan);
            let total: i32 = cluster.sizes().iter().sum();
            let ready = cluster.all::<Pod>().iter().filter(|pod| is_ready(pod)).count() as i32;
            (seen_most, seen_least) = (seen_most.max(total), seen_least.min(ready));
        }
        let name = format!("{replicas} {surge} {unavailable}");
        assert_eq!(images(&cluster), vec!["v2"; replicas as usize], "{name}");
        assert!(seen_most <= most && seen_least >= least, "{name}: {seen_least} to {seen_most}");
    }
}

fn is_ready(pod: &Pod) -> bool {
    let deleted = pod.metadata.as_ref().is_some_and(|meta| meta.deletion_timestamp.is_some());
    let conditions = pod.status.as_ref().map_or(&[][..], |status| &status.conditions);
    !deleted && conditions.iter().any(|c| c.kind == "Ready" && c.status == "True")
}

#[test]
fn a_template_that_does_not_start_keeps_the_old_pods_and_fails_in_the_end() {
    let mut cluster = started(4);
    change(&mut cluster, |d| {
        d["spec"]["template"]["spec"]["broken"] = true.into();
        d["spec"]["progressDeadlineSeconds"] = 60.into();
    });
    cluster.settle();
    assert_eq!(cluster.sizes(), [3, 2], "one Pod may be missing, and one be there in addition");
    let before = status(&cluster);
    assert_eq!((before.updated_replicas, before.available_replicas, before.unavailable_replicas), (2, 3, 2));
    assert_eq!(reason(&cluster, "Progressing"), "True ReplicaSetUpdated");
    assert_eq!(reason(&cluster, "Available"), "True MinimumReplicasAvailable");
    let wait = cluster.plan("Deployment", &key("web")).again_after.expect("a deadline");
    assert!((1..=62).contains(&wait.as_secs()), "{wait:?}");
    cluster.pass(62);
    cluster.settle();
    assert_eq!(reason(&cluster, "Progressing"), "False ProgressDeadlineExceeded");
    cluster.assert_fixed_point();
    // A template that starts ends it.
    change(&mut cluster, |d| {
        d["spec"]["template"]["spec"]["broken"] = Value::Null;
        d["spec"]["template"]["spec"]["containers"][0]["image"] = "v3".into();
    });
    cluster.settle();
    assert_eq!(images(&cluster), ["v3"; 4]);
    assert_eq!(reason(&cluster, "Progressing"), "True NewReplicaSetAvailable");
}

#[test]
fn recreate_ends_all_pods_before_it_starts_new_ones() {
    let mut cluster = started(3);
    change(&mut cluster, |d| d["spec"]["strategy"] = json!({"type": "Recreate"}));
    cluster.settle();
    set_image(&mut cluster, "v2");
    for _ in 0..200 {
        let Some((by, key)) = cluster.touched.pop_first() else {
            if !cluster.step_kubelet() {
                break;
            }
            continue;
        };
        let plan = cluster.plan(&by, &key);
        cluster.step(&by, &key, plan);
        let mut versions = images(&cluster);
        versions.dedup();
        assert!(versions.len() <= 1, "{versions:?}");
    }
    assert_eq!(images(&cluster), ["v2"; 3]);
    cluster.assert_fixed_point();
}

#[test]
fn a_scale_in_the_middle_of_a_rollout_is_proportional() {
    let mut cluster = started(10);
    change(&mut cluster, |d| {
        d["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 3, "maxUnavailable": 2});
        d["spec"]["template"]["spec"]["broken"] = true.into();
    });
    cluster.settle();
    assert_eq!(cluster.sizes(), [8, 5]);
    change(&mut cluster, |d| d["spec"]["replicas"] = 15.into());
    cluster.settle();
    assert_eq!(cluster.sizes(), [11, 7], "as kube-controller-manager's documentation has it");
}

#[test]
fn a_paused_deployment_scales_and_does_not_roll_out() {
    let mut cluster = started(2);
    change(&mut cluster, |d| {
        d["spec"]["paused"] = true.into();
        d["spec"]["replicas"] = 4.into();
    });
    set_image(&mut cluster, "v2");
    cluster.settle();
    assert_eq!(images(&cluster), ["v1"; 4]);
    assert_eq!(reason(&cluster, "Progressing"), "Unknown DeploymentPaused");
    change(&mut cluster, |d| d["spec"]["paused"] = false.into());
    cluster.settle();
    assert_eq!(images(&cluster), ["v2"; 4]);
    assert_eq!(reason(&cluster, "Progressing"), "True NewReplicaSetAvailable");
    cluster.assert_fixed_point();
}

#[test]
fn old_replica_sets_are_kept_up_to_the_limit() {
    let mut cluster = started(1);
    change(&mut cluster, |d| d["spec"]["revisionHistoryLimit"] = 2.into());
    for version in 2..7 {
        cluster.wall += 10;
        set_image(&mut cluster, &format!("v{version}"));
        cluster.settle();
    }
    assert_eq!(cluster.sizes(), [0, 0, 1]);
    change(&mut cluster, |d| d["spec"]["revisionHistoryLimit"] = 0.into());
    cluster.settle();
    assert_eq!(cluster.sizes(), [1]);
}

#[test]
fn replica_sets_are_adopted_and_released_by_their_labels() {
    let mut cluster = TestCluster::new();
    let mut set = replica_set("older", 2);
    set["metadata"]["labels"] = json!({"app": "web"});
    set["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
    set["spec"]["template"] = template("web", "v0");
    cluster.put::<ReplicaSet>(set);
    cluster.settle();
    cluster.put::<Deployment>(deployment("web", 2));
    cluster.settle();
    assert_eq!(cluster.all::<ReplicaSet>().len(), 2);
    assert_eq!(images(&cluster), ["v1"; 2], "the adopted one is rolled over");
    cluster.change::<ReplicaSet>(&key("older"), |set| set["metadata"]["labels"] = json!({"app": "free"}));
    cluster.settle();
    let older = cluster.json(ReplicaSet::TYPE, &key("older")).expect("the set");
    assert_eq!(older["metadata"]["ownerReferences"], json!([]));
    cluster.assert_fixed_point();
}

#[test]
fn a_name_that_is_taken_leads_to_another_hash() {
    let cluster = started(1);
    let name = Key::of(&cluster.all::<ReplicaSet>()[0]);
    let mut cluster = TestCluster::new();
    cluster.put::<ReplicaSet>(json!({
        "metadata": {"namespace": NAMESPACE, "name": name.name()},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "other"}}, "template": template("other", "x")},
    }));
    cluster.put::<Deployment>(deployment("web", 1));
    cluster.settle();
    assert_eq!(status(&cluster).collision_count, Some(1));
    assert_eq!((cluster.all::<ReplicaSet>().len(), images(&cluster)), (2, vec!["v1".to_owned()]));
    cluster.assert_fixed_point();
}

#[test]
fn a_selector_without_requirements_is_refused() {
    let mut cluster = TestCluster::new();
    let mut object = deployment("web", 1);
    object["spec"]["selector"] = json!({});
    cluster.put::<Deployment>(object);
    cluster.settle();
    assert!(cluster.notes.iter().any(|note| note.reason == "SelectingAll" && note.warning));
    assert!(cluster.all::<ReplicaSet>().is_empty());
}

#[test]
fn annotations_and_min_ready_seconds_follow_the_deployment() {
    let mut cluster = started(1);
    change(&mut cluster, |d| {
        d["metadata"]["annotations"]["team"] = "a".into();
        d["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "{}".into();
        d["spec"]["minReadySeconds"] = 5.into();
    });
    cluster.settle();
    let set = cluster.json(ReplicaSet::TYPE, &Key::of(&cluster.all::<ReplicaSet>()[0])).expect("a set");
    assert_eq!(set["metadata"]["annotations"]["team"], "a");
    assert!(set["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].is_null());
    assert_eq!(set["spec"]["minReadySeconds"], 5);
}

#[test]
fn refused_pods_are_reported_by_the_deployment() {
    let mut cluster = TestCluster::new();
    cluster.refuse_pods = true;
    cluster.put::<Deployment>(deployment("web", 1));
    cluster.settle();
    assert_eq!(reason(&cluster, "ReplicaFailure"), "True FailedCreate");
    cluster.refuse_pods = false;
    cluster.pass(5);
    cluster.settle();
    assert_eq!(reason(&cluster, "ReplicaFailure"), "none");
}

#[test]
fn a_replica_set_that_cannot_be_created_is_reported_in_the_status() {
    let mut cluster = TestCluster::new();
    cluster.refuse_sets = true;
    cluster.put::<Deployment>(deployment("web", 1));
    cluster.settle();
    assert_eq!(reason(&cluster, "Progressing"), "False ReplicaSetCreateError");
    cluster.refuse_sets = false;
    cluster.put::<Deployment>(deployment("other", 1));
    change(&mut cluster, |d| d["metadata"]["labels"] = json!({"try": "again"}));
    cluster.settle();
    assert_eq!(reason(&cluster, "Progressing"), "True NewReplicaSetAvailable");
}

#[test]
fn pods_that_cannot_be_created_are_unavailable() {
    let mut cluster = TestCluster::new();
    cluster.refuse_pods = true;
    cluster.put::<Deployment>(deployment("web", 3));
    cluster.settle();
    cluster.pass(5);
    cluster.settle();
    assert_eq!((status(&cluster).replicas, status(&cluster).unavailable_replicas), (0, 3));
}

#[test]
fn without_a_deadline_there_is_no_condition_of_progress() {
    let mut cluster = started(1);
    assert_eq!(reason(&cluster, "Progressing"), "True NewReplicaSetAvailable");
    change(&mut cluster, |d| d["spec"]["progressDeadlineSeconds"] = i32::MAX.into());
    cluster.settle();
    assert_eq!(reason(&cluster, "Progressing"), "none");
}

#[test]
fn the_longest_name_and_the_longest_history_fit() {
    let name = "n".repeat(253);
    let mut cluster = TestCluster::new();
    cluster.put::<Deployment>(deployment(&name, 1));
    cluster.settle();
    let sets = cluster.all::<ReplicaSet>();
    assert_eq!(Key::of(&sets[0]).name().len(), 253);
    assert_eq!(cluster.all::<Pod>().len(), 1);

    let mut cluster = started(1);
    let long = (0..900).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let set = Key::of(&cluster.all::<ReplicaSet>()[0]);
    cluster.change::<ReplicaSet>(&set, |set| {
        set["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"] = long.into();
    });
    set_image(&mut cluster, "v2");
    cluster.settle();
    set_image(&mut cluster, "v1");
    cluster.settle();
    let set = cluster.json(ReplicaSet::TYPE, &set).expect("the first set");
    let annotations = &set["metadata"]["annotations"];
    let history = annotations["deployment.kubernetes.io/revision-history"].as_str().expect("a history");
    assert!(history.len() <= 2000 && history.ends_with(",899,1"), "{history}");
}

#[derive(Clone, Debug)]
enum Step {
    Scale(i32),
    Image(u8),
    Pause(bool),
    Broken(bool),
    Recreate(bool),
    Restart,
    Decide(usize),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_state_leads_to_the_newest_template(steps in prop::collection::vec(prop_oneof![
        (0i32..6).prop_map(Step::Scale), (0u8..3).prop_map(Step::Image), any::<bool>().prop_map(Step::Pause),
        any::<bool>().prop_map(Step::Broken), any::<bool>().prop_map(Step::Recreate), Just(Step::Restart),
        (1usize..12).prop_map(Step::Decide),
    ], 1..15)) {
        let mut cluster = TestCluster::new();
        cluster.put::<Deployment>(deployment("web", 2));
        for step in steps {
            match step {
                Step::Scale(replicas) => change(&mut cluster, |d| d["spec"]["replicas"] = replicas.into()),
                Step::Image(image) => set_image(&mut cluster, &format!("v{image}")),
                Step::Pause(paused) => change(&mut cluster, |d| d["spec"]["paused"] = paused.into()),
                Step::Broken(broken) => change(&mut cluster, |d| {
                    let spec = d["spec"]["template"]["spec"].as_object_mut().expect("a template");
                    if broken { spec.insert("broken".into(), true.into()); } else { spec.remove("broken"); }
                }),
                Step::Recreate(recreate) => change(&mut cluster, |d| {
                    d["spec"]["strategy"] = json!({"type": if recreate { "Recreate" } else { "RollingUpdate" }});
                }),
                Step::Restart => cluster.restart(),
                // Only some decisions are made before the next change.
                Step::Decide(count) => for _ in 0..count {
                    let Some((by, key)) = cluster.touched.pop_first() else { cluster.step_kubelet(); continue };
                    let plan = cluster.plan(&by, &key);
                    cluster.step(&by, &key, plan);
                },
            }
        }
        change(&mut cluster, |d| {
            d["spec"]["paused"] = false.into();
            d["spec"]["template"]["spec"].as_object_mut().expect("a template").remove("broken");
            d["spec"]["template"]["spec"]["containers"][0]["image"] = "last".into();
        });
        cluster.settle();
        let wanted = cluster.get::<Deployment>(&key("web")).and_then(|d| d.spec?.replicas).unwrap_or(0);
        prop_assert_eq!(images(&cluster), vec!["last"; wanted as usize]);
        prop_assert_eq!(reason(&cluster, "Progressing"), "True NewReplicaSetAvailable");
        cluster.assert_fixed_point();
    }
}
