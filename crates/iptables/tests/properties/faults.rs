//! Single faults, and what must come of them.

use crate::assert_from_scratch;
use crate::node::mode;
use crate::ours::{foreign, settle_others};
use portway_dataplane::Error;
use portway_model::{Family, Protocol, ServiceName};
use portway_netlink::conntrack::{Flow, Tuple, UDP};
use portway_testkit::cluster::{TestCluster, address, service, settings};
use portway_testkit::objects::Endpoint;
use portway_xtables::Variant;
use portway_xtables::chains::Table;
use portway_xtables::fake::Fault;

/// Services `s1` to `s4`, each with an endpoint.
fn four() -> TestCluster {
    (1..5).fold(TestCluster::new(), |cluster, n| {
        let name = format!("s{n}");
        cluster.service(service(&name, n)).slice(&name, &Endpoint::all(&["a"]))
    })
}

#[test]
fn changes_that_come_while_the_tool_refuses_are_not_lost() {
    for family in Family::ALL {
        let mut cluster = TestCluster::new().service(service("one", 1));
        let mut mode = cluster.programmed(mode(family, Variant::Legacy), &settings());
        for n in 2..5 {
            cluster.apply(service(&format!("s{n}"), n));
            // The change fails, and so does looking at everything instead.
            mode.program().kernel().fail(1, Fault::Refuse);
            mode.program().kernel().fail(2, Fault::Refuse);
            mode.sync(&settings(), cluster.changes(family)).unwrap_err();
            mode.program().kernel().recover();
        }
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(report.full);
        assert!(report.drift.is_empty(), "our own failure is nobody's tampering: {}", report.drift);
        assert_from_scratch(&mut mode, &mut cluster, family, &settings());
    }
}

#[test]
fn a_change_that_fails_is_made_by_comparing_everything() {
    for fault in [Fault::Refuse, Fault::DieAfter(0), Fault::DieAfter(5), Fault::DieAfter(9)] {
        let mut cluster = four();
        let mut mode = cluster.programmed(mode(Family::V4, Variant::Legacy), &settings());
        cluster.apply_hosts("s1", &[]);
        mode.program().kernel().fail(1, fault);
        let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
        assert_eq!((report.partial_failures, report.full, report.refused.len()), (1, true, 0), "{fault:?}");
        assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
    }
}

#[test]
fn a_lost_answer_is_found_out() {
    let mut cluster = four();
    let mut mode = cluster.programmed(mode(Family::V4, Variant::Legacy), &settings());
    cluster.apply_hosts("s1", &["a", "b"]);
    mode.program().kernel().fail(1, Fault::DieAfter(usize::MAX));
    let restores = mode.program().kernel().restores();
    let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_eq!((report.full, report.added, report.removed), (true, 0, 0), "it was all there");
    assert_eq!(mode.program().kernel().restores(), restores + 1);
    assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
}

#[test]
fn while_others_hold_the_lock_we_wait() {
    for family in Family::ALL {
        let mut cluster = four();
        let mut mode = cluster.programmed(mode(family, Variant::Legacy), &settings());
        let restores = mode.program().kernel().restores();
        for (i, places) in [&["a", "b"][..], &["c"]].into_iter().enumerate() {
            cluster.apply_hosts("s1", places);
            mode.program().kernel().lock(1);
            let error = mode.sync(&settings(), cluster.changes(family)).unwrap_err();
            assert!(error.to_string().contains("lock"), "{error}");
            assert_eq!(
                mode.program().kernel().restores(),
                restores + i + 1,
                "trying again at once is no use"
            );
        }
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(report.drift.is_empty(), "{}", report.drift);
        assert_from_scratch(&mut mode, &mut cluster, family, &settings());
    }
}

