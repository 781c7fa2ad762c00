//! Slices over the life of a Service: labels, owners, tampering, selectors, deletion.

use crate::cluster::Cause;
use crate::cluster::slice::Maintainer;
use crate::endpointslice::{Context, reconcile};
use crate::names::{SLICE_MANAGED_BY, TRIGGER_TIME};
use crate::testing::*;
use portway_api::{Service, Time};

fn served() -> TestApi {
    let mut api = TestApi::new().with(service("web")).with(pod("web", 1, "node-a"));
    api.write_all("web");
    api
}

fn slice_key(api: &TestApi) -> crate::key::Key {
    api.slices.keys().next().cloned().expect("a slice")
}

#[test]
fn labels_of_the_service_are_kept_in_step() {
    let mut api = served();
    let mut web = service("web");
    web.metadata.get_or_insert_default().labels = [("team".to_owned(), "shop".to_owned())].into();
    api.apply(web);
    let plans = api.write_all("web");
    assert_eq!(plans[0].writes[0].reason, "labels or owner changed");
    assert_eq!(label(api.only_slice(), "team"), "shop");
    api.apply(service("web"));
    api.write_all("web");
    assert_eq!(label(api.only_slice(), "team"), "");
}

#[test]
fn content_and_labels_that_others_change_are_repaired_and_the_rest_is_kept() {
    let mut api = served();
    let slice = slice_key(&api);
    let touched = api.tamper(&slice, |slice| {
        slice.endpoints[0].addresses = vec!["192.0.2.1".to_owned()];
        slice.endpoints[0].zone = Some("nowhere".to_owned());
        let meta = slice.metadata.get_or_insert_default();
        meta.labels.insert("extra".to_owned(), String::new());
        meta.annotations.insert("note".to_owned(), "mine".to_owned());
        meta.finalizers.push("example.com/wait".to_owned());
    });
    assert!(touched.iter().all(|t| t.by == Cause::Slice(Maintainer::Slices) && t.key == key("web")));
    assert!(!touched.is_empty());
    api.write_all("web");
    assert_eq!(api.addresses("web"), [("10.244.0.1".to_owned(), true)]);
    let repaired = api.only_slice();
    let meta = repaired.metadata.clone().unwrap_or_default();
    assert_eq!(label(repaired, "extra"), "");
    assert!(!meta.labels.contains_key("extra"));
    assert_eq!(meta.annotations.get("note").map(String::as_str), Some("mine"));
    assert_eq!(meta.finalizers, ["example.com/wait"]);
}

#[test]
fn changes_of_annotations_owners_and_finalizers_alone_are_left_alone() {
    let mut api = served();
    let slice = slice_key(&api);
    api.tamper(&slice, |slice| {
        let meta = slice.metadata.get_or_insert_default();
        meta.annotations.insert("note".to_owned(), "mine".to_owned());
        meta.finalizers.push("example.com/wait".to_owned());
        meta.owner_references.push(portway_api::OwnerReference {
            kind: "Thing".to_owned(),
            uid: "thing".to_owned(),
            ..Default::default()
        });
    });
    assert_eq!(api.plan("web").writes, []);
}

#[test]
fn the_version_of_a_pod_in_a_slice_of_another_release_is_no_reason_to_write() {
    let mut api = served();
    let slice = slice_key(&api);
    api.tamper(&slice, |slice| {
        slice.endpoints[0].target_ref.get_or_insert_default().resource_version = "17".to_owned();
    });
    assert_eq!(api.plan("web").writes, []);
}

#[test]
fn a_slice_without_an_owner_is_adopted_and_one_of_an_earlier_service_deleted() {
    let mut api = served();
    let slice = slice_key(&api);
    api.tamper(&slice, |slice| slice.metadata.get_or_insert_default().owner_references.clear());
    api.write_all("web");
    assert_eq!(api.only_slice().metadata.clone().unwrap_or_default().owner_references[0].uid, "uid-of-web");
    api.tamper(&slice, |slice| {
        slice.metadata.get_or_insert_default().owner_references[0].uid = "earlier".to_owned();
    });
    let plans = api.write_all("web");
    let operations: Vec<_> = plans[0].writes.iter().map(|r| r.write.operation()).collect();
    assert_eq!(operations, ["create", "delete"], "the new slice is there before the old one goes");
    assert_ne!(slice_key(&api), slice);
}

#[test]
fn a_slice_that_is_given_to_another_manager_is_replaced_by_a_new_one() {
    let mut api = served();
    let slice = slice_key(&api);
    let touched = api.tamper(&slice, |slice| {
        let labels = &mut slice.metadata.get_or_insert_default().labels;
        labels.insert(SLICE_MANAGED_BY.to_owned(), "someone-else".to_owned());
    });
    assert_eq!(touched.len(), 1);
    // The first name is taken: the answer to the first attempt says so.
    let plan = api.plan("web");
    assert_eq!(plan.writes[0].write.key(), slice, "names are computed");
    assert_eq!(api.write(&plan.writes[0].write), Err(Conflict));
    let taken = api.slices[&slice].clone();
    api.cluster.slice_written(taken, &mut Vec::new());
    api.write_all("web");
    assert_eq!(api.slices.len(), 2);
    assert_eq!(label(&api.slices[&slice], SLICE_MANAGED_BY), "someone-else", "it is left alone");
    assert_eq!(api.addresses("web").len(), 2);
    assert_eq!(api.plan("web").writes, []);
}

