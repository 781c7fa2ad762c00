//! Tables of the garbage collection: background, foreground and orphaning deletions, owners that are gone.

use crate::key::Key;
use crate::workloads::testing::*;
use portway_api::metadata_only::{ConfigMap, Namespace};
use portway_api::{Deployment, Node, Pod, ReplicaSet, Resource, ResourceType};
use portway_client::Propagation;
use proptest::prelude::*;
use serde_json::{Value, json};

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    let version = if kind == "ConfigMap" { "v1" } else { "apps/v1" };
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": true})
}

fn config_map(name: &str, owners: Value) -> Value {
    json!({"metadata": {"namespace": NAMESPACE, "name": name, "uid": format!("uid-of-{name}"), "ownerReferences": owners}})
}

fn names(cluster: &TestCluster) -> Vec<String> {
    cluster.all::<ConfigMap>().iter().map(|object| Key::of(object).name().to_owned()).collect()
}

fn owners(cluster: &TestCluster, name: &str) -> Vec<String> {
    let object = cluster.json(ConfigMap::TYPE, &key(name)).expect("an object");
    let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    owners.iter().map(|owner| owner["name"].as_str().unwrap_or("").to_owned()).collect()
}

/// `a` owns `b`, and `b` owns `c`.
fn chain() -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.put::<ConfigMap>(config_map("a", json!([])));
    cluster.put::<ConfigMap>(config_map("b", json!([owner("ConfigMap", "a", "uid-of-a")])));
    cluster.put::<ConfigMap>(config_map("c", json!([owner("ConfigMap", "b", "uid-of-b")])));
    cluster.settle();
    assert_eq!(names(&cluster), ["a", "b", "c"]);
    cluster
}

fn delete(cluster: &mut TestCluster, name: &str, propagation: Propagation) {
    cluster.delete(ConfigMap::TYPE, &key(name), Some(propagation));
    cluster.settle();
}

#[test]
fn a_background_deletion_is_followed_by_the_dependents() {
    let mut cluster = chain();
    delete(&mut cluster, "a", Propagation::Background);
    assert_eq!(names(&cluster), [""; 0]);
    assert_eq!(cluster.writes, ["delete ConfigMap shop/b", "delete ConfigMap shop/c"]);
}

#[test]
fn a_foreground_deletion_waits_for_the_dependents() {
    let mut cluster = chain();
    delete(&mut cluster, "a", Propagation::Foreground);
    assert_eq!(names(&cluster), [""; 0]);
    let position = |write: &str| cluster.writes.iter().rposition(|w| w == write).expect(write);
    // The finalizer of an owner is removed after its dependents are gone.
    assert!(
        position("delete ConfigMap shop/c") < position("update ConfigMap shop/b"),
        "{:?}",
        cluster.writes
    );
    assert!(
        position("update ConfigMap shop/b") < position("update ConfigMap shop/a"),
        "{:?}",
        cluster.writes
    );
}

#[test]
fn a_dependent_that_does_not_block_is_not_waited_for() {
    let mut cluster = TestCluster::new();
    cluster.put::<ConfigMap>(config_map("a", json!([])));
    let mut reference = owner("ConfigMap", "a", "uid-of-a");
    reference["blockOwnerDeletion"] = false.into();
    let mut dependent = config_map("b", json!([reference]));
    dependent["metadata"]["finalizers"] = json!(["someone.example/wait"]);
    cluster.put::<ConfigMap>(dependent);
    delete(&mut cluster, "a", Propagation::Foreground);
    assert_eq!(names(&cluster), ["b"], "it waits for its own finalizer");
}

#[test]
fn an_orphaning_deletion_keeps_the_dependents() {
    let mut cluster = chain();
    delete(&mut cluster, "a", Propagation::Orphan);
    assert_eq!(names(&cluster), ["b", "c"]);
    assert_eq!((owners(&cluster, "b"), owners(&cluster, "c")), (vec![], vec!["b".to_owned()]));
    cluster.assert_fixed_point();
}

#[test]
fn an_object_with_another_owner_stays_and_loses_the_reference() {
    let mut cluster = TestCluster::new();
    cluster.put::<ConfigMap>(config_map("a", json!([])));
    cluster.put::<ConfigMap>(config_map("other", json!([])));
    let both = json!([owner("ConfigMap", "a", "uid-of-a"), owner("ConfigMap", "other", "uid-of-other")]);
    cluster.put::<ConfigMap>(config_map("b", both));
    delete(&mut cluster, "a", Propagation::Background);
    assert_eq!(
        (names(&cluster), owners(&cluster, "b")),
        (vec!["b".into(), "other".into()], vec!["other".into()])
    );
    delete(&mut cluster, "other", Propagation::Foreground);
    assert_eq!(names(&cluster), [""; 0]);
}

#[test]
fn owners_that_are_gone_before_the_start_are_found() {
    let mut cluster = TestCluster::new();
    cluster.put::<ConfigMap>(config_map("b", json!([owner("ConfigMap", "a", "uid-of-a")])));
    // Another object of the same name is not the owner.
    let mut other = config_map("a", json!([]));
    other["metadata"]["uid"] = "another".into();
    cluster.put::<ConfigMap>(other);
    cluster.restart();
    cluster.settle();
    assert_eq!(names(&cluster), ["a"]);
}

#[test]
fn an_owner_whose_event_has_not_arrived_is_read_and_not_taken_for_gone() {
    let mut cluster = TestCluster::new();
    cluster.store(ConfigMap::TYPE, config_map("a", json!([])));
    cluster.put::<ConfigMap>(config_map("b", json!([owner("ConfigMap", "a", "uid-of-a")])));
    cluster.settle();
    assert_eq!((names(&cluster), cluster.writes.clone()), (vec!["a".into(), "b".into()], vec![]));
}

