//! Hints by traffic distribution and by topology.

use crate::testing::*;
use std::collections::BTreeMap;

/// The zones and nodes in the hints, by address.
fn hints(world: &World) -> BTreeMap<String, (Vec<String>, Vec<String>)> {
    let endpoints = world.slices.values().flat_map(|slice| &slice.endpoints);
    let names = |list: &[portway_api::Named]| list.iter().map(|n| n.name.clone()).collect::<Vec<_>>();
    let hints = |e: &portway_api::complete::Endpoint| {
        let hints = e.hints.clone().unwrap_or_default();
        (e.addresses[0].clone(), (names(&hints.for_zones), names(&hints.for_nodes)))
    };
    endpoints.map(hints).collect()
}

#[test]
fn traffic_distribution_decides_about_hints() {
    let zone = || vec!["zone-b".to_owned()];
    let node = || vec!["node-b".to_owned()];
    for (distribution, expected) in [
        (None, (vec![], vec![])),
        (Some("PreferClose"), (zone(), vec![])),
        (Some("PreferSameZone"), (zone(), vec![])),
        (Some("PreferSameNode"), (zone(), node())),
        (Some("PreferTheMoon"), (vec![], vec![])),
    ] {
        let web = service_with("web", |spec| spec.traffic_distribution = distribution.map(str::to_owned));
        let mut world = World::new().with(web).with(pod("web", 1, "node-b"));
        world.settle("web");
        assert_eq!(hints(&world)["10.244.0.1"], expected, "{distribution:?}");
        // Without it, they are removed.
        world.apply(service("web"));
        world.settle("web");
        assert_eq!(hints(&world)["10.244.0.1"], (vec![], vec![]));
    }
}

#[test]
fn unready_endpoints_and_those_without_a_zone_have_no_zone_hints() {
    let web = service_with("web", |spec| spec.traffic_distribution = Some("PreferSameNode".to_owned()));
    let mut world = World::new()
        .with(web)
        .with(node("node-c", ""))
        .with(pod_with("web", 1, |pod| {
            pod.status.get_or_insert_default().conditions = vec![ready(false, 0)];
        }))
        .with(pod("web", 2, "node-c"));
    world.settle("web");
    let found = hints(&world);
    assert_eq!(found["10.244.0.1"], (vec![], vec![]));
    assert_eq!(found["10.244.0.2"], (vec![], vec!["node-c".to_owned()]));
}

fn with_topology(mode: &str) -> portway_api::Service {
    let mut web = service("web");
    let annotation = ("service.kubernetes.io/topology-mode".to_owned(), mode.to_owned());
    web.metadata.get_or_insert_default().annotations = [annotation].into();
    web
}

/// The number of endpoints for each zone.
fn zones(world: &World) -> BTreeMap<String, usize> {
    let mut zones = BTreeMap::new();
    for (for_zones, _) in hints(world).into_values() {
        for zone in for_zones {
            *zones.entry(zone).or_default() += 1;
        }
    }
    zones
}

#[test]
fn topology_gives_each_zone_its_share() {
    // All Pods are in one zone, and the other one has the same number of processors.
    let mut world = World::new().with(with_topology("Auto"));
    for number in 0..10 {
        world.apply(pod("web", number, "node-a"));
    }
    let plans = world.settle("web");
    assert_eq!(plans[0].notes[0].reason, "TopologyAwareHintsEnabled");
    assert_eq!(zones(&world), [("zone-a".to_owned(), 5), ("zone-b".to_owned(), 5)].into());
    // A third zone appears: the hints change, and only as many as have to.
    let before = hints(&world);
    let touched = world.apply(node("node-c", "zone-c"));
    assert_eq!(touched.len(), 1);
    world.settle("web");
    let after = hints(&world);
    let counts: Vec<usize> = zones(&world).into_values().collect();
    assert!(counts.iter().all(|count| (3..=4).contains(count)), "{counts:?}");
    let moved = before.iter().filter(|(address, hints)| after[*address] != **hints).count();
    assert!(moved <= 4, "{moved} endpoints were moved");
}

#[test]
fn topology_is_given_up_with_a_reason() {
    let reason =
        |world: &World| world.plan("web").notes.first().map(|note| note.text.clone()).unwrap_or_default();
    let mut world = World::new().with(with_topology("auto")).with(pod("web", 1, "node-a"));
    assert!(reason(&world).contains("1 endpoints, 2 zones"), "{}", reason(&world));
    world.apply(pod("web", 2, "node-b"));
    world.settle("web");
    assert_eq!(zones(&world).len(), 2);
    world.apply(node("node-b", ""));
    assert!(reason(&world).contains("Insufficient Node information"), "{}", reason(&world));
    world.settle("web");
    assert_eq!(zones(&world).len(), 0);
    // Another value than Auto means nothing.
    let world = World::new().with(with_topology("Disabled")).with(pod("web", 1, "node-a"));
    assert_eq!(world.plan("web").notes, []);
}

#[test]
fn the_annotation_has_precedence_over_the_field() {
    let mut web = with_topology("Auto");
    web.spec.get_or_insert_default().traffic_distribution = Some("PreferSameNode".to_owned());
    let mut world = World::new().with(web).with(pod("web", 1, "node-a")).with(pod("web", 2, "node-b"));
    world.settle("web");
    assert!(hints(&world).values().all(|(zones, nodes)| zones.len() == 1 && nodes.is_empty()));
}
