//! Properties of the ipvs mode: the ones that every mode has, and its own.

#[path = "../node/mod.rs"]
mod node;

mod contents;
mod cost;
mod drain;
mod foreign;
mod refused;
mod under_test;

use node::{Mode, mode};
use portway_model::Family;
use portway_testkit::cluster::settings;
use portway_testkit::random::{cases, changes, families, two_services};
use proptest::prelude::*;
use under_test::IpvsMode;

portway_testkit::mode_properties!(IpvsMode);

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn a_restart_keeps_the_marks(family in families(), changes in changes(8)) {
        let (mut cluster, mut settings) = (two_services(), settings());
        changes.iter().for_each(|change| change.make(&mut cluster, &mut settings));
        let mut mode = cluster.programmed(mode(family), &settings);
        let mut again = restarted(&mut mode, family);
        again.sync(&settings, cluster.all(family)).unwrap();
        prop_assert_eq!(&again.program().kernel().servers, &mode.program().kernel().servers);
    }
}

/// A new mode over a copy of the kernel of a running one.
fn restarted(running: &mut Mode, family: Family) -> Mode {
    let mut again = mode(family);
    *again.program().kernel() = running.program().kernel().clone();
    *again.program().rules().program().kernel() = running.program().rules().program().kernel().clone();
    again
}
