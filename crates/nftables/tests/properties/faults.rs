//! Single faults, and what must come of them.

use crate::is_from_scratch;
use crate::node::mode;
use portway_dataplane::Dataplane;
use portway_dataplane::world::{World, address, endpoint, settings};
use portway_model::Family;
use portway_netlink::conntrack::{Flow, Tuple, UDP};
use portway_nftables::fake::{ENOBUFS, Fault};
use serde_json::{Value, json};

fn dns(world: &mut World, places: &[&str]) {
    let endpoints: Vec<Value> = places.iter().map(|p| endpoint(p)).collect();
    world.apply_slice("dns", json!({"name": "dns", "protocol": "UDP", "port": 5353}), &endpoints);
}

fn dns_world(places: &[&str]) -> World {
    let ports = json!([{"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053}]);
    let mut world = World::new().service("dns", 1, json!({"type": "NodePort", "ports": ports}), json!({}));
    dns(&mut world, places);
    world
}

fn flow(family: Family, to: (&str, u16), led_to: (&str, u16)) -> Flow {
    let client = address(family, "client");
    let tuple = |source, source_port, destination, destination_port| Tuple {
        source,
        destination,
        protocol: UDP,
        source_port,
        destination_port,
    };
    Flow {
        original: tuple(client, 4000, address(family, to.0), to.1),
        reply: tuple(address(family, led_to.0), led_to.1, client, 4000),
        zone: 0,
        translated: true,
    }
}

#[test]
fn changes_that_come_while_the_kernel_refuses_are_not_lost() {
    for family in Family::ALL {
        let mut world = World::new().service("one", 1, json!({}), json!({}));
        let mut mode = world.programmed(mode(family), &settings());
        for n in 2..5 {
            world.apply_service(&format!("s{n}"), n, json!({}), json!({}));
            mode.kernel().fail(1, Fault::Refuse(ENOBUFS));
            mode.sync(&settings(), world.changes(family)).unwrap_err();
        }
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(report.full);
        assert!(report.drift.is_empty(), "our own failure is nobody's tampering: {}", report.drift);
        is_from_scratch(&mut mode, &mut world, family, &settings());
    }
}

#[test]
fn a_lost_answer_is_found_out() {
    for family in Family::ALL {
        let mut world = World::new().service("one", 1, json!({}), json!({}));
        let mut mode = world.programmed(mode(family), &settings());
        world.apply_slice("one", json!({"name": "http", "port": 8080}), &[endpoint("a")]);
        mode.kernel().fail(1, Fault::LoseAnswer);
        mode.sync(&settings(), world.changes(family)).unwrap_err();
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!((report.full, report.added, report.removed), (true, 0, 0), "it was all there");
        is_from_scratch(&mut mode, &mut world, family, &settings());
    }
}

#[test]
fn stale_flows_are_forgotten_even_if_the_first_commit_failed() {
    for family in Family::ALL {
        let mut world = dns_world(&["a", "c"]);
        let mut mode = world.programmed(mode(family), &settings());
        let stale = [flow(family, ("svc1", 53), ("c", 5353)), flow(family, ("node", 30053), ("c", 5353))];
        let fine = [
            flow(family, ("svc1", 53), ("a", 5353)),
            flow(family, ("node", 30053), ("a", 5353)),
            flow(family, ("svc1", 54), ("c", 5353)),
            flow(family, ("stranger", 30053), ("stranger", 30053)),
            flow(family, ("alternative", 30053), ("alternative", 30053)),
        ];
        mode.kernel().flows = [&stale[..], &fine[..]].concat();
        dns(&mut world, &["a"]);
        mode.kernel().fail(1, Fault::Refuse(ENOBUFS));
        mode.sync(&settings(), world.changes(family)).unwrap_err();
        assert_eq!(mode.kernel().flows.len(), 7, "the rules still lead there");
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!((report.flows_deleted, &*mode.kernel().flows), (2, &fine[..]));
    }
}

#[test]
fn what_changes_twice_is_judged_by_the_last() {
    let family = Family::V4;
    let mut world = dns_world(&["a"]);
    let mut mode = world.programmed(mode(family), &settings());
    mode.kernel().flows =
        vec![flow(family, ("svc1", 53), ("a", 5353)), flow(family, ("svc1", 53), ("b", 5353))];
    mode.kernel().fail(1, Fault::Refuse(ENOBUFS));
    dns(&mut world, &["a", "b"]);
    mode.sync(&settings(), world.changes(family)).unwrap_err();
    dns(&mut world, &["b"]);
    mode.sync(&settings(), world.changes(family)).unwrap();
    assert_eq!(*mode.kernel().flows, [flow(family, ("svc1", 53), ("b", 5353))]);
}

#[test]
fn a_restart_disturbs_no_flow_that_arrives() {
    for family in Family::ALL {
        let mut world = dns_world(&["a", "c"]);
        let mut before = world.programmed(mode(family), &settings());
        let mut after = mode(family);
        *after.kernel() = before.kernel().clone();
        let flows = ["a", "c"].map(|p| flow(family, ("svc1", 53), (p, 5353))).to_vec();
        after.kernel().flows = [flows.clone(), vec![flow(family, ("svc1", 53), ("b", 5353))]].concat();
        let report = after.sync(&settings(), world.all(family)).unwrap();
        assert_eq!((report.added, report.removed, report.flows_deleted), (0, 0, 1));
        assert_eq!(after.kernel().flows, flows);
    }
}

#[test]
fn flows_that_began_without_endpoints_start_anew() {
    let family = Family::V4;
    let mut world = dns_world(&[]);
    let mut mode = world.programmed(mode(family), &settings());
    mode.kernel().flows = vec![flow(family, ("svc1", 53), ("svc1", 53))];
    dns(&mut world, &["a"]);
    let report = mode.sync(&settings(), world.changes(family)).unwrap();
    assert_eq!(report.flows_deleted, 1);
    // And when the last one goes, what led there ends too.
    mode.kernel().flows = vec![flow(family, ("svc1", 53), ("a", 5353))];
    dns(&mut world, &[]);
    assert_eq!(mode.sync(&settings(), world.changes(family)).unwrap().flows_deleted, 1);
}

#[test]
fn cleanup_leaves_nothing_and_can_be_done_twice() {
    let mut world = dns_world(&["a"]);
    let mut mode = world.programmed(mode(Family::V4), &settings());
    mode.cleanup().unwrap();
    assert_eq!(mode.kernel().table(), None);
    mode.cleanup().unwrap();
    mode.sync(&settings(), Vec::new()).unwrap();
    is_from_scratch(&mut mode, &mut world, Family::V4, &settings());
}
