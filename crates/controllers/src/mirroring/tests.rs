//! Tests of `mirroring`.

mod properties;

use crate::mirroring::reconcile;
use crate::names::{LAST_APPLIED, LEADER, SKIP_MIRROR, SLICE_MANAGED_BY, TRIGGER_TIME};
use crate::testing::*;
use portway_api::{EndpointSubset, Endpoints, Service};

fn without_selector() -> Service {
    service_with("web", |spec| spec.selector.clear())
}

fn mirrored(object: Endpoints) -> TestApi {
    let mut api = TestApi::new().with(without_selector()).with(object);
    api.write_mirrored("web");
    api
}

#[test]
fn each_family_and_set_of_ports_has_a_slice() {
    let mut object = endpoints_object("web", &["192.0.2.1", "fd00::1"], &["192.0.2.2"]);
    let mut other = object.subsets[0].clone();
    other.ports[0].port = 9090;
    other.addresses.truncate(1);
    other.not_ready_addresses.clear();
    object.subsets.push(other);
    let api = mirrored(object);
    let mut found: Vec<_> = api
        .slices
        .values()
        .map(|s| (s.address_type.clone(), s.ports[0].port, s.endpoints.len(), s.endpoints[0].conditions))
        .map(|(family, port, n, conditions)| (family, port, n, conditions.map(|c| (c.ready, c.serving))))
        .collect();
    found.sort();
    let only_ready = Some((Some(true), None));
    assert_eq!(
        found,
        [
            ("IPv4".to_owned(), Some(8080), 2, only_ready),
            ("IPv4".to_owned(), Some(9090), 1, only_ready),
            ("IPv6".to_owned(), Some(8080), 1, only_ready)
        ]
    );
    let addresses = api.addresses("web");
    assert!(addresses.contains(&("192.0.2.2".to_owned(), false)), "{addresses:?}");
}

#[test]
fn a_mirrored_slice_has_labels_annotations_and_owner_of_the_object() {
    let mut object = endpoints_object("web", &["192.0.2.1"], &[]);
    let meta = object.metadata.get_or_insert_default();
    meta.labels.insert("team".to_owned(), "shop".to_owned());
    for annotation in ["note", TRIGGER_TIME, LAST_APPLIED] {
        meta.annotations.insert(annotation.to_owned(), "x".to_owned());
    }
    let mut api = mirrored(object.clone());
    let meta = api.only_slice().metadata.clone().unwrap_or_default();
    assert_eq!(
        meta.labels.get(SLICE_MANAGED_BY).map(String::as_str),
        Some("endpointslicemirroring-controller.k8s.io")
    );
    assert_eq!(meta.labels.get("team").map(String::as_str), Some("shop"));
    assert_eq!(meta.annotations.keys().collect::<Vec<_>>(), ["note"], "no trigger time");
    assert_eq!(
        (meta.owner_references[0].kind.as_str(), meta.owner_references[0].uid.as_str()),
        ("Endpoints", "uid-of-web")
    );
    // They are kept in step.
    object.metadata.get_or_insert_default().labels.clear();
    api.apply(object.clone());
    assert_eq!(api.write_mirrored("web").len(), 1);
    assert_eq!(label(api.only_slice(), "team"), "");
    // An object that was created again has another id.
    object.metadata.get_or_insert_default().uid = "another".to_owned();
    api.apply(object);
    api.write_mirrored("web");
    let owners = api.only_slice().metadata.clone().unwrap_or_default().owner_references;
    assert_eq!(owners.iter().map(|o| o.uid.as_str()).collect::<Vec<_>>(), ["another"]);
}

#[test]
fn what_must_not_be_mirrored_is_not() {
    let labelled = |value: &str| {
        let mut object = endpoints_object("web", &["192.0.2.1"], &[]);
        object.metadata.get_or_insert_default().labels.insert(SKIP_MIRROR.to_owned(), value.to_owned());
        object
    };
    let mut lock = endpoints_object("web", &["192.0.2.1"], &[]);
    lock.metadata.get_or_insert_default().annotations.insert(LEADER.to_owned(), "{}".to_owned());
    for (case, object, expected) in [
        ("skip-mirror", labelled("true"), 0),
        ("skip-mirror: false", labelled("false"), 1),
        ("a lock", lock, 0),
        ("no addresses", endpoints_object("web", &[], &[]), 0),
    ] {
        assert_eq!(mirrored(object).slices.len(), expected, "{case}");
    }
    // Without a Service, with a selector, and for an ExternalName.
    let object = || endpoints_object("web", &["192.0.2.1"], &[]);
    let external = service_with("web", |spec| {
        spec.selector.clear();
        spec.kind = "ExternalName".to_owned();
    });
    for service in [None, Some(service("web")), Some(external)] {
        let mut api = mirrored(object());
        assert_eq!(api.slices.len(), 1);
        match service {
            Some(service) => _ = api.apply(service),
            None => _ = api.delete::<Service>("web"),
        }
        api.write_mirrored("web");
        assert_eq!(api.slices.len(), 0);
    }
}

