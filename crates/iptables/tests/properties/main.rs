//! Property tests of the iptables mode: the properties that all modes share, and tests of this mode only.

#[path = "../node/mod.rs"]
mod node;

mod cost;
mod faults;
mod leftovers;
mod proxy_rules;
mod tamper;
mod under_test;

use node::mode;
use portway_dataplane::Settings;
use portway_iptables::Iptables;
use portway_model::Family;
use portway_testkit::cluster::TestCluster;
use portway_xtables::Variant;
use portway_xtables::fake::Fake;
use proptest::prelude::*;
use proxy_rules::proxy_rules;
use under_test::IptablesMode;

portway_testkit::mode_properties!(IptablesMode);

fn variants() -> impl Strategy<Value = Variant> {
    prop_oneof![Just(Variant::Legacy), Just(Variant::Nft)]
}

/// Asserts that the kernel has exactly the proxy rules that a newly started mode would create.
fn assert_from_scratch(
    mode: &mut Iptables<Fake>,
    cluster: &mut TestCluster,
    family: Family,
    settings: &Settings,
) {
    let mut fresh = self::mode(family, Variant::Legacy);
    // The sysctl was off before the tested mode started, too: both modes record that in a rule.
    fresh.program().kernel().route_localnet = Some(false);
    fresh.sync(settings, cluster.all(family)).unwrap();
    assert_eq!(proxy_rules(mode.program().kernel().tables()), proxy_rules(fresh.program().kernel().tables()));
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
}