#[test]
fn a_listing_that_breaks_off_changes_nothing() {
    let mut cluster = four();
    let mut mode = cluster.programmed(mode(Family::V4, Variant::Legacy), &settings());
    let before = mode.program().kernel().tables().clone();
    mode.mark_stale();
    mode.program().kernel().fail_saves(2);
    mode.verify().unwrap_err();
    mode.sync(&settings(), Vec::new()).unwrap_err();
    assert_eq!(*mode.program().kernel().tables(), before);
    assert!(mode.sync(&settings(), Vec::new()).unwrap().drift.is_empty());
    // A failure in between does not discard the refusals that were found.
    mode.program().kernel().tables_mut().0.remove(&Table::Nat);
    mode.mark_stale();
    mode.program().kernel().fail_saves(1);
    mode.sync(&settings(), Vec::new()).unwrap_err();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(!report.drift.is_empty());
    assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
}

/// One Service's rules are refused, the others' are in force.
fn one_is_refused(mut cluster: TestCluster, refuse: &str, incremental: bool, variant: Variant) {
    let family = Family::V4;
    let mut mode = mode(family, variant);
    settle_others(mode.program().kernel(), family);
    let others = foreign(mode.program().kernel().tables());
    if incremental {
        mode.sync(&settings(), cluster.all(family)).unwrap();
        for name in ["s2", "s3"] {
            cluster.apply_hosts(name, &["a", "b"]);
        }
    }
    mode.program().kernel().refuse(refuse);
    let changes = if incremental { cluster.changes(family) } else { cluster.all(family) };
    let report = mode.sync(&settings(), changes).unwrap();
    let [refused] = &*report.refused else { panic!("{:?}", report.refused) };
    assert_eq!(refused.service, ServiceName::new("default", "s2"));
    assert!(refused.reason.contains(refuse) && refused.reason.contains("line "), "{}", refused.reason);
    let text = mode.program().kernel().tables().to_string();
    // What it was before stands in for it, or nothing: never half of it.
    assert_eq!(text.contains("default/s2"), incremental);
    assert!(["default/s1", "default/s3", "default/s4"].iter().all(|name| text.contains(name)));
    // It is left alone until it changes, and others can.
    cluster.apply_hosts("s1", &["a", "b", "c"]);
    let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
    assert!(!report.full && report.refused.is_empty(), "{report:?}");
    mode.mark_stale();
    let report = mode.sync(&settings(), cluster.all(family)).unwrap();
    assert!(report.drift.is_empty() && report.refused.is_empty(), "{report:?}");
    // If it changes, it is tried again.
    cluster.apply_hosts("s2", &["c", "d"]);
    let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
    assert_eq!(report.refused.len(), 1);
    mode.program().kernel().recover();
    cluster.apply_hosts("s2", &["b", "d"]);
    let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
    assert_eq!((report.full, report.refused.len()), (false, 0));
    assert_from_scratch(&mut mode, &mut cluster, family, &settings());
    assert_eq!(foreign(mode.program().kernel().tables()), others);
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
    let mut cluster = four();
    let mut mode = mode(Family::V6, Variant::Legacy);
    mode.program().kernel().refuse("default/s2");
    assert_eq!(mode.sync(&settings(), cluster.all(Family::V6)).unwrap().refused.len(), 1);
    cluster.delete("s2");
    let report = mode.sync(&settings(), cluster.changes(Family::V6)).unwrap();
    assert!(!report.full && report.refused.is_empty(), "{report:?}");
    assert_from_scratch(&mut mode, &mut cluster, Family::V6, &settings());
}

#[test]
fn a_tool_that_refuses_everybody_is_an_error() {
    let cluster = (1..30).fold(TestCluster::new(), |cluster, n| {
        let name = format!("s{n}");
        cluster.service(service(&name, n)).slice(&name, &Endpoint::all(&["a"]))
    });
    let mut cluster = cluster;
    let mut mode = mode(Family::V4, Variant::Legacy);
    mode.program().kernel().refuse("DNAT");
    let error = mode.sync(&settings(), cluster.all(Family::V4)).unwrap_err();
    assert!(matches!(error, Error::Kernel { .. }), "{error:?}");
    assert!(error.to_string().contains("-j DNAT --to-destination"), "{error}");
    mode.program().kernel().recover();
    // Those that were left out meanwhile are tried again when they change.
    mode.sync(&settings(), Vec::new()).unwrap();
    for n in 1..30 {
        cluster.apply_hosts(&format!("s{n}"), &["b"]);
    }
    mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
}