#[test]
fn slices_are_written_over_and_deleted_as_the_object_changes() {
    let mut api = mirrored(endpoints_object("web", &["192.0.2.1", "192.0.2.2"], &[]));
    let name = api.slices.keys().next().cloned();
    let operations = |plans: Vec<crate::plan::Plan>| -> Vec<_> {
        plans.iter().flat_map(|plan| &plan.writes).map(|r| r.write.operation()).collect()
    };
    let mut other_port = endpoints_object("web", &["192.0.2.1", "192.0.2.2"], &[]);
    other_port.subsets[0].ports[0].port = 9090;
    api.apply(other_port);
    assert_eq!(operations(api.write_mirrored("web")), ["update"], "not a deletion and a creation");
    assert_eq!(api.slices.keys().next().cloned(), name);
    api.apply(endpoints_object("web", &["192.0.2.1"], &["192.0.2.2"]));
    assert_eq!(operations(api.write_mirrored("web")), ["update"]);
    api.apply(endpoints_object("web", &[], &[]));
    assert_eq!(operations(api.write_mirrored("web")), ["delete"]);
    api.delete::<Endpoints>("web");
    assert_eq!(operations(api.write_mirrored("web")), [""; 0]);
}

#[test]
fn addresses_that_cannot_be_mirrored_are_reported() {
    let object = endpoints_object("web", &["192.0.2.1", "not an address", "010.0.0.1"], &[]);
    let api = TestApi::new().with(without_selector()).with(object);
    let plan = reconcile(&api.cluster, &key("web"), 1000);
    assert_eq!(plan.notes.len(), 1);
    assert_eq!(plan.notes[0].reason, "InvalidIPAddress");
    assert_eq!((plan.figures.endpoints, plan.figures.skipped), (2, 1));

    let many: Vec<String> = (0..1200).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut api = TestApi::new().with(without_selector()).with(endpoints_object("web", &many, &[]));
    let plan = reconcile(&api.cluster, &key("web"), 1000);
    assert_eq!(plan.notes[0].reason, "TooManyAddressesToMirror");
    api.write_mirrored("web");
    assert_eq!(api.only_slice().endpoints.len(), 1000);
}

#[test]
fn tampering_is_repaired() {
    let mut api = mirrored(endpoints_object("web", &["192.0.2.1"], &[]));
    let slice = api.slices.keys().next().cloned().expect("a slice");
    api.tamper(&slice, |slice| slice.endpoints[0].hostname = Some("evil".to_owned()));
    assert_eq!(api.write_mirrored("web").len(), 1);
    assert_eq!(api.only_slice().endpoints[0].hostname, None);
}

#[test]
fn an_object_that_is_being_deleted_gets_no_new_slices() {
    let mut object = endpoints_object("web", &["192.0.2.1"], &[]);
    object.metadata.get_or_insert_default().deletion_timestamp = Some(portway_api::Time { seconds: 1 });
    assert_eq!(mirrored(object).slices.len(), 0);
    let subsets: Vec<EndpointSubset> = Vec::new();
    assert_eq!(mirrored(Endpoints { subsets, ..endpoints_object("web", &[], &[]) }).slices.len(), 0);
}

#[test]
fn a_name_that_is_taken_is_not_used_again() {
    let with_port = |objects: &[(&'static str, i32)]| {
        let mut object = endpoints_object("web", &[], &[]);
        object.subsets = objects
            .iter()
            .flat_map(|(ip, port)| {
                let mut subsets = endpoints_object("web", &[ip], &[]).subsets;
                subsets[0].ports[0].port = *port;
                subsets
            })
            .collect();
        object
    };
    let mut api = mirrored(with_port(&[("192.0.2.1", 8080)]));
    // The slice is written over, and has the name that the first ports led to.
    api.apply(with_port(&[("192.0.2.1", 9090)]));
    api.write_mirrored("web");
    api.apply(with_port(&[("192.0.2.1", 9090), ("192.0.2.2", 8080)]));
    api.write_mirrored("web");
    assert_eq!((api.slices.len(), api.addresses("web").len()), (2, 2));
}

#[test]
fn ports_without_names_are_in_slices_of_their_own() {
    let mut object = endpoints_object("web", &["192.0.2.1"], &[]);
    let mut other = object.subsets[0].clone();
    object.subsets[0].ports[0].name.clear();
    (other.ports[0].port, other.ports[0].name) = (443, String::new());
    object.subsets.push(other);
    let api = mirrored(object);
    assert_eq!(api.slices.values().map(|slice| slice.ports.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn an_address_that_is_written_in_two_ways_is_mirrored_once() {
    let mut api = mirrored(endpoints_object("web", &["10.0.0.1"], &["010.0.0.1"]));
    assert_eq!(api.addresses("web").len(), 1);
    // A slice with one address twice, in place of another, is repaired.
    api.apply(endpoints_object("web", &["10.0.0.1", "10.0.0.2"], &[]));
    api.write_mirrored("web");
    let slice = api.slices.keys().next().cloned().expect("a slice");
    api.tamper(&slice, |slice| slice.endpoints[1] = slice.endpoints[0].clone());
    api.write_mirrored("web");
    assert_eq!(api.addresses("web").len(), 2);
}

#[test]
fn addresses_that_were_not_kept_are_read_again() {
    let mut api = TestApi::new().with(service("web")).with(pod("web", 1, "node-a"));
    api.write_endpoints("web");
    api.apply(without_selector());
    let plan = reconcile(&api.cluster, &key("web"), 1000);
    assert!(plan.reads.len() == 1 && plan.writes.is_empty());
    let object = api.only_endpoints().clone();
    let mut touched = Vec::new();
    api.cluster.endpoints_written(object, &mut touched);
    assert_eq!(touched.len(), 1);
    api.write_mirrored("web");
    assert_eq!(api.addresses("web").len(), 1);
}
