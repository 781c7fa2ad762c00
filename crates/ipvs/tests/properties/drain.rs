//! Endpoints that are removed while they have connections.

use crate::node::{Mode, mode};
use portway_ipvs::drift::sample;
use portway_model::{Family, Protocol, Target};
use portway_netlink::ipvs::Key;
use portway_testkit::cluster::{TestCluster, service, settings};
use portway_testkit::objects::Endpoint;
use std::collections::BTreeMap;

/// A Service with two endpoints, each with connections.
fn busy(protocol: Protocol) -> (Mode, TestCluster, Key) {
    let mut cluster = TestCluster::new().service(service("web", 1).protocol(protocol));
    set(&mut cluster, protocol, &["a", "b"]);
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    let key = mode.program().kernel().servers.keys().copied().find(|key| key.port == 80).unwrap();
    for real_server in mode.program().kernel().servers.get_mut(&key).unwrap().targets.values_mut() {
        real_server.connections = 3;
    }
    (mode, cluster, key)
}

fn set(cluster: &mut TestCluster, protocol: Protocol, hosts: &[&str]) {
    cluster.apply_slice("web", ("http", protocol, 8080), &Endpoint::all(hosts));
}

fn weights(mode: &mut Mode, key: Key) -> BTreeMap<Target, u32> {
    let server = mode.program().kernel().servers.get(&key);
    server.map(|s| s.targets.iter().map(|(t, b)| (*t, b.weight)).collect()).unwrap_or_default()
}

fn end_connections(mode: &mut Mode, key: Key) {
    mode.program()
        .kernel()
        .servers
        .get_mut(&key)
        .unwrap()
        .targets
        .values_mut()
        .for_each(|b| b.connections = 0);
}

fn sync(mode: &mut Mode, cluster: &mut TestCluster) {
    let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert!(!report.full && report.partial_failures == 0, "{report:?}");
}

#[test]
fn a_removed_endpoint_drains_and_is_deleted_without_connections() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &["b"]);
    sync(&mut mode, &mut cluster);
    assert_eq!(weights(&mut mode, key).into_values().collect::<Vec<_>>(), [0, 1]);
    assert!(!sample(&mut mode), "a draining endpoint is no drift");
    assert_eq!(weights(&mut mode, key).len(), 2, "it still has connections");
    assert!(mode.verify().unwrap().is_empty());
    end_connections(&mut mode, key);
    assert!(!sample(&mut mode));
    assert_eq!(weights(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_draining_endpoint_that_is_added_again_gets_its_weight_back() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &["b"]);
    sync(&mut mode, &mut cluster);
    set(&mut cluster, Protocol::Tcp, &["a", "b"]);
    sync(&mut mode, &mut cluster);
    assert_eq!(weights(&mut mode, key).into_values().collect::<Vec<_>>(), [1, 1]);
    end_connections(&mut mode, key);
    assert!(!sample(&mut mode));
    assert_eq!(weights(&mut mode, key).len(), 2);
}

#[test]
fn the_last_endpoint_drains_and_the_virtual_server_is_deleted_with_it() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &[]);
    sync(&mut mode, &mut cluster);
    assert_eq!(weights(&mut mode, key).into_values().collect::<Vec<_>>(), [0, 0]);
    end_connections(&mut mode, key);
    assert!(!sample(&mut mode));
    assert!(!mode.program().kernel().servers.contains_key(&key), "it has no endpoints");
    assert_eq!(mode.program().kernel().resets, Vec::<String>::new());
    // A new endpoint creates the virtual server again.
    set(&mut cluster, Protocol::Tcp, &["a"]);
    sync(&mut mode, &mut cluster);
    assert_eq!(weights(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn udp_endpoints_are_deleted_at_once() {
    let (mut mode, mut cluster, key) = busy(Protocol::Udp);
    set(&mut cluster, Protocol::Udp, &["b"]);
    sync(&mut mode, &mut cluster);
    assert_eq!(weights(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn draining_continues_after_a_restart() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &["b"]);
    sync(&mut mode, &mut cluster);
    let mut again = self::mode(Family::V4);
    *again.program().kernel() = mode.program().kernel().clone();
    *again.program().rules().program().kernel() = mode.program().rules().program().kernel().clone();
    let sent = again.program().kernel().sent;
    again.sync(&settings(), cluster.all(Family::V4)).unwrap();
    assert_eq!(again.program().kernel().sent, sent, "no object changes");
    assert!(!sample(&mut again));
    assert_eq!(weights(&mut again, key).into_values().collect::<Vec<_>>(), [0, 1]);
    end_connections(&mut again, key);
    assert!(!sample(&mut again));
    assert_eq!(weights(&mut again, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn review_failed_removal_is_not_drift() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &["b"]);
    sync(&mut mode, &mut cluster);
    end_connections(&mut mode, key);
    mode.program().kernel().fail_after(0);
    let first = sample(&mut mode);
    mode.program().kernel().recover();
    let second = sample(&mut mode);
    // What the agent does on DriftSignal::Possible.
    if first || second {
        mode.mark_stale();
    }
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.drift.is_empty(), "first {first} second {second}: {}", report.drift);
}
