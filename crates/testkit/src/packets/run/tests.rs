//! A wrong verdict fails the test of its case.

use super::*;
use crate::mode::FamilyMode;
use crate::packets::Followed;
use portway_dataplane::trace::Packet;
use portway_dataplane::{Drift, Error, Report};
use portway_model::Target;
use std::collections::BTreeSet;

/// A node on which every packet goes to `a`, and no affinity is stored.
struct Simple(Family);

impl FamilyMode for Simple {
    fn family(&self) -> Family {
        self.0
    }

    fn sync(&mut self, _: &Settings, _: Vec<(ServiceName, Option<ServicePlan>)>) -> Result<Report, Error> {
        Ok(Report::default())
    }

    fn mark_stale(&mut self) {}

    fn verify(&mut self) -> Result<Drift, Error> {
        Ok(Drift::default())
    }
}

impl FakeNode for Simple {
    fn open(family: Family) -> Simple {
        Simple(family)
    }

    fn mode(&mut self) -> &mut dyn FamilyMode {
        self
    }

    fn follow(&mut self, _: &Packet) -> Followed {
        let target = Target { ip: crate::cluster::address(self.0, "a"), port: 8080 };
        let verdict = Verdict::Delivered { to: BTreeSet::from([target]), masqueraded: false };
        let path = Path { verdict: verdict.clone(), steps: "the only path".to_owned() };
        Followed { verdicts: vec![verdict], paths: vec![path] }
    }

    fn store_affinity(&mut self, _: &Packet, _: usize) -> bool {
        false
    }
}

const NAME: &str = "own::case";
const RIGHT: Row = ("client", "svc1:80", "a");
const WRONG: Row = ("client", "svc1:80", "a masqueraded");

/// The error of a case.
fn error(script: fn() -> Vec<Scenario>, exceptions: &[Exception]) -> Option<String> {
    run::<Simple>(&Case { name: NAME, script }, Family::V4, exceptions).err()
}

fn exception(row: Row, verdict: &'static str) -> Exception {
    Exception { case: NAME, row, verdict, reason: "every packet goes to a" }
}

#[test]
fn a_wrong_verdict_is_reported_with_case_and_path() {
    assert_eq!(error(|| vec![Scenario::new(TestCluster::new(), &[RIGHT])], &[]), None);
    let all = error(
        || {
            vec![
                Scenario::new(TestCluster::new(), &[WRONG, RIGHT]),
                Scenario::new(TestCluster::new(), &[WRONG]),
            ]
        },
        &[],
    );
    let row = "client to svc1:80: a, not a masqueraded\nthe only path";
    assert_eq!(all, Some(format!("\nown::case: IPv4:\n{row}\n{row}")));
}

#[test]
fn a_scenario_of_the_other_family_is_not_run() {
    assert_eq!(error(|| vec![Scenario::new(TestCluster::new(), &[WRONG]).only(Family::V6)], &[]), None);
}

#[test]
fn an_exception_replaces_the_verdict() {
    assert_eq!(error(|| vec![Scenario::new(TestCluster::new(), &[WRONG])], &[exception(WRONG, "a")]), None);
    let other =
        error(|| vec![Scenario::new(TestCluster::new(), &[WRONG])], &[exception(WRONG, "dropped")]).unwrap();
    assert!(other.contains("a, not dropped"), "{other}");
}

#[test]
fn an_exception_that_is_not_needed_fails() {
    let unknown =
        error(|| vec![Scenario::new(TestCluster::new(), &[RIGHT])], &[exception(WRONG, "a")]).unwrap();
    assert!(
        unknown.contains("the exception for (\"client\", \"svc1:80\", \"a masqueraded\") is not needed"),
        "{unknown}"
    );
    let same = error(|| vec![Scenario::new(TestCluster::new(), &[RIGHT])], &[exception(RIGHT, "a")]).unwrap();
    assert!(same.contains("is not needed"), "{same}");
}

#[test]
fn missing_affinity_fails() {
    let at_endpoint =
        error(|| vec![Scenario::new(TestCluster::new(), &[]).connect("client", "svc1:80", "a")], &[])
            .unwrap();
    assert!(at_endpoint.contains("at a: no affinity was stored"), "{at_endpoint}");
    let at_other =
        error(|| vec![Scenario::new(TestCluster::new(), &[]).connect("client", "svc1:80", "b")], &[])
            .unwrap();
    assert!(at_other.contains("0 paths end at b"), "{at_other}");
}

#[test]
#[should_panic(expected = "an exception names the case own::gone, which does not exist")]
fn an_exception_from_an_unknown_case_panics() {
    tests::<Simple>(
        &[],
        &[Exception { case: "own::gone", row: RIGHT, verdict: "a", reason: "it was renamed" }],
    );
}

#[test]
#[should_panic(expected = "two cases have the name own::case")]
fn two_cases_of_one_name_panic() {
    let case = Case { name: NAME, script: Vec::new };
    tests::<Simple>(&[case, case], &[]);
}

#[test]
fn every_case_is_a_test_in_each_of_its_families() {
    let case =
        Case { name: NAME, script: || vec![Scenario::new(TestCluster::new(), &[RIGHT]).only(Family::V6)] };
    let names: Vec<String> = tests::<Simple>(&[case], &[]).iter().map(|t| t.name().to_owned()).collect();
    assert_eq!(names.len(), 2 * cases().len() + 1);
    assert_eq!(names.last().map(String::as_str), Some("IPv6::own::case"));
}
