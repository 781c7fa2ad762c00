//! Single faults, and what must come of them.

use crate::is_from_scratch;
use crate::node::mode;
use crate::ours::{foreign, settle_others};
use portway_dataplane::world::{World, address, endpoint, settings};
use portway_dataplane::{Dataplane, Error};
use portway_iptables::Variant;
use portway_iptables::chains::Table;
use portway_iptables::fake::Fault;
use portway_model::{Family, ServiceName};
use portway_netlink::conntrack::{Flow, Tuple, UDP};
use serde_json::{Value, json};

fn port() -> Value {
    json!({"name": "http", "port": 8080})
}

/// Services `s1` to `s4`, each with an endpoint.
fn four() -> World {
    (1..5).fold(World::new(), |world, n| {
        let name = format!("s{n}");
        world.service(&name, n, json!({}), json!({})).slice(&name, &[endpoint("a")])
    })
}

#[test]
fn changes_that_come_while_the_tool_refuses_are_not_lost() {
    for family in Family::ALL {
        let mut world = World::new().service("one", 1, json!({}), json!({}));
        let mut mode = world.programmed(mode(family, Variant::Legacy), &settings());
        for n in 2..5 {
            world.apply_service(&format!("s{n}"), n, json!({}), json!({}));
            // The change fails, and so does looking at everything instead.
            mode.kernel().fail(1, Fault::Refuse);
            mode.kernel().fail(2, Fault::Refuse);
            mode.sync(&settings(), world.changes(family)).unwrap_err();
            mode.kernel().recover();
        }
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(report.full);
        assert!(report.drift.is_empty(), "our own failure is nobody's tampering: {}", report.drift);
        is_from_scratch(&mut mode, &mut world, family, &settings());
    }
}

#[test]
fn a_change_that_fails_is_made_by_comparing_everything() {
    for fault in [Fault::Refuse, Fault::DieAfter(0), Fault::DieAfter(5), Fault::DieAfter(9)] {
        let mut world = four();
        let mut mode = world.programmed(mode(Family::V4, Variant::Legacy), &settings());
        world.apply_slice("s1", port(), &[]);
        mode.kernel().fail(1, fault);
        let report = mode.sync(&settings(), world.changes(Family::V4)).unwrap();
        assert_eq!((report.partial_failures, report.full, report.refused.len()), (1, true, 0), "{fault:?}");
        is_from_scratch(&mut mode, &mut world, Family::V4, &settings());
    }
}

#[test]
fn a_lost_answer_is_found_out() {
    let mut world = four();
    let mut mode = world.programmed(mode(Family::V4, Variant::Legacy), &settings());
    world.apply_slice("s1", port(), &["a", "b"].map(endpoint));
    mode.kernel().fail(1, Fault::DieAfter(usize::MAX));
    let restores = mode.kernel().restores();
    let report = mode.sync(&settings(), world.changes(Family::V4)).unwrap();
    assert_eq!((report.full, report.added, report.removed), (true, 0, 0), "it was all there");
    assert_eq!(mode.kernel().restores(), restores + 1);
    is_from_scratch(&mut mode, &mut world, Family::V4, &settings());
}

#[test]
fn while_others_hold_the_lock_we_wait() {
    for family in Family::ALL {
        let mut world = four();
        let mut mode = world.programmed(mode(family, Variant::Legacy), &settings());
        let restores = mode.kernel().restores();
        for (i, places) in [&["a", "b"][..], &["c"]].into_iter().enumerate() {
            let endpoints: Vec<Value> = places.iter().map(|p| endpoint(p)).collect();
            world.apply_slice("s1", port(), &endpoints);
            mode.kernel().lock(1);
            let error = mode.sync(&settings(), world.changes(family)).unwrap_err();
            assert!(error.to_string().contains("lock"), "{error}");
            assert_eq!(mode.kernel().restores(), restores + i + 1, "trying again at once is no use");
        }
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(report.drift.is_empty(), "{}", report.drift);
        is_from_scratch(&mut mode, &mut world, family, &settings());
    }
}