#[test]
fn a_rule_that_is_nobodys_is_an_error_with_the_rule_in_it() {
    let mut cluster = four();
    let mut mode = mode(Family::V4, Variant::Legacy);
    mode.program().kernel().refuse("MASQUERADE");
    let error = mode.sync(&settings(), cluster.all(Family::V4)).unwrap_err();
    assert!(error.to_string().contains("-j MASQUERADE --random-fully"), "{error}");
    mode.program().kernel().recover();
    mode.sync(&settings(), Vec::new()).unwrap();
    assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
}

#[test]
fn a_table_that_cannot_be_shown_gets_our_rules_once() {
    let family = Family::V4;
    let mut cluster = four();
    let mut mode = mode(family, Variant::Nft);
    mode.sync(&settings(), cluster.all(family)).unwrap();
    assert!(!mode.program().lacks_hooks());
    let before = mode.program().kernel().tables().clone();
    mode.program().kernel().opaque.insert(Table::Nat);
    for _ in 0..2 {
        mode.mark_stale();
        mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!(*mode.program().kernel().tables(), before);
    }
    mode.program().kernel().opaque.clear();
    assert_from_scratch(&mut mode, &mut cluster, family, &settings());
}

#[test]
fn a_jump_to_us_that_is_gone_is_noticed_where_that_can_be_asked() {
    for (variant, noticed) in [(Variant::Nft, true), (Variant::Legacy, false)] {
        let mut mode = mode(Family::V4, variant);
        mode.sync(&settings(), four().all(Family::V4)).unwrap();
        assert!(!mode.program().lacks_hooks());
        mode.program().kernel().run("*nat\n-F OUTPUT\nCOMMIT\n").unwrap();
        assert_eq!(mode.program().lacks_hooks(), noticed);
    }
}

fn dns(cluster: &mut TestCluster, hosts: &[&str]) {
    cluster.apply_slice("dns", ("dns", Protocol::Udp, 5353), &Endpoint::all(hosts));
}

fn dns_cluster(hosts: &[&str]) -> TestCluster {
    let service = service("dns", 1).ports(&[("dns", Protocol::Udp, 53)]).node_port(30053);
    let mut cluster = TestCluster::new().service(service);
    dns(&mut cluster, hosts);
    cluster
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
        let mut cluster = dns_cluster(&["a", "c"]);
        let mut mode = cluster.programmed(mode(family, Variant::Legacy), &settings());
        let stale = [flow(family, ("svc1", 53), ("c", 5353)), flow(family, ("node", 30053), ("c", 5353))];
        let fine = [
            flow(family, ("svc1", 53), ("a", 5353)),
            flow(family, ("node", 30053), ("a", 5353)),
            flow(family, ("svc1", 54), ("c", 5353)),
            flow(family, ("alternative", 30053), ("alternative", 30053)),
        ];
        mode.program().kernel().flows = [&stale[..], &fine[..]].concat();
        dns(&mut cluster, &["a"]);
        mode.program().kernel().lock(1);
        mode.sync(&settings(), cluster.changes(family)).unwrap_err();
        assert_eq!(mode.program().kernel().flows.len(), 6, "the rules still lead there");
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!((report.flows_deleted, &*mode.program().kernel().flows), (2, &fine[..]));
    }
}

#[test]
fn a_restart_disturbs_neither_rules_nor_flows() {
    for family in Family::ALL {
        let mut cluster = dns_cluster(&["a", "c"]);
        let mut before = cluster.programmed(mode(family, Variant::Legacy), &settings());
        let mut after = mode(family, Variant::Legacy);
        *after.program().kernel() = before.program().kernel().clone();
        let flows = ["a", "c"].map(|p| flow(family, ("svc1", 53), (p, 5353))).to_vec();
        after.program().kernel().flows =
            [flows.clone(), vec![flow(family, ("svc1", 53), ("b", 5353))]].concat();
        let report = after.sync(&settings(), cluster.all(family)).unwrap();
        assert_eq!((report.added, report.removed, report.flows_deleted), (0, 0, 1));
        assert_eq!(after.program().kernel().flows, flows);
    }
}
