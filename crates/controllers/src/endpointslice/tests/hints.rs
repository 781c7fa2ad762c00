//! Hints by traffic distribution and by topology.

use crate::testing::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The zones and nodes in the hints, by address.
fn hints(api: &TestApi) -> BTreeMap<String, (Vec<String>, Vec<String>)> {
    let endpoints = api.slices.values().flat_map(|slice| &slice.endpoints);
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
        let mut api = TestApi::new().with(web).with(pod("web", 1, "node-b"));
        api.write_all("web");
        assert_eq!(hints(&api)["10.244.0.1"], expected, "{distribution:?}");
        // Without it, they are removed.
        api.apply(service("web"));
        api.write_all("web");
        assert_eq!(hints(&api)["10.244.0.1"], (vec![], vec![]));
    }
}

#[test]
fn unready_endpoints_and_those_without_a_zone_have_no_zone_hints() {
    let web = service_with("web", |spec| spec.traffic_distribution = Some("PreferSameNode".to_owned()));
    let mut api = TestApi::new()
        .with(web)
        .with(node("node-c", ""))
        .with(pod_with("web", 1, |pod| {
            pod.status.get_or_insert_default().conditions = vec![ready(false, 0)];
        }))
        .with(pod("web", 2, "node-c"));
    api.write_all("web");
    let found = hints(&api);
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
fn zones(api: &TestApi) -> BTreeMap<String, usize> {
    let mut zones = BTreeMap::new();
    for (for_zones, _) in hints(api).into_values() {
        for zone in for_zones {
            *zones.entry(zone).or_default() += 1;
        }
    }
    zones
}

#[test]
fn topology_gives_each_zone_its_share() {
    // All Pods are in one zone, and the other one has the same number of processors.
    let mut api = TestApi::new().with(with_topology("Auto"));
    for number in 0..10 {
        api.apply(pod("web", number, "node-a"));
    }
    let plans = api.write_all("web");
    assert_eq!(plans[0].notes[0].reason, "TopologyAwareHintsEnabled");
    assert_eq!(zones(&api), [("zone-a".to_owned(), 5), ("zone-b".to_owned(), 5)].into());
    // A third zone appears: the hints change, and only as many as have to.
    let before = hints(&api);
    let touched = api.apply(node("node-c", "zone-c"));
    assert_eq!(touched.len(), 1);
    api.write_all("web");
    let after = hints(&api);
    let counts: Vec<usize> = zones(&api).into_values().collect();
    assert!(counts.iter().all(|count| (3..=4).contains(count)), "{counts:?}");
    let moved = before.iter().filter(|(address, hints)| after[*address] != **hints).count();
    assert!(moved <= 4, "{moved} endpoints were moved");
}

#[test]
fn topology_is_given_up_with_a_reason() {
    let reason =
        |api: &TestApi| api.plan("web").notes.first().map(|note| note.text.clone()).unwrap_or_default();
    let mut api = TestApi::new().with(with_topology("auto")).with(pod("web", 1, "node-a"));
    assert!(reason(&api).contains("1 endpoints, 2 zones"), "{}", reason(&api));
    api.apply(pod("web", 2, "node-b"));
    api.write_all("web");
    assert_eq!(zones(&api).len(), 2);
    api.apply(node("node-b", ""));
    assert!(reason(&api).contains("Insufficient Node information"), "{}", reason(&api));
    api.write_all("web");
    assert_eq!(zones(&api).len(), 0);
    // Another value than Auto means nothing.
    let api = TestApi::new().with(with_topology("Disabled")).with(pod("web", 1, "node-a"));
    assert_eq!(api.plan("web").notes, []);
}

#[test]
fn the_annotation_has_precedence_over_the_field() {
    let mut web = with_topology("Auto");
    web.spec.get_or_insert_default().traffic_distribution = Some("PreferSameNode".to_owned());
    let mut api = TestApi::new().with(web).with(pod("web", 1, "node-a")).with(pod("web", 2, "node-b"));
    api.write_all("web");
    assert!(hints(&api).values().all(|(zones, nodes)| zones.len() == 1 && nodes.is_empty()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever the sizes of zones and wherever the Pods are, hints are given or not, in bounded time, and then stay.
    #[test]
    fn topology_always_comes_to_an_end(
        nodes in prop::collection::vec(1usize..12, 2..5),
        pods in prop::collection::vec(0usize..5, 1..30),
        gone in any::<bool>(),
    ) {
        let mut api = TestApi::new().with(with_topology("Auto"));
        for name in ["node-a", "node-b"] {
            api.event(portway_api::Event::<portway_api::Node>::Delete { namespace: String::new(), name: name.to_owned() });
        }
        for (zone, count) in nodes.iter().enumerate() {
            (0..*count).for_each(|n| _ = api.apply(node(&format!("node-{zone}-{n}"), &format!("zone-{zone}"))));
        }
        for (number, zone) in pods.iter().enumerate() {
            let zone = zone % nodes.len();
            api.apply(pod("web", number as u16, &format!("node-{zone}-0")));
        }
        api.write_all("web");
        let hinted: usize = zones(&api).into_values().sum();
        prop_assert!(hinted == 0 || hinted == pods.len());
        if gone {
            api.delete::<portway_api::Pod>("web-00000");
            api.write_all("web");
        }
    }
}

#[test]
fn topology_ends_where_minimum_and_maximum_leave_no_choice() {
    // Shares of 11.4 to 1.3 to 1.3, and 14 endpoints in the first zone.
    let mut api = TestApi::new().with(with_topology("Auto"));
    for name in ["node-a", "node-b"] {
        api.event(portway_api::Event::<portway_api::Node>::Delete {
            namespace: String::new(),
            name: name.to_owned(),
        });
    }
    for (zone, count) in [("a", 114), ("b", 13), ("c", 13)] {
        (0..count).for_each(|n| _ = api.apply(node(&format!("node-{zone}{n}"), &format!("zone-{zone}"))));
    }
    (0..14).for_each(|number| _ = api.apply(pod("web", number, "node-a0")));
    api.write_all("web");
    assert_eq!(zones(&api).into_values().collect::<Vec<_>>(), [10, 2, 2]);
}