#[test]
fn a_listing_that_breaks_off_changes_nothing() {
    let mut world = four();
    let mut mode = world.programmed(mode(Family::V4, Variant::Legacy), &settings());
    let before = mode.kernel().tables().clone();
    mode.distrust();
    mode.kernel().fail_saves(2);
    mode.verify().unwrap_err();
    mode.sync(&settings(), Vec::new()).unwrap_err();
    assert_eq!(*mode.kernel().tables(), before);
    assert!(mode.sync(&settings(), Vec::new()).unwrap().drift.is_empty());
    // What was found out is not forgotten by a failure in between.
    mode.kernel().tables_mut().0.remove(&Table::Nat);
    mode.distrust();
    mode.kernel().fail_saves(1);
    mode.sync(&settings(), Vec::new()).unwrap_err();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(!report.drift.is_empty());
    is_from_scratch(&mut mode, &mut world, Family::V4, &settings());
}

/// One Service's rules are refused, the others' are in force.
fn one_is_refused(mut world: World, refuse: &str, incremental: bool, variant: Variant) {
    let family = Family::V4;
    let mut mode = mode(family, variant);
    settle_others(mode.kernel(), family);
    let others = foreign(mode.kernel().tables());
    if incremental {
        mode.sync(&settings(), world.all(family)).unwrap();
        for name in ["s2", "s3"] {
            world.apply_slice(name, port(), &["a", "b"].map(endpoint));
        }
    }
    mode.kernel().refuse(refuse);
    let changes = if incremental { world.changes(family) } else { world.all(family) };
    let report = mode.sync(&settings(), changes).unwrap();
    let [refused] = &*report.refused else { panic!("{:?}", report.refused) };
    assert_eq!(refused.service, ServiceName::new("default", "s2"));
    assert!(refused.reason.contains(refuse) && refused.reason.contains("line "), "{}", refused.reason);
    let text = mode.kernel().tables().to_string();
    // What it was before stands in for it, or nothing: never half of it.
    assert_eq!(text.contains("default/s2"), incremental);
    assert!(["default/s1", "default/s3", "default/s4"].iter().all(|name| text.contains(name)));
    // It is left alone until it changes, and others can.
    world.apply_slice("s1", port(), &["a", "b", "c"].map(endpoint));
    let report = mode.sync(&settings(), world.changes(family)).unwrap();
    assert!(!report.full && report.refused.is_empty(), "{report:?}");
    mode.distrust();
    let report = mode.sync(&settings(), world.all(family)).unwrap();
    assert!(report.drift.is_empty() && report.refused.is_empty(), "{report:?}");
    // If it changes, it is tried again.
    world.apply_slice("s2", port(), &[endpoint("c"), endpoint("d")]);
    let report = mode.sync(&settings(), world.changes(family)).unwrap();
    assert_eq!(report.refused.len(), 1);
    mode.kernel().recover();
    world.apply_slice("s2", port(), &["b", "d"].map(endpoint));
    let report = mode.sync(&settings(), world.changes(family)).unwrap();
    assert_eq!((report.full, report.refused.len()), (false, 0));
    is_from_scratch(&mut mode, &mut world, family, &settings());
    assert_eq!(foreign(mode.kernel().tables()), others);
}

#[test]
fn a_service_whose_rules_are_refused_is_left_out_and_named() {
    for variant in Variant::ALL {
        for incremental in [false, true] {
            // In a chain of its own.
            one_is_refused(four(), "default/s2:http\" -m", incremental, variant);
        }
        // In chains that all share, of either table.
        one_is_refused(four(), "default/s2:http cluster IP", false, variant);
        one_is_refused(four(), "default/s2 has no such port", false, variant);
    }
}

#[test]
fn a_service_that_goes_while_it_is_left_out_leaves_nothing() {
    let mut world = four();
    let mut mode = mode(Family::V6, Variant::Legacy);
    mode.kernel().refuse("default/s2");
    assert_eq!(mode.sync(&settings(), world.all(Family::V6)).unwrap().refused.len(), 1);
    world.delete("s2");
    let report = mode.sync(&settings(), world.changes(Family::V6)).unwrap();
    assert!(!report.full && report.refused.is_empty(), "{report:?}");
    is_from_scratch(&mut mode, &mut world, Family::V6, &settings());
}

