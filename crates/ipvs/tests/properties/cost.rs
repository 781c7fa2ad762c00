//! The cost of a change is that of the change.

use crate::node::mode;
use portway_dataplane::Dataplane;
use portway_dataplane::world::{World, endpoint, settings};
use portway_model::Family;
use serde_json::{Value, json};

fn endpoints(places: &[&str]) -> Vec<Value> {
    places.iter().map(|place| endpoint(place)).collect()
}

/// How many messages some changes take in a cluster with so many other Services.
fn costs(others: u8, family: Family) -> Vec<usize> {
    let port = || json!({"name": "http", "port": 8080});
    let spec = || json!({"ports": [{"name": "http", "port": 80}]});
    let mut world = World::new().service("web", 1, spec(), json!({})).slice("web", &endpoints(&["a", "c"]));
    for n in 2..2 + others {
        let name = format!("other{n}");
        world.apply_service(&name, n, json!({}), json!({}));
        world.apply_slice(&name, port(), &endpoints(if n % 5 == 0 { &[] } else { &["b", "d"] }));
    }
    let mut mode = mode(family);
    mode.sync(&settings(), world.all(family)).unwrap();
    let mut messages = |world: &mut World| {
        let before = mode.kernel().sent;
        assert!(!mode.sync(&settings(), world.changes(family)).unwrap().full);
        mode.kernel().sent - before
    };
    let mut all = Vec::new();
    for places in [&["a", "c", "d"][..], &["a", "d"], &["b", "d"], &[], &["a"]] {
        world.apply_slice("web", port(), &endpoints(places));
        all.push(messages(&mut world));
    }
    world.delete("web");
    all.push(messages(&mut world));
    world.apply_service("web", 1, spec(), json!({}));
    all.push(messages(&mut world));
    all
}

#[test]
fn other_services_do_not_make_a_change_dearer() {
    for family in Family::ALL {
        let alone = costs(0, family);
        // It may be cheaper: what another Service has in a set already need not be put there.
        assert!(costs(200, family).iter().zip(&alone).all(|(among, alone)| among <= alone));
        assert!(alone[..3].iter().all(|n| *n <= 5), "one endpoint came, went, or was replaced: {alone:?}");
        assert!(alone.iter().all(|n| *n <= 10), "{alone:?}");
    }
}
