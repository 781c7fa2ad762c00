//! Tests of `cluster`: which Services an event touches, and events that come late.

use super::*;
use crate::testing::*;
use portway_api::complete::EndpointSlice;

fn keys(touched: &[Touched]) -> Vec<&str> {
    touched.iter().map(|touched| touched.key.name()).collect()
}

#[test]
fn a_pod_touches_the_services_that_select_it_or_did() {
    let mut api = TestApi::new()
        .with(service("web"))
        .with(service("other"))
        .with(service_with("all", |spec| spec.selector = [("tier".to_owned(), "web".to_owned())].into()))
        .with(service_with("both", |spec| {
            spec.selector.insert("app".to_owned(), "web".to_owned());
            spec.selector.insert("tier".to_owned(), "web".to_owned());
        }))
        .with(service_with("none", |spec| spec.selector.clear()));
    let mut touched = api.apply(pod("web", 1, "node-a"));
    touched.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(keys(&touched), ["all", "both", "web"]);
    assert_eq!(api.apply(pod("web", 1, "node-a")), [], "another version of the same");
    // Only the labels change: the Services that select it before and after are not touched.
    let relabelled = pod_with("web", 1, |pod| {
        pod.metadata.get_or_insert_default().labels.insert("app".to_owned(), "other".to_owned());
    });
    let mut touched = api.apply(relabelled);
    touched.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(keys(&touched), ["both", "other", "web"]);
    let mut touched = api.delete::<Pod>("web-00001");
    touched.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(keys(&touched), ["all", "other"]);
}

#[test]
fn services_of_other_namespaces_do_not_select_a_pod() {
    let mut elsewhere = service("web");
    elsewhere.metadata.get_or_insert_default().namespace = "elsewhere".to_owned();
    let mut api = TestApi::new().with(elsewhere);
    assert_eq!(api.apply(pod("web", 1, "node-a")), []);
}

#[test]
fn a_change_of_readiness_has_its_time() {
    let mut api = TestApi::new().with(service("web"));
    let by = |touched: Vec<Touched>| touched.first().map(|touched| touched.by);
    let unready = |since| {
        pod_with("web", 1, |pod| pod.status.get_or_insert_default().conditions = vec![ready(false, since)])
    };
    assert_eq!(by(api.apply(pod("web", 1, "node-a"))), Some(Cause::Pod { ready_changed: Some(2000) }));
    assert_eq!(by(api.apply(unready(2500))), Some(Cause::Pod { ready_changed: Some(2500) }));
    let mut moved = unready(2500);
    moved.status.get_or_insert_default().pod_ips[0].ip = "10.244.9.9".to_owned();
    assert_eq!(by(api.apply(moved)), Some(Cause::Pod { ready_changed: None }));
    assert_eq!(by(api.delete::<Pod>("web-00001")), Some(Cause::Pod { ready_changed: None }));
}

#[test]
fn an_event_of_an_older_version_is_ignored() {
    let mut api = TestApi::new().with(service("web")).with(pod("web", 1, "node-a"));
    api.write_all("web");
    let first = api.only_slice().clone();
    api.apply(pod("web", 2, "node-a"));
    api.write_all("web");
    // The event of the first version arrives after the answer to the second write.
    assert_eq!(api.event(Event::Apply(first.clone())), []);
    assert_eq!(api.plan("web").writes, [], "the second endpoint is not written again");
    // So does that of a slice which has been deleted since.
    let key = Key::of(&first);
    api.cluster.slice_deleted(&key);
    let latest = api.only_slice().clone();
    assert_eq!(api.event(Event::Apply(latest)), []);
    assert!(api.cluster.slices_of(&crate::testing::key("web"), Maintainer::Slices).is_empty());
    assert!(api.cluster.has_slice(&key), "its name is not used yet");
    api.delete::<EndpointSlice>(key.name());
    assert!(!api.cluster.has_slice(&key));
}

#[test]
fn the_answer_to_a_write_is_no_change_when_its_event_arrives() {
    let mut api = TestApi::new().with(service("web")).with(pod("web", 1, "node-a"));
    api.write_all("web");
    api.write_endpoints("web");
    let (slice, endpoints) = (api.only_slice().clone(), api.only_endpoints().clone());
    assert_eq!(api.event(Event::Apply(slice)), []);
    assert_eq!(api.event(Event::Apply(endpoints)), []);
}

#[test]
fn a_relist_finds_what_was_deleted() {
    let mut api =
        TestApi::new().with(service("web")).with(pod("web", 1, "node-a")).with(pod("web", 2, "node-a"));
    api.event(Event::<Pod>::Init);
    assert_eq!(api.apply(pod("web", 2, "node-a")), []);
    assert_eq!(keys(&api.event(Event::<Pod>::InitDone)), ["web"]);
    api.write_all("web");
    assert_eq!(api.addresses("web").len(), 1);
}

#[test]
fn a_node_that_is_deleted_touches_nothing() {
    let mut api = TestApi::new().with(service("web")).with(pod("web", 1, "node-a"));
    let gone = api.event(Event::<Node>::Delete { namespace: String::new(), name: "node-a".to_owned() });
    assert_eq!(gone, [], "its kubelet may register it again");
    assert_eq!(keys(&api.apply(node("node-a", "zone-z"))), ["web"]);
}

#[test]
fn a_late_answer_brings_nothing_back() {
    let mut api = TestApi::new().with(service("web")).with(pod("web", 1, "node-a"));
    api.write_all("web");
    let (first, key) = (api.only_slice().clone(), Key::of(api.only_slice()));
    // Another process changes the slice, and the answer to the first write arrives after that.
    api.tamper(&key, |slice| slice.endpoints.clear());
    api.cluster.slice_written(first.clone(), &mut Vec::new());
    assert_eq!(api.plan("web").writes.len(), 1, "the change is seen");
    api.delete::<EndpointSlice>(key.name());
    assert!(api.cluster.slices_of(&crate::testing::key("web"), Maintainer::Slices).is_empty());
    let mut touched = Vec::new();
    api.cluster.slice_written(first, &mut touched);
    assert_eq!(keys(&touched), ["web"], "other controllers learn of a write by its answer");
}

#[test]
fn the_last_version_of_an_object_that_cannot_be_decoded_stays_over_a_relist() {
    let mut api = TestApi::new().with(service("web")).with(pod("web", 1, "node-a"));
    api.event(Event::<Pod>::Init);
    api.cluster.keep(Pod::TYPE, &Key::new(NAMESPACE, "web-00001"));
    assert_eq!(api.event(Event::<Pod>::InitDone), []);
    api.write_all("web");
    assert_eq!(api.addresses("web").len(), 1);
}
