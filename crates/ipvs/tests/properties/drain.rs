//! Endpoints that leave while they have connections.

use crate::node::{Mode, mode};
use portway_dataplane::Dataplane;
use portway_dataplane::world::{World, endpoint, settings};
use portway_model::{Family, Target};
use portway_netlink::ipvs::Key;
use serde_json::json;
use std::collections::BTreeMap;

fn port() -> serde_json::Value {
    json!({"name": "http", "port": 8080})
}

/// A Service with two endpoints, each with connections.
fn busy(protocol: &str) -> (Mode, World, Key) {
    let spec = json!({"ports": [{"name": "http", "port": 80, "protocol": protocol}]});
    let mut world = World::new().service("web", 1, spec, json!({}));
    set(&mut world, protocol, &["a", "b"]);
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), world.all(Family::V4)).unwrap();
    let key = mode.kernel().servers.keys().copied().find(|key| key.port == 80).unwrap();
    for behind in mode.kernel().servers.get_mut(&key).unwrap().targets.values_mut() {
        behind.connections = 3;
    }
    (mode, world, key)
}

fn set(world: &mut World, protocol: &str, places: &[&str]) {
    let places: Vec<_> = places.iter().map(|place| endpoint(place)).collect();
    let mut port = port();
    port["protocol"] = json!(protocol);
    world.apply_slice("web", port, &places);
}

fn shares(mode: &mut Mode, key: Key) -> BTreeMap<Target, u32> {
    let server = mode.kernel().servers.get(&key);
    server.map(|s| s.targets.iter().map(|(t, b)| (*t, b.share)).collect()).unwrap_or_default()
}

fn end_connections(mode: &mut Mode, key: Key) {
    mode.kernel().servers.get_mut(&key).unwrap().targets.values_mut().for_each(|b| b.connections = 0);
}

fn sync(mode: &mut Mode, world: &mut World) {
    let report = mode.sync(&settings(), world.changes(Family::V4)).unwrap();
    assert!(!report.full && report.partial_failures == 0, "{report:?}");
}

#[test]
fn one_that_leaves_gets_nothing_new_and_goes_when_it_has_nothing_left() {
    let (mut mode, mut world, key) = busy("TCP");
    set(&mut world, "TCP", &["b"]);
    sync(&mut mode, &mut world);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [0, 1]);
    assert!(!mode.looks_different(), "it is known to drain");
    assert_eq!(shares(&mut mode, key).len(), 2, "and still has connections");
    assert!(mode.verify().unwrap().is_empty());
    end_connections(&mut mode, key);
    assert!(!mode.looks_different());
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn one_that_comes_back_gets_its_share_back() {
    let (mut mode, mut world, key) = busy("TCP");
    set(&mut world, "TCP", &["b"]);
    sync(&mut mode, &mut world);
    set(&mut world, "TCP", &["a", "b"]);
    sync(&mut mode, &mut world);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [1, 1]);
    end_connections(&mut mode, key);
    assert!(!mode.looks_different());
    assert_eq!(shares(&mut mode, key).len(), 2);
}

#[test]
fn the_last_one_may_finish_too_and_the_server_goes_with_it() {
    let (mut mode, mut world, key) = busy("TCP");
    set(&mut world, "TCP", &[]);
    sync(&mut mode, &mut world);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [0, 0]);
    end_connections(&mut mode, key);
    assert!(!mode.looks_different());
    assert!(!mode.kernel().servers.contains_key(&key), "nobody is behind it");
    assert_eq!(mode.kernel().resets, Vec::<String>::new());
    // And it comes back as one that was never there.
    set(&mut world, "TCP", &["a"]);
    sync(&mut mode, &mut world);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn udp_goes_at_once() {
    let (mut mode, mut world, key) = busy("UDP");
    set(&mut world, "UDP", &["b"]);
    sync(&mut mode, &mut world);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_restart_goes_on_waiting() {
    let (mut mode, mut world, key) = busy("TCP");
    set(&mut world, "TCP", &["b"]);
    sync(&mut mode, &mut world);
    let mut again = self::mode(Family::V4);
    *again.kernel() = mode.kernel().clone();
    *again.rules().kernel() = mode.rules().kernel().clone();
    let sent = again.kernel().sent;
    again.sync(&settings(), world.all(Family::V4)).unwrap();
    assert_eq!(again.kernel().sent, sent, "all is as it should be");
    assert!(!again.looks_different());
    assert_eq!(shares(&mut again, key).into_values().collect::<Vec<_>>(), [0, 1]);
    end_connections(&mut again, key);
    assert!(!again.looks_different());
    assert_eq!(shares(&mut again, key).into_values().collect::<Vec<_>>(), [1]);
}
