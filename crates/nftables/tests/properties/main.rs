//! Properties of the nftables mode: those that all modes share, and its own.

#[path = "../node/mod.rs"]
mod node;

mod cost;
mod faults;
mod under_test;

use node::mode;
use portway_dataplane::Driver;
use portway_dataplane::Settings;
use portway_model::Family;
use portway_nftables::Nftables;
use portway_nftables::commit::Kernel;
use portway_nftables::diff::diff;
use portway_nftables::fake::Fake;
use portway_nftables::table::{Name, Table};
use portway_testkit::cluster::{TestCluster, settings};
use portway_testkit::random::{Change, cases, changes, families, two_services};
use proptest::prelude::*;
use std::collections::BTreeMap;
use under_test::NftablesMode;

portway_testkit::mode_properties!(NftablesMode);

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn a_diff_turns_one_table_into_another(
        family in families(), before in changes(6), after in changes(6), from_nothing: bool,
    ) {
        let table = |changes: &[Change]| {
            let (mut cluster, mut settings) = (two_services(), settings());
            changes.iter().for_each(|change| change.make(&mut cluster, &mut settings));
            cluster.programmed(mode(family), &settings).program().kernel().list().unwrap().unwrap()
        };
        let (a, b) = (table(&before), table(&after));
        let mut kernel = Fake::default();
        *kernel.table_mut() = (!from_nothing).then(|| a.clone());
        let have = kernel.list().unwrap();
        let (tx, _) = diff(have.as_ref(), b.clone());
        kernel.commit(&tx).unwrap();
        prop_assert_eq!(kernel.list().unwrap(), Some(b.clone()));
        let (nothing, drift) = diff(Some(&b), b.clone());
        prop_assert!(nothing.is_empty(), "{}", nothing);
        prop_assert!(drift.is_empty(), "{}", drift);
    }
}

/// A table without the order of endpoints: the endpoints of each frontend, sorted.
#[derive(Debug, PartialEq, Eq)]
struct Unordered {
    rest: Table,
    endpoints: BTreeMap<Name, BTreeMap<Vec<u8>, Vec<String>>>,
}

/// Removes the order of endpoints from a table. Panics if the indices of a frontend have gaps.
fn unordered(mut table: Table) -> Unordered {
    let mut endpoints: BTreeMap<Name, BTreeMap<Vec<u8>, Vec<String>>> = BTreeMap::new();
    let indexed = |name: &Name| name.ends_with("endpoints") || name.starts_with("choice-");
    for name in table.elements.keys().filter(|n| indexed(n)).cloned().collect::<Vec<_>>() {
        let mut groups: BTreeMap<Vec<u8>, Vec<(u32, String)>> = BTreeMap::new();
        for element in table.elements.remove(&name).unwrap() {
            let (frontend, index) = element.key.as_slice().split_last_chunk::<4>().unwrap();
            let entry = (u32::from_ne_bytes(*index), format!("{:?}", element.data));
            groups.entry(frontend.to_vec()).or_default().push(entry);
        }
        for group in groups.values_mut() {
            group.sort();
            assert!(group.iter().enumerate().all(|(i, (n, _))| i as u32 == *n), "{name} has gaps: {group:?}");
        }
        let sorted = |group: Vec<(u32, String)>| {
            let mut targets: Vec<String> = group.into_iter().map(|(_, t)| t).collect();
            targets.sort();
            targets
        };
        endpoints.insert(name, groups.into_iter().map(|(k, g)| (k, sorted(g))).collect());
    }
    Unordered { rest: table, endpoints }
}

/// Asserts that the kernel holds exactly the objects that a mode which starts now would create.
fn assert_from_scratch(
    mode: &mut Driver<Nftables<Fake>>,
    cluster: &mut TestCluster,
    family: Family,
    settings: &Settings,
) {
    let mut fresh = cluster.programmed(self::mode(family), settings);
    let want = fresh.program().kernel().list().unwrap().unwrap();
    let have = mode.program().kernel().list().unwrap().unwrap();
    assert_eq!(unordered(have), unordered(want));
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
}
