//! Properties of the iptables mode: those that every mode has, and those of its own.

#[path = "../node/mod.rs"]
mod node;

mod cost;
mod faults;
mod leftovers;
mod ours;
mod tamper;
mod under_test;

use node::mode;
use ours::ours;
use portway_dataplane::Settings;
use portway_iptables::Iptables;
use portway_model::Family;
use portway_testkit::cluster::TestCluster;
use portway_xtables::Variant;
use portway_xtables::fake::Fake;
use proptest::prelude::*;
use under_test::IptablesMode;

portway_testkit::mode_properties!(IptablesMode);

fn variants() -> impl Strategy<Value = Variant> {
    prop_oneof![Just(Variant::Legacy), Just(Variant::Nft)]
}

/// Asserts that the kernel holds exactly the rules of ours that a mode which starts now would create.
fn assert_from_scratch(
    mode: &mut Iptables<Fake>,
    cluster: &mut TestCluster,
    family: Family,
    settings: &Settings,
) {
    let mut fresh = self::mode(family, Variant::Legacy);
    // Whether packets to localhost were routed before the mode started is not compared.
    fresh.program().kernel().route_localnet = Some(false);
    fresh.sync(settings, cluster.all(family)).unwrap();
    assert_eq!(ours(mode.program().kernel().tables()), ours(fresh.program().kernel().tables()));
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
}