#[test]
fn owners_of_which_nothing_is_known_keep_their_dependents() {
    let mut cluster = TestCluster::new();
    let unknown = json!([{"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u"}]);
    cluster.put::<ConfigMap>(config_map("b", unknown));
    // A Deployment of another group is another kind.
    let group = json!([{"apiVersion": "example.com/v1", "kind": "Deployment", "name": "w", "uid": "u"}]);
    cluster.put::<ConfigMap>(config_map("c", group));
    cluster.settle();
    assert_eq!(names(&cluster), ["b", "c"]);
}

#[test]
fn a_namespaced_owner_of_a_cluster_scoped_object_is_reported() {
    let mut cluster = TestCluster::new();
    cluster.put::<Namespace>(json!({"metadata": {"name": "team", "uid": "n",
        "ownerReferences": [owner("ConfigMap", "a", "uid-of-a")]}}));
    cluster.settle();
    assert_eq!(cluster.all::<Namespace>().len(), 1);
    assert!(cluster.notes.iter().any(|note| note.reason == "OwnerRefInvalidNamespace" && note.warning));
    // The other way round is usual: Pods of the control plane are owned by their Node.
    cluster.put::<Node>(json!({"metadata": {"name": "node-a", "uid": "uid-of-node"}}));
    let of_node = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-of-node"}]);
    cluster.put::<Pod>(
        json!({"metadata": {"namespace": "kube-system", "name": "etcd", "ownerReferences": of_node}}),
    );
    cluster.settle();
    assert_eq!(cluster.all::<Pod>().len(), 1);
    cluster.delete(Node::TYPE, &Key::new("", "node-a"), None);
    cluster.settle();
    assert_eq!(cluster.all::<Pod>().len(), 0);
}

#[test]
fn objects_that_own_each_other_are_deleted() {
    let mut cluster = TestCluster::new();
    cluster.put::<ConfigMap>(config_map("a", json!([owner("ConfigMap", "b", "uid-of-b")])));
    cluster.put::<ConfigMap>(config_map("b", json!([owner("ConfigMap", "a", "uid-of-a")])));
    cluster.settle();
    assert_eq!(names(&cluster), ["a", "b"]);
    delete(&mut cluster, "a", Propagation::Foreground);
    assert_eq!(names(&cluster), [""; 0]);
}

#[test]
fn a_deployment_takes_its_replica_sets_and_pods_with_it() {
    let mut cluster = TestCluster::new();
    cluster.put::<Deployment>(deployment("web", 3));
    cluster.settle();
    assert_eq!(cluster.all::<Pod>().len(), 3);
    cluster.delete(Deployment::TYPE, &key("web"), Some(Propagation::Background));
    cluster.settle();
    assert_eq!((cluster.all::<ReplicaSet>().len(), cluster.all::<Pod>().len()), (0, 0));
}

#[test]
fn a_deployment_deleted_without_its_dependents_leaves_them_running() {
    let mut cluster = TestCluster::new();
    cluster.put::<Deployment>(deployment("web", 2));
    cluster.settle();
    cluster.delete(Deployment::TYPE, &key("web"), Some(Propagation::Orphan));
    cluster.settle();
    assert_eq!((cluster.all::<ReplicaSet>().len(), cluster.all::<Pod>().len()), (1, 2));
    // A new Deployment of the same template adopts them.
    let before: Vec<Key> = cluster.all::<Pod>().iter().map(Key::of).collect();
    cluster.put::<Deployment>(deployment("web", 2));
    cluster.settle();
    assert_eq!(cluster.all::<Pod>().iter().map(Key::of).collect::<Vec<_>>(), before);
    cluster.assert_fixed_point();
}

fn remaining(cluster: &TestCluster, resource: ResourceType) -> Vec<Value> {
    let all = cluster.all::<ConfigMap>();
    all.iter().filter_map(|object| cluster.json(resource, &Key::of(object)).cloned()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever is deleted, in whatever way and order, an object is left exactly if it has no owners or one that is left.
    #[test]
    fn no_object_outlives_its_owners(
        references in prop::collection::vec((0usize..8, 0usize..8, any::<bool>()), 0..16),
        deletions in prop::collection::vec((0usize..8, 0u8..3, any::<bool>()), 1..5),
    ) {
        let mut cluster = TestCluster::new();
        let name = |n: usize| format!("o{n}");
        for n in 0..8 {
            // Later objects are owned by earlier ones.
            let of = references.iter().filter(|(owner, dependent, _)| *dependent == n && owner < dependent);
            let owners: Vec<Value> = of.map(|(of, _, blocks)| {
                let mut reference = owner("ConfigMap", &name(*of), &format!("uid-of-{}", name(*of)));
                reference["blockOwnerDeletion"] = (*blocks).into();
                reference
            }).collect();
            cluster.put::<ConfigMap>(config_map(&name(n), json!(owners)));
        }
        for (n, how, settle) in deletions {
            let how = [Propagation::Background, Propagation::Foreground, Propagation::Orphan][usize::from(how)];
            cluster.delete(ConfigMap::TYPE, &key(&name(n)), Some(how));
            if settle {
                cluster.settle();
            } else {
                cluster.restart();
            }
        }
        cluster.settle();
        for object in remaining(&cluster, ConfigMap::TYPE) {
            prop_assert!(object["metadata"]["deletionTimestamp"].is_null(), "{object}");
            let references = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            for reference in references {
                let owner = key(reference["name"].as_str().unwrap_or(""));
                prop_assert!(cluster.json(ConfigMap::TYPE, &owner).is_some(), "{object}");
            }
        }
        cluster.assert_fixed_point();
    }
}
