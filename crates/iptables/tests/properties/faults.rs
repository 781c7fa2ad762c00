//! Injected faults: failed and refused scripts, failed listings, a held lock.

use crate::assert_from_scratch;
use crate::node::mode;
use crate::proxy_rules::{add_foreign_rules, foreign};
use portway_dataplane::Error;
use portway_model::{Family, ServiceName};
use portway_testkit::cluster::{TestCluster, service, settings};
use portway_testkit::flows::{apply_dns, dns_cluster, flow};
use portway_testkit::objects::Endpoint;
use portway_xtables::Variant;
use portway_xtables::chains::Table;
use portway_xtables::fake::Fault;

/// Services `s1` to `s4`, each with an endpoint.
fn four_services() -> TestCluster {
    (1..5).fold(TestCluster::new(), |cluster, n| {
        let name = format!("s{n}");
        cluster.service(service(&name, n)).slice(&name, &Endpoint::all(&["a"]))
    })
}

#[test]
fn changes_during_failures_are_not_lost() {
    for family in Family::ALL {
        let mut cluster = TestCluster::new().service(service("one", 1));
        let mut mode = cluster.programmed(mode(family, Variant::Legacy), &settings());
        for n in 2..5 {
            cluster.apply(service(&format!("s{n}"), n));
            // The incremental change fails, and so does the comparison of all rules that follows it.
            mode.program().kernel().fail(1, Fault::Refuse);
            mode.program().kernel().fail(2, Fault::Refuse);
            mode.sync(&settings(), cluster.changes(family)).unwrap_err();
            mode.program().kernel().recover();
        }
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(report.full);
        assert!(report.drift.is_empty(), "a failure of Portway is not drift: {}", report.drift);
        assert_from_scratch(&mut mode, &mut cluster, family, &settings());
    }
}

#[test]
fn after_a_failed_change_all_rules_are_compared() {
    for fault in [Fault::Refuse, Fault::DieAfter(0), Fault::DieAfter(5), Fault::DieAfter(9)] {
        let mut cluster = four_services();
        let mut mode = cluster.programmed(mode(Family::V4, Variant::Legacy), &settings());
        cluster.apply_hosts("s1", &[]);
        mode.program().kernel().fail(1, fault);
        let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
        assert_eq!((report.partial_failures, report.full, report.refused.len()), (1, true, 0), "{fault:?}");
        assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
    }
}

#[test]
fn a_change_with_a_lost_exit_status_is_not_written_again() {
    let mut cluster = four_services();
    let mut mode = cluster.programmed(mode(Family::V4, Variant::Legacy), &settings());
    cluster.apply_hosts("s1", &["a", "b"]);
    mode.program().kernel().fail(1, Fault::DieAfter(usize::MAX));
    let restores = mode.program().kernel().restores();
    let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_eq!((report.full, report.added, report.removed), (true, 0, 0), "all rules were in the kernel");
    assert_eq!(mode.program().kernel().restores(), restores + 1);
    assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
}

#[test]
fn a_held_lock_is_an_error_and_the_next_sync_applies_the_changes() {
    for family in Family::ALL {
        let mut cluster = four_services();
        let mut mode = cluster.programmed(mode(family, Variant::Legacy), &settings());
        let restores = mode.program().kernel().restores();
        for (i, hosts) in [&["a", "b"][..], &["c"]].into_iter().enumerate() {
            cluster.apply_hosts("s1", hosts);
            mode.program().kernel().lock(1);
            let error = mode.sync(&settings(), cluster.changes(family)).unwrap_err();
            assert!(error.to_string().contains("lock"), "{error}");
            assert_eq!(mode.program().kernel().restores(), restores + i + 1, "one attempt for each sync");
        }
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(report.drift.is_empty(), "{}", report.drift);
        assert_from_scratch(&mut mode, &mut cluster, family, &settings());
    }
}

#[test]
fn a_failed_listing_does_not_change_rules() {
    let mut cluster = four_services();
    let mut mode = cluster.programmed(mode(Family::V4, Variant::Legacy), &settings());
    let before = mode.program().kernel().tables().clone();
    mode.mark_stale();
    mode.program().kernel().fail_saves(2);
    mode.verify().unwrap_err();
    mode.sync(&settings(), Vec::new()).unwrap_err();
    assert_eq!(*mode.program().kernel().tables(), before);
    assert!(mode.sync(&settings(), Vec::new()).unwrap().drift.is_empty());
    // After a failed listing, the next sync still reports the drift.
    mode.program().kernel().tables_mut().0.remove(&Table::Nat);
    mode.mark_stale();
    mode.program().kernel().fail_saves(1);
    mode.sync(&settings(), Vec::new()).unwrap_err();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(!report.drift.is_empty());
    assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
}

