//! Recovery from single faults of the kernel, and deletion of stale conntrack entries.

use crate::assert_from_scratch;
use crate::node::mode;
use portway_model::Family;
use portway_nftables::fake::{ENOBUFS, Fault};
use portway_testkit::cluster::{TestCluster, service, settings};
use portway_testkit::flows::{apply_dns, dns_cluster, flow};

#[test]
fn changes_during_failed_commits_are_not_lost() {
    for family in Family::ALL {
        let mut cluster = TestCluster::new().service(service("one", 1));
        let mut mode = cluster.programmed(mode(family), &settings());
        for n in 2..5 {
            cluster.apply(service(&format!("s{n}"), n));
            mode.program().kernel().fail(1, Fault::Refuse(ENOBUFS));
            mode.sync(&settings(), cluster.changes(family)).unwrap_err();
        }
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(report.full);
        assert!(report.drift.is_empty(), "a failed commit was reported as drift: {}", report.drift);
        assert_from_scratch(&mut mode, &mut cluster, family, &settings());
    }
}

#[test]
fn a_transaction_whose_answer_was_lost_is_not_repeated() {
    for family in Family::ALL {
        let mut cluster = TestCluster::new().service(service("one", 1));
        let mut mode = cluster.programmed(mode(family), &settings());
        cluster.apply_hosts("one", &["a"]);
        mode.program().kernel().fail(1, Fault::LoseAnswer);
        mode.sync(&settings(), cluster.changes(family)).unwrap_err();
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!(
            (report.full, report.added, report.removed),
            (true, 0, 0),
            "the lost transaction was complete"
        );
        assert_from_scratch(&mut mode, &mut cluster, family, &settings());
    }
}

#[test]
fn stale_flows_are_deleted_after_a_failed_commit_is_retried() {
    for family in Family::ALL {
        let mut cluster = dns_cluster(&["a", "c"]);
        let mut mode = cluster.programmed(mode(family), &settings());
        let stale = [flow(family, ("svc1", 53), ("c", 5353)), flow(family, ("node", 30053), ("c", 5353))];
        let valid = [
            flow(family, ("svc1", 53), ("a", 5353)),
            flow(family, ("node", 30053), ("a", 5353)),
            flow(family, ("svc1", 54), ("c", 5353)),
            flow(family, ("stranger", 30053), ("stranger", 30053)),
            flow(family, ("alternative", 30053), ("alternative", 30053)),
        ];
        mode.program().kernel().flows = [&stale[..], &valid[..]].concat();
        apply_dns(&mut cluster, &["a"]);
        mode.program().kernel().fail(1, Fault::Refuse(ENOBUFS));
        mode.sync(&settings(), cluster.changes(family)).unwrap_err();
        assert_eq!(
            mode.program().kernel().flows.len(),
            7,
            "flows were deleted while the old rules were in force"
        );
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert_eq!((report.flows_deleted, &*mode.program().kernel().flows), (2, &valid[..]));
    }
}

#[test]
fn flows_are_compared_with_the_latest_plan() {
    let family = Family::V4;
    let mut cluster = dns_cluster(&["a"]);
    let mut mode = cluster.programmed(mode(family), &settings());
    mode.program().kernel().flows =
        vec![flow(family, ("svc1", 53), ("a", 5353)), flow(family, ("svc1", 53), ("b", 5353))];
    mode.program().kernel().fail(1, Fault::Refuse(ENOBUFS));
    apply_dns(&mut cluster, &["a", "b"]);
    mode.sync(&settings(), cluster.changes(family)).unwrap_err();
    apply_dns(&mut cluster, &["b"]);
    mode.sync(&settings(), cluster.changes(family)).unwrap();
    assert_eq!(*mode.program().kernel().flows, [flow(family, ("svc1", 53), ("b", 5353))]);
}

#[test]
fn a_restart_deletes_only_stale_flows() {
    for family in Family::ALL {
        let mut cluster = dns_cluster(&["a", "c"]);
        let mut before = cluster.programmed(mode(family), &settings());
        let mut after = mode(family);
        *after.program().kernel() = before.program().kernel().clone();
        let flows = ["a", "c"].map(|p| flow(family, ("svc1", 53), (p, 5353))).to_vec();
        after.program().kernel().flows =
            [flows.clone(), vec![flow(family, ("svc1", 53), ("b", 5353))]].concat();
        let report = after.sync(&settings(), cluster.all(family)).unwrap();
        assert_eq!((report.added, report.removed, report.flows_deleted), (0, 0, 1));
        assert_eq!(after.program().kernel().flows, flows);
    }
}

#[test]
fn flows_from_before_the_first_endpoint_are_deleted() {
    let family = Family::V4;
    let mut cluster = dns_cluster(&[]);
    let mut mode = cluster.programmed(mode(family), &settings());
    mode.program().kernel().flows = vec![flow(family, ("svc1", 53), ("svc1", 53))];
    apply_dns(&mut cluster, &["a"]);
    let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
    assert_eq!(report.flows_deleted, 1);
    // When the last endpoint is removed, flows to it are deleted too.
    mode.program().kernel().flows = vec![flow(family, ("svc1", 53), ("a", 5353))];
    apply_dns(&mut cluster, &[]);
    assert_eq!(mode.sync(&settings(), cluster.changes(family)).unwrap().flows_deleted, 1);
}
