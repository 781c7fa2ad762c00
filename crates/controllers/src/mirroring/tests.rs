//! Tests of `mirroring`.

use crate::mirroring::reconcile;
use crate::names::{LAST_APPLIED, LEADER, SKIP_MIRROR, SLICE_MANAGED_BY, TRIGGER_TIME};
use crate::testing::*;
use portway_api::{EndpointSubset, Endpoints, Service};

fn without_selector() -> Service {
    service_with("web", |spec| spec.selector.clear())
}

fn mirrored(object: Endpoints) -> World {
    let mut world = World::new().with(without_selector()).with(object);
    world.settle_mirroring("web");
    world
}

#[test]
fn each_family_and_set_of_ports_has_a_slice() {
    let mut object = endpoints_object("web", &["192.0.2.1", "fd00::1"], &["192.0.2.2"]);
    let mut other = object.subsets[0].clone();
    other.ports[0].port = 9090;
    other.addresses.truncate(1);
    other.not_ready_addresses.clear();
    object.subsets.push(other);
    let world = mirrored(object);
    let mut found: Vec<_> = world
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
    let addresses = world.addresses("web");
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
    let mut world = mirrored(object.clone());
    let meta = world.only_slice().metadata.clone().unwrap_or_default();
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
    world.apply(object.clone());
    assert_eq!(world.settle_mirroring("web").len(), 1);
    assert_eq!(label(world.only_slice(), "team"), "");
    // An object that was created again has another id.
    object.metadata.get_or_insert_default().uid = "another".to_owned();
    world.apply(object);
    world.settle_mirroring("web");
    let owners = world.only_slice().metadata.clone().unwrap_or_default().owner_references;
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
        let mut world = mirrored(object());
        assert_eq!(world.slices.len(), 1);
        match service {
            Some(service) => _ = world.apply(service),
            None => _ = world.delete::<Service>("web"),
        }
        world.settle_mirroring("web");
        assert_eq!(world.slices.len(), 0);
    }
}

#[test]
fn slices_are_written_over_and_deleted_as_the_object_changes() {
    let mut world = mirrored(endpoints_object("web", &["192.0.2.1", "192.0.2.2"], &[]));
    let name = world.slices.keys().next().cloned();
    let operations = |plans: Vec<crate::plan::Plan>| -> Vec<_> {
        plans.iter().flat_map(|plan| &plan.writes).map(|r| r.write.operation()).collect()
    };
    let mut other_port = endpoints_object("web", &["192.0.2.1", "192.0.2.2"], &[]);
    other_port.subsets[0].ports[0].port = 9090;
    world.apply(other_port);
    assert_eq!(operations(world.settle_mirroring("web")), ["update"], "not a deletion and a creation");
    assert_eq!(world.slices.keys().next().cloned(), name);
    world.apply(endpoints_object("web", &["192.0.2.1"], &["192.0.2.2"]));
    assert_eq!(operations(world.settle_mirroring("web")), ["update"]);
    world.apply(endpoints_object("web", &[], &[]));
    assert_eq!(operations(world.settle_mirroring("web")), ["delete"]);
    world.delete::<Endpoints>("web");
    assert_eq!(operations(world.settle_mirroring("web")), [""; 0]);
}

#[test]
fn addresses_that_cannot_be_mirrored_are_reported() {
    let object = endpoints_object("web", &["192.0.2.1", "not an address", "010.0.0.1"], &[]);
    let world = World::new().with(without_selector()).with(object);
    let plan = reconcile(&world.cluster, &key("web"), 1000);
    assert_eq!(plan.notes.len(), 1);
    assert_eq!(plan.notes[0].reason, "InvalidIPAddress");
    assert_eq!((plan.figures.endpoints, plan.figures.skipped), (2, 1));

    let many: Vec<String> = (0..1200).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut world = World::new().with(without_selector()).with(endpoints_object("web", &many, &[]));
    let plan = reconcile(&world.cluster, &key("web"), 1000);
    assert_eq!(plan.notes[0].reason, "TooManyAddressesToMirror");
    world.settle_mirroring("web");
    assert_eq!(world.only_slice().endpoints.len(), 1000);
}

#[test]
fn tampering_is_repaired() {
    let mut world = mirrored(endpoints_object("web", &["192.0.2.1"], &[]));
    let slice = world.slices.keys().next().cloned().expect("a slice");
    world.tamper(&slice, |slice| slice.endpoints[0].hostname = Some("evil".to_owned()));
    assert_eq!(world.settle_mirroring("web").len(), 1);
    assert_eq!(world.only_slice().endpoints[0].hostname, None);
}

#[test]
fn an_object_that_is_being_deleted_gets_no_new_slices() {
    let mut object = endpoints_object("web", &["192.0.2.1"], &[]);
    object.metadata.get_or_insert_default().deletion_timestamp = Some(portway_api::Time { seconds: 1 });
    assert_eq!(mirrored(object).slices.len(), 0);
    let subsets: Vec<EndpointSubset> = Vec::new();
    assert_eq!(mirrored(Endpoints { subsets, ..endpoints_object("web", &[], &[]) }).slices.len(), 0);
}
