//! What always holds, whatever happens in the cluster and however often the kernel refuses.

#[path = "../node/mod.rs"]
mod node;

mod cost;
mod faults;

use node::mode;
use portway_dataplane::acts::{Act, act, acts, cases, families, play, start};
use portway_dataplane::world::{World, settings};
use portway_dataplane::{Dataplane, Settings};
use portway_model::Family;
use portway_netlink::nft::{Data, Element, Key};
use portway_nftables::Nftables;
use portway_nftables::commit::Kernel;
use portway_nftables::diff::{Transaction, diff};
use portway_nftables::fake::{ENOBUFS, Fake, Fault};
use portway_nftables::table::{Name, Table};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A table without the order of endpoints: by frontend, what its indices lead to. That indices have no gaps is
/// checked on the way.
#[derive(Debug, PartialEq, Eq)]
struct Unordered {
    rest: Table,
    endpoints: BTreeMap<Name, BTreeMap<Vec<u8>, Vec<String>>>,
}

fn unordered(mut table: Table) -> Unordered {
    let mut endpoints: BTreeMap<Name, BTreeMap<Vec<u8>, Vec<String>>> = BTreeMap::new();
    let indexed = |name: &Name| {
        (name.ends_with("endpoints") && !name.starts_with("no-")) || name.starts_with("choice-")
    };
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

/// The kernel holds what a mode that starts now would put there.
fn is_from_scratch(mode: &mut Nftables<Fake>, world: &mut World, family: Family, settings: &Settings) {
    let mut fresh = world.programmed(self::mode(family), settings);
    let want = fresh.kernel().list().unwrap().unwrap();
    let have = mode.kernel().list().unwrap().unwrap();
    assert_eq!(unordered(have), unordered(want));
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
}

/// Something a transaction adds though it is there: the kernel would take it, but it costs, and hides mistakes.
fn redundant(before: &Table, tx: &Transaction) -> Option<String> {
    let there =
        |set: &Name, key: &Key| before.elements.get(set).is_some_and(|l| l.iter().any(|e| e.key == *key));
    let leaves = |set: &Name, key: &Key| tx.delete.get(set).is_some_and(|l| l.iter().any(|e| e.key == *key));
    let added = tx.add.iter().flat_map(|(set, list)| list.iter().map(move |e| (set, &e.key)));
    let mut twice = added.filter(|(set, key)| there(set, key) && !leaves(set, key));
    let element = twice.next().map(|(set, key)| format!("element {key:?} of {set}"));
    let chain = tx
        .add_chains
        .iter()
        .find(|c| before.chains.contains_key(&c.name))
        .map(|c| format!("chain {}", c.name));
    let set =
        tx.add_sets.iter().find(|s| before.sets.contains_key(&s.name)).map(|s| format!("set {}", s.name));
    element.or(chain).or(set)
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn incremental_equals_from_scratch(
        family in families(),
        batches in prop::collection::vec(prop::collection::vec(act(), 1..4), 1..8),
    ) {
        let mut world = start();
        let mut settings = settings();
        let mut mode = world.programmed(mode(family), &settings);
        for batch in &batches {
            batch.iter().for_each(|act| play(&mut world, &mut settings, act));
            let before = mode.kernel().list().unwrap().unwrap();
            let commits = mode.kernel().commits();
            let report = mode.sync(&settings, world.changes(family)).unwrap();
            prop_assert!(!report.full && report.afterthoughts.is_empty(), "{:?}", report);
            if mode.kernel().commits() > commits {
                prop_assert_eq!(redundant(&before, mode.kernel().last()), None);
            }
            is_from_scratch(&mut mode, &mut world, family, &settings);
        }
    }

    #[test]
    fn a_diff_leads_from_one_to_the_other(
        family in families(), before in acts(6), after in acts(6), from_nothing: bool,
    ) {
        let table = |acts: &[Act]| {
            let (mut world, mut settings) = (start(), settings());
            acts.iter().for_each(|act| play(&mut world, &mut settings, act));
            world.programmed(mode(family), &settings).kernel().list().unwrap().unwrap()
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

    #[test]
    fn whatever_fails_the_next_sync_makes_good(
        family in families(),
        batches in prop::collection::vec((prop::collection::vec(act(), 1..3), prop::bool::ANY, prop::bool::ANY), 1..8),
    ) {
        let mut world = start();
        let mut settings = settings();
        let mut mode = mode(family);
        for (batch, fails, keeps_quiet) in &batches {
            batch.iter().for_each(|act| play(&mut world, &mut settings, act));
            if *fails {
                mode.kernel().fail(1, if *keeps_quiet { Fault::LoseAnswer } else { Fault::Refuse(ENOBUFS) });
            }
            if let Err(error) = mode.sync(&settings, world.changes(family)) {
                // Only what was told to fail does; a transaction that makes no sense would be refused otherwise.
                let words = error.to_string();
                prop_assert!(words.contains("do anything at all") || words.contains("no answer"), "{}", words);
            }
        }
        // A fault that was due may still be waiting for a commit.
        let _ = mode.sync(&settings, Vec::new());
        mode.distrust();
        let _ = mode.sync(&settings, Vec::new());
        mode.sync(&settings, Vec::new()).unwrap();
        is_from_scratch(&mut mode, &mut world, family, &settings);
    }

    #[test]
    fn damage_is_reported_and_repaired(
        family in families(), acts in acts(6), damage in any::<prop::sample::Index>(), what in 0..4u8,
    ) {
        let (mut world, mut settings) = (start(), settings());
        acts.iter().for_each(|act| play(&mut world, &mut settings, act));
        let mut mode = world.programmed(mode(family), &settings);
        damage_table(mode.kernel().table_mut(), &damage, what);
        let drift = mode.verify().unwrap();
        prop_assert!(!drift.is_empty());
        mode.distrust();
        let report = mode.sync(&settings, Vec::new()).unwrap();
        prop_assert_eq!(report.drift, drift);
        is_from_scratch(&mut mode, &mut world, family, &settings);
    }
}

/// What somebody else may do to our table.
fn damage_table(table: &mut Option<Table>, at: &prop::sample::Index, what: u8) {
    let Some(inner) = table.as_mut() else { return };
    match what {
        0 => *table = None,
        1 => {
            let chains: Vec<Name> =
                inner.chains.iter().filter(|(_, c)| !c.rules.is_empty()).map(|(n, _)| n.clone()).collect();
            inner.chains.get_mut(at.get(&chains)).unwrap().rules.pop();
        }
        2 => {
            let sets: Vec<Name> = inner.elements.keys().cloned().collect();
            let list = inner.elements.get_mut(at.get(&sets)).unwrap();
            list.remove(at.index(list.len()));
        }
        _ => {
            let sets = [Name::from("hairpin"), Name::from("sticky-services")];
            let set = at.get(&sets);
            let key = inner.sets[set].key_len as usize;
            let data =
                (&**set == "sticky-services").then_some(Data::Verdict(portway_netlink::nft::Verdict::Drop));
            let element = Element { data, ..Element::key(Key::copy(&vec![0xee; key]).unwrap()) };
            inner.element(set, element);
            inner.normalize();
        }
    }
}