/// Checks that the refused rules of Service `s2` do not affect the other Services.
fn check_refused_service(mut cluster: TestCluster, refuse: &str, incremental: bool, variant: Variant) {
    let family = Family::V4;
    let mut mode = mode(family, variant);
    add_foreign_rules(mode.program().kernel(), family);
    let foreign_rules = foreign(mode.program().kernel().tables());
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
    // The Service keeps its previous rules, or has none if it is new.
    assert_eq!(text.contains("default/s2"), incremental);
    assert!(["default/s1", "default/s3", "default/s4"].iter().all(|name| text.contains(name)));
    // It is not tried again until it changes; other Services can change.
    cluster.apply_hosts("s1", &["a", "b", "c"]);
    let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
    assert!(!report.full && report.refused.is_empty(), "{report:?}");
    mode.mark_stale();
    let report = mode.sync(&settings(), cluster.all(family)).unwrap();
    assert!(report.drift.is_empty() && report.refused.is_empty(), "{report:?}");
    // After a change it is tried again.
    cluster.apply_hosts("s2", &["c", "d"]);
    let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
    assert_eq!(report.refused.len(), 1);
    mode.program().kernel().recover();
    cluster.apply_hosts("s2", &["b", "d"]);
    let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
    assert_eq!((report.full, report.refused.len()), (false, 0));
    assert_from_scratch(&mut mode, &mut cluster, family, &settings());
    assert_eq!(foreign(mode.program().kernel().tables()), foreign_rules);
}

#[test]
fn a_service_with_refused_rules_is_left_out_and_reported() {
    for variant in Variant::ALL {
        for incremental in [false, true] {
            // A rule in the chain of the Service.
            check_refused_service(four_services(), "default/s2:http\" -m", incremental, variant);
        }
        // Rules in shared chains of both tables.
        check_refused_service(four_services(), "default/s2:http cluster IP", false, variant);
        check_refused_service(four_services(), "default/s2 has no such port", false, variant);
    }
}

#[test]
fn a_service_deleted_while_left_out_has_no_rules() {
    let mut cluster = four_services();
    let mut mode = mode(Family::V6, Variant::Legacy);
    mode.program().kernel().refuse("default/s2");
    assert_eq!(mode.sync(&settings(), cluster.all(Family::V6)).unwrap().refused.len(), 1);
    cluster.delete("s2");
    let report = mode.sync(&settings(), cluster.changes(Family::V6)).unwrap();
    assert!(!report.full && report.refused.is_empty(), "{report:?}");
    assert_from_scratch(&mut mode, &mut cluster, Family::V6, &settings());
}

#[test]
fn refusing_the_rules_of_all_services_is_an_error() {
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
    // The Services that were left out are tried again when they change.
    mode.sync(&settings(), Vec::new()).unwrap();
    for n in 1..30 {
        cluster.apply_hosts(&format!("s{n}"), &["b"]);
    }
    mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
}

#[test]
fn refusing_a_constant_rule_is_an_error_that_names_the_rule() {
    let mut cluster = four_services();
    let mut mode = mode(Family::V4, Variant::Legacy);
    mode.program().kernel().refuse("MASQUERADE");
    let error = mode.sync(&settings(), cluster.all(Family::V4)).unwrap_err();
    assert!(error.to_string().contains("-j MASQUERADE --random-fully"), "{error}");
    mode.program().kernel().recover();
    mode.sync(&settings(), Vec::new()).unwrap();
    assert_from_scratch(&mut mode, &mut cluster, Family::V4, &settings());
}

#[test]
fn hooks_in_a_table_that_cannot_be_listed_are_not_added_twice() {
    let family = Family::V4;
    let mut cluster = four_services();
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
fn a_missing_hook_is_detected_in_the_nft_variant() {
    for (variant, detected) in [(Variant::Nft, true), (Variant::Legacy, false)] {
        let mut mode = mode(Family::V4, variant);
        mode.sync(&settings(), four_services().all(Family::V4)).unwrap();
        assert!(!mode.program().lacks_hooks());
        mode.program().kernel().run("*nat\n-F OUTPUT\nCOMMIT\n").unwrap();
        assert_eq!(mode.program().lacks_hooks(), detected);
    }
}

#[test]
fn stale_flows_are_deleted_even_if_the_first_restore_failed() {
    for family in Family::ALL {
        let mut cluster = dns_cluster(&["a", "c"]);
        let mut mode = cluster.programmed(mode(family, Variant::Legacy), &settings());
        let stale = [flow(family, ("svc1", 53), ("c", 5353)), flow(family, ("node", 30053), ("c", 5353))];
        let valid = [
            flow(family, ("svc1", 53), ("a", 5353)),
            flow(family, ("node", 30053), ("a", 5353)),
            flow(family, ("svc1", 54), ("c", 5353)),
            flow(family, ("alternative", 30053), ("alternative", 30053)),
        ];
        mode.program().kernel().flows = [&stale[..], &valid[..]].concat();
        apply_dns(&mut cluster, &["a"]);
        mode.program().kernel().lock(1);
        mode.sync(&settings(), cluster.changes(family)).unwrap_err();
        assert_eq!(mode.program().kernel().flows.len(), 6, "no flow is deleted before the rules change");
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!((report.flows_deleted, &*mode.program().kernel().flows), (2, &valid[..]));
    }
}

#[test]
fn a_restart_changes_neither_rules_nor_valid_flows() {
    for family in Family::ALL {
        let mut cluster = dns_cluster(&["a", "c"]);
        let mut before = cluster.programmed(mode(family, Variant::Legacy), &settings());
        let mut after = mode(family, Variant::Legacy);
        *after.program().kernel() = before.program().kernel().clone();
        let flows = ["a", "c"].map(|host| flow(family, ("svc1", 53), (host, 5353))).to_vec();
        after.program().kernel().flows =
            [flows.clone(), vec![flow(family, ("svc1", 53), ("b", 5353))]].concat();
        let report = after.sync(&settings(), cluster.all(family)).unwrap();
        assert_eq!((report.added, report.removed, report.flows_deleted), (0, 0, 1));
        assert_eq!(after.program().kernel().flows, flows);
    }
}
