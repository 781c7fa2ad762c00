//! Endpoints that leave while they have connections.

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
    for behind in mode.program().kernel().servers.get_mut(&key).unwrap().targets.values_mut() {
        behind.connections = 3;
    }
    (mode, cluster, key)
}

fn set(cluster: &mut TestCluster, protocol: Protocol, hosts: &[&str]) {
    cluster.apply_slice("web", ("http", protocol, 8080), &Endpoint::all(hosts));
}

fn shares(mode: &mut Mode, key: Key) -> BTreeMap<Target, u32> {
    let server = mode.program().kernel().servers.get(&key);
    server.map(|s| s.targets.iter().map(|(t, b)| (*t, b.share)).collect()).unwrap_or_default()
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
fn one_that_leaves_gets_nothing_new_and_goes_when_it_has_nothing_left() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &["b"]);
    sync(&mut mode, &mut cluster);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [0, 1]);
    assert!(!sample(&mut mode), "it is known to drain");
    assert_eq!(shares(&mut mode, key).len(), 2, "and still has connections");
    assert!(mode.verify().unwrap().is_empty());
    end_connections(&mut mode, key);
    assert!(!sample(&mut mode));
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn one_that_comes_back_gets_its_share_back() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &["b"]);
    sync(&mut mode, &mut cluster);
    set(&mut cluster, Protocol::Tcp, &["a", "b"]);
    sync(&mut mode, &mut cluster);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [1, 1]);
    end_connections(&mut mode, key);
    assert!(!sample(&mut mode));
    assert_eq!(shares(&mut mode, key).len(), 2);
}

#[test]
fn the_last_one_may_finish_too_and_the_server_goes_with_it() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &[]);
    sync(&mut mode, &mut cluster);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [0, 0]);
    end_connections(&mut mode, key);
    assert!(!sample(&mut mode));
    assert!(!mode.program().kernel().servers.contains_key(&key), "nobody is behind it");
    assert_eq!(mode.program().kernel().resets, Vec::<String>::new());
    // And it comes back as one that was never there.
    set(&mut cluster, Protocol::Tcp, &["a"]);
    sync(&mut mode, &mut cluster);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn udp_goes_at_once() {
    let (mut mode, mut cluster, key) = busy(Protocol::Udp);
    set(&mut cluster, Protocol::Udp, &["b"]);
    sync(&mut mode, &mut cluster);
    assert_eq!(shares(&mut mode, key).into_values().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_restart_goes_on_waiting() {
    let (mut mode, mut cluster, key) = busy(Protocol::Tcp);
    set(&mut cluster, Protocol::Tcp, &["b"]);
    sync(&mut mode, &mut cluster);
    let mut again = self::mode(Family::V4);
    *again.program().kernel() = mode.program().kernel().clone();
    *again.program().rules().program().kernel() = mode.program().rules().program().kernel().clone();
    let sent = again.program().kernel().sent;
    again.sync(&settings(), cluster.all(Family::V4)).unwrap();
    assert_eq!(again.program().kernel().sent, sent, "all is as it should be");
    assert!(!sample(&mut again));
    assert_eq!(shares(&mut again, key).into_values().collect::<Vec<_>>(), [0, 1]);
    end_connections(&mut again, key);
    assert!(!sample(&mut again));
    assert_eq!(shares(&mut again, key).into_values().collect::<Vec<_>>(), [1]);
}
