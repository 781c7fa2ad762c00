//! That what goes elsewhere is told: a table that cannot fail tests nothing.

use super::*;
use crate::packet::Packet;
use crate::packets::{Followed, Way};
use crate::{Dataplane, Drift, Error, Report};
use portway_model::Target;
use std::collections::BTreeSet;

/// A machine on which every packet goes to `a`, and nobody is remembered.
struct Simple(Family);

impl Dataplane for Simple {
    fn family(&self) -> Family {
        self.0
    }

    fn sync(&mut self, _: &Settings, _: Vec<(ServiceName, Option<ServicePlan>)>) -> Result<Report, Error> {
        Ok(Report::default())
    }

    fn distrust(&mut self) {}

    fn verify(&mut self) -> Result<Drift, Error> {
        Ok(Drift::default())
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl Machine for Simple {
    fn mode(&mut self) -> &mut dyn Dataplane {
        self
    }

    fn follow(&mut self, _: &Packet) -> Followed {
        let target = Target { ip: crate::world::address(self.0, "a"), port: 8080 };
        let verdict = Verdict::Delivered { to: BTreeSet::from([target]), masqueraded: false };
        let way = Way { verdict: verdict.clone(), steps: "straight on".to_owned() };
        Followed { verdicts: vec![verdict], ways: vec![way] }
    }

    fn remember(&mut self, _: &Packet, _: usize) -> bool {
        false
    }
}

const NAME: &str = "own::case";
const RIGHT: Row = ("client", "svc1:80", "a");
const WRONG: Row = ("client", "svc1:80", "a masqueraded");

/// What is wrong with a case.
fn said(script: fn() -> Vec<Scene>, differs: &[Differs]) -> Option<String> {
    run(&Case { name: NAME, script }, Family::V4, Simple, differs).err()
}

fn differs(row: Row, here: &'static str) -> Differs {
    Differs { case: NAME, row, here, why: "it is simple" }
}

#[test]
fn a_row_that_goes_elsewhere_is_told_with_its_case_and_its_way() {
    assert_eq!(said(|| vec![Scene::new(World::new(), &[RIGHT])], &[]), None);
    let all =
        said(|| vec![Scene::new(World::new(), &[WRONG, RIGHT]), Scene::new(World::new(), &[WRONG])], &[]);
    let row = "client to svc1:80: a, not a masqueraded\nstraight on";
    assert_eq!(all, Some(format!("\nown::case: IPv4:\n{row}\n{row}")));
}

#[test]
fn a_scene_of_the_other_family_is_not_played() {
    assert_eq!(said(|| vec![Scene::new(World::new(), &[WRONG]).only(Family::V6)], &[]), None);
}

#[test]
fn a_declared_difference_is_what_must_be() {
    assert_eq!(said(|| vec![Scene::new(World::new(), &[WRONG])], &[differs(WRONG, "a")]), None);
    let other = said(|| vec![Scene::new(World::new(), &[WRONG])], &[differs(WRONG, "dropped")]).unwrap();
    assert!(other.contains("a, not dropped"), "{other}");
}

#[test]
fn a_difference_that_is_none_is_told() {
    let gone = said(|| vec![Scene::new(World::new(), &[RIGHT])], &[differs(WRONG, "a")]).unwrap();
    assert!(gone.contains("the table has no (\"client\", \"svc1:80\", \"a masqueraded\")"), "{gone}");
    let same = said(|| vec![Scene::new(World::new(), &[RIGHT])], &[differs(RIGHT, "a")]).unwrap();
    assert!(same.contains("the table has no"), "{same}");
}

#[test]
fn a_client_that_is_not_remembered_is_told() {
    let there = said(|| vec![Scene::new(World::new(), &[]).meets("client", "svc1:80", "a")], &[]).unwrap();
    assert!(there.contains("at a: nothing was remembered"), "{there}");
    let elsewhere =
        said(|| vec![Scene::new(World::new(), &[]).meets("client", "svc1:80", "b")], &[]).unwrap();
    assert!(elsewhere.contains("0 ways lead to b"), "{elsewhere}");
}

#[test]
#[should_panic(expected = "there is no case own::gone to differ from")]
fn a_difference_from_no_case_is_an_error() {
    tests(Simple, &[], &[Differs { case: "own::gone", row: RIGHT, here: "a", why: "it was renamed" }]);
}

#[test]
#[should_panic(expected = "two cases are called own::case")]
fn a_name_is_there_once() {
    let case = Case { name: NAME, script: Vec::new };
    tests(Simple, &[case, case], &[]);
}

#[test]
fn every_case_is_a_test_in_each_family_in_which_it_holds() {
    let case = Case { name: NAME, script: || vec![Scene::new(World::new(), &[RIGHT]).only(Family::V6)] };
    let names: Vec<String> = tests(Simple, &[case], &[]).into_iter().map(|t| t.name).collect();
    assert_eq!(names.len(), 2 * cases().len() + 1);
    assert_eq!(names.last().map(String::as_str), Some("IPv6::own::case"));
}