#[test]
fn slices_of_other_managers_are_never_touched() {
    let mut api = TestApi::new().with(service_with("web", |spec| spec.selector.clear()));
    let foreign = portway_api::complete::EndpointSlice {
        metadata: Some(portway_api::ObjectMeta {
            name: "web-mine".to_owned(),
            namespace: NAMESPACE.to_owned(),
            labels: [
                ("kubernetes.io/service-name".to_owned(), "web".to_owned()),
                (SLICE_MANAGED_BY.to_owned(), "me".to_owned()),
            ]
            .into(),
            ..Default::default()
        }),
        address_type: "IPv4".to_owned(),
        ..Default::default()
    };
    assert_eq!(api.apply(foreign), []);
    assert_eq!(api.plan("web").writes, []);
    api.apply(service("web"));
    let plan = api.plan("web");
    assert_eq!(plan.writes.len(), 1);
    assert_ne!(plan.writes[0].write.key().name(), "web-mine");
}

#[test]
fn a_pod_leaves_when_it_is_deleted_or_its_labels_change_and_comes_back() {
    let mut api = served();
    api.apply(pod_with("web", 1, |pod| {
        pod.metadata.get_or_insert_default().labels.insert("app".to_owned(), "other".to_owned());
    }));
    api.write_all("web");
    assert_eq!(api.addresses("web"), []);
    api.apply(pod("web", 1, "node-a"));
    api.write_all("web");
    assert_eq!(api.addresses("web").len(), 1);
    api.delete::<portway_api::Pod>("web-00001");
    api.write_all("web");
    assert_eq!(api.addresses("web"), []);
}

#[test]
fn a_pod_of_the_same_name_is_another_endpoint() {
    let mut api = served();
    api.apply(pod_with("web", 1, |pod| {
        pod.metadata.get_or_insert_default().uid = "another".to_owned();
    }));
    api.write_all("web");
    let target = api.only_slice().endpoints[0].target_ref.clone().unwrap_or_default();
    assert_eq!(target.uid, "another");
}

#[test]
fn nothing_is_written_for_a_deleted_service_and_nothing_created_for_one_that_is_being_deleted() {
    let mut api = served();
    let mut web = service("web");
    web.metadata.get_or_insert_default().deletion_timestamp = Some(Time { seconds: 5000 });
    api.apply(web.clone());
    for number in 2..200 {
        api.apply(pod("web", number, "node-a"));
    }
    let operations: Vec<_> = api.plan("web").writes.iter().map(|r| r.write.operation()).collect();
    assert_eq!(operations, ["update"]);
    api.delete::<Service>("web");
    assert_eq!(api.plan("web").writes, [], "the garbage collection deletes them");
}

#[test]
fn a_service_that_becomes_an_external_name_loses_its_slices() {
    let mut api = served();
    api.write_endpoints("web");
    api.apply(service_with("web", |spec| spec.kind = "ExternalName".to_owned()));
    api.write_all("web");
    api.write_endpoints("web");
    assert!(api.slices.is_empty() && api.endpoints.is_empty());
    api.apply(service("web"));
    api.write_all("web");
    assert_eq!(api.addresses("web").len(), 1);
}

#[test]
fn a_selector_that_is_removed_leaves_one_copy_of_the_endpoints_at_any_time() {
    let mut api = served();
    api.write_endpoints("web");
    api.apply(service_with("web", |spec| spec.selector.clear()));
    assert_eq!(api.plan("web").writes, [], "the mirrored copy is not there yet");
    let object = api.only_endpoints().clone();
    api.cluster.endpoints_written(object, &mut Vec::new());
    assert_eq!(api.plan("web").writes, [], "nor is it now");
    api.write_mirrored("web");
    assert_eq!(api.addresses("web").len(), 2);
    api.write_all("web");
    assert_eq!(api.addresses("web"), [("10.244.0.1".to_owned(), true)]);
    assert_eq!(label(api.only_slice(), SLICE_MANAGED_BY), "endpointslicemirroring-controller.k8s.io");
    // And back.
    api.apply(service("web"));
    api.write_all("web");
    api.write_mirrored("web");
    assert_eq!(label(api.only_slice(), SLICE_MANAGED_BY), "endpointslice-controller.k8s.io");
}

#[test]
fn the_trigger_time_is_written_or_removed() {
    let mut api = served();
    for (trigger, expected) in [(Some(1_700_000_000), Some("2023-11-14T22:13:20Z")), (None, None)] {
        let context = Context { max_endpoints: 100, max_mirrored: 1000, trigger };
        api.apply(pod("web", if trigger.is_some() { 2 } else { 3 }, "node-a"));
        api.write_until_done_with(move |cluster, key| reconcile(cluster, key, context), "web");
        let annotations = api.only_slice().metadata.clone().unwrap_or_default().annotations;
        assert_eq!(annotations.get(TRIGGER_TIME).map(String::as_str), expected);
    }
}

#[test]
fn a_slice_that_was_given_to_another_controller_is_replaced() {
    let mut api = served();
    let slice = slice_key(&api);
    api.tamper(&slice, |slice| {
        slice.metadata.get_or_insert_default().owner_references = vec![portway_api::OwnerReference {
            kind: "Thing".to_owned(),
            uid: "thing".to_owned(),
            controller: Some(true),
            ..Default::default()
        }];
    });
    // An object may have one controller: adding the Service would be refused.
    let operations: Vec<_> = api.plan("web").writes.iter().map(|r| r.write.operation()).collect();
    assert_eq!(operations, ["create", "delete"]);
}