#[test]
fn a_tool_that_refuses_everybody_is_an_error() {
    let world = (1..30).fold(World::new(), |world, n| {
        let name = format!("s{n}");
        world.service(&name, n, json!({}), json!({})).slice(&name, &[endpoint("a")])
    });
    let mut world = world;
    let mut mode = mode(Family::V4, Variant::Legacy);
    mode.kernel().refuse("DNAT");
    let error = mode.sync(&settings(), world.all(Family::V4)).unwrap_err();
    assert!(matches!(error, Error::Kernel { .. }), "{error:?}");
    assert!(error.to_string().contains("-j DNAT --to-destination"), "{error}");
    mode.kernel().recover();
    // Those that were left out meanwhile are tried again when they change.
    mode.sync(&settings(), Vec::new()).unwrap();
    for n in 1..30 {
        world.apply_slice(&format!("s{n}"), port(), &[endpoint("b")]);
    }
    mode.sync(&settings(), world.changes(Family::V4)).unwrap();
    is_from_scratch(&mut mode, &mut world, Family::V4, &settings());
}

#[test]
fn a_rule_that_is_nobodys_is_an_error_with_the_rule_in_it() {
    let mut world = four();
    let mut mode = mode(Family::V4, Variant::Legacy);
    mode.kernel().refuse("MASQUERADE");
    let error = mode.sync(&settings(), world.all(Family::V4)).unwrap_err();
    assert!(error.to_string().contains("-j MASQUERADE --random-fully"), "{error}");
    mode.kernel().recover();
    mode.sync(&settings(), Vec::new()).unwrap();
    is_from_scratch(&mut mode, &mut world, Family::V4, &settings());
}

#[test]
fn a_table_that_cannot_be_shown_gets_our_rules_once() {
    let family = Family::V4;
    let mut world = four();
    let mut mode = mode(family, Variant::Nft);
    mode.sync(&settings(), world.all(family)).unwrap();
    assert!(!mode.lacks_hooks());
    let before = mode.kernel().tables().clone();
    mode.kernel().opaque.insert(Table::Nat);
    for _ in 0..2 {
        mode.distrust();
        mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!(*mode.kernel().tables(), before);
    }
    mode.kernel().opaque.clear();
    is_from_scratch(&mut mode, &mut world, family, &settings());
}

#[test]
fn a_jump_to_us_that_is_gone_is_noticed_where_that_can_be_asked() {
    for (variant, noticed) in [(Variant::Nft, true), (Variant::Legacy, false)] {
        let mut mode = mode(Family::V4, variant);
        mode.sync(&settings(), four().all(Family::V4)).unwrap();
        assert!(!mode.lacks_hooks());
        mode.kernel().run("*nat\n-F OUTPUT\nCOMMIT\n").unwrap();
        assert_eq!(mode.lacks_hooks(), noticed);
    }
}

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
fn stale_flows_are_forgotten_even_if_the_first_restore_failed() {
    for family in Family::ALL {
        let mut world = dns_world(&["a", "c"]);
        let mut mode = world.programmed(mode(family, Variant::Legacy), &settings());
        let stale = [flow(family, ("svc1", 53), ("c", 5353)), flow(family, ("node", 30053), ("c", 5353))];
        let fine = [
            flow(family, ("svc1", 53), ("a", 5353)),
            flow(family, ("node", 30053), ("a", 5353)),
            flow(family, ("svc1", 54), ("c", 5353)),
            flow(family, ("alternative", 30053), ("alternative", 30053)),
        ];
        mode.kernel().flows = [&stale[..], &fine[..]].concat();
        dns(&mut world, &["a"]);
        mode.kernel().lock(1);
        mode.sync(&settings(), world.changes(family)).unwrap_err();
        assert_eq!(mode.kernel().flows.len(), 6, "the rules still lead there");
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!((report.flows_deleted, &*mode.kernel().flows), (2, &fine[..]));
    }
}

#[test]
fn a_restart_disturbs_neither_rules_nor_flows() {
    for family in Family::ALL {
        let mut world = dns_world(&["a", "c"]);
        let mut before = world.programmed(mode(family, Variant::Legacy), &settings());
        let mut after = mode(family, Variant::Legacy);
        *after.kernel() = before.kernel().clone();
        let flows = ["a", "c"].map(|p| flow(family, ("svc1", 53), (p, 5353))).to_vec();
        after.kernel().flows = [flows.clone(), vec![flow(family, ("svc1", 53), ("b", 5353))]].concat();
        let report = after.sync(&settings(), world.all(family)).unwrap();
        assert_eq!((report.added, report.removed, report.flows_deleted), (0, 0, 1));
        assert_eq!(after.kernel().flows, flows);
    }
}
