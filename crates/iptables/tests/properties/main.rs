//! What always holds, whatever happens in the cluster, whoever else changes rules, and however often the tool refuses.

#[path = "../node/mod.rs"]
mod node;

mod cost;
mod faults;
mod leftovers;
mod ours;
mod tamper;

use node::mode;
use ours::{foreign, ours, settle_others};
use portway_dataplane::acts::{act, acts, cases, families, play, start};
use portway_dataplane::world::{World, settings};
use portway_dataplane::{Dataplane, Report, Settings};
use portway_iptables::chains::Table;
use portway_iptables::fake::{Fake, Fault, Tables};
use portway_iptables::{Iptables, Variant};
use portway_model::Family;
use proptest::prelude::*;
use tamper::tamper;

/// The kernel holds of ours what a mode that starts now would put there.
fn is_from_scratch(mode: &mut Iptables<Fake>, world: &mut World, family: Family, settings: &Settings) {
    let mut fresh = self::mode(family, Variant::Legacy);
    // What was routed before is not for us to say.
    fresh.kernel().route_localnet = Some(false);
    fresh.sync(settings, world.all(family)).unwrap();
    assert_eq!(ours(mode.kernel().tables()), ours(fresh.kernel().tables()));
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
}

/// A mode in a kernel in which others have rules.
fn among_others(family: Family, variant: Variant) -> (Iptables<Fake>, Vec<String>) {
    let mut mode = mode(family, variant);
    settle_others(mode.kernel(), family);
    let others = foreign(mode.kernel().tables());
    (mode, others)
}

/// A chain that a script fills anew though it was as it should be: the tool would take it, but it costs, and hides
/// mistakes.
fn redundant(before: &Tables, after: &Tables, script: &str) -> Option<String> {
    let mut table = None;
    script.lines().find_map(|line| {
        table = line.strip_prefix('*').and_then(Table::parse).or(table);
        let chain = line.strip_prefix(':')?.split(' ').next()?;
        let there = before.rules(table?, chain)?;
        (chain != ours::FIREWALL && after.rules(table?, chain) == Some(there)).then(|| chain.to_owned())
    })
}

/// The figures in a report are those of the kernel.
fn counts(report: &Report, tables: &Tables, script: Option<&str>) {
    let ours = ours(tables);
    for (table, name) in [(Table::Nat, "nat"), (Table::Filter, "filter")] {
        let said = report.tables.iter().find(|t| t.table == name).unwrap();
        assert_eq!(said.total, ours.rules(table), "rules in {name}");
    }
    let adds = |line: &&str| line.starts_with("-A ") || line.starts_with("-I ");
    let written = script.map_or(0, |script| script.lines().filter(adds).count());
    assert_eq!(report.added, written);
    assert_eq!(report.tables.iter().map(|t| t.written).sum::<usize>(), written);
}

fn variants() -> impl Strategy<Value = Variant> {
    prop_oneof![Just(Variant::Legacy), Just(Variant::Nft)]
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn incremental_equals_from_scratch(
        family in families(), variant in variants(),
        batches in prop::collection::vec(prop::collection::vec(act(), 1..4), 1..8),
    ) {
        let mut world = start();
        let mut settings = settings();
        let (mut mode, others) = among_others(family, variant);
        mode.sync(&settings, world.all(family)).unwrap();
        for batch in &batches {
            let known = settings.clone();
            batch.iter().for_each(|act| play(&mut world, &mut settings, act));
            let before = mode.kernel().tables().clone();
            let restores = mode.kernel().restores();
            let report = mode.sync(&settings, world.changes(family)).unwrap();
            prop_assert_eq!(report.full, known != settings, "only settings concern everything");
            prop_assert!(report.afterthoughts.is_empty() && report.refused.is_empty(), "{:?}", report);
            prop_assert!(report.drift.is_empty() && report.partial_failures == 0, "{:?}", report);
            let sent = mode.kernel().restores() > restores;
            let (after, script) = (mode.kernel().tables().clone(), mode.kernel().last().to_owned());
            prop_assert_eq!(sent, before != after, "a script that changes nothing");
            if sent {
                prop_assert_eq!(redundant(&before, &after, &script), None, "{}", script);
            }
            counts(&report, &after, sent.then_some(&script));
            is_from_scratch(&mut mode, &mut world, family, &settings);
            prop_assert_eq!(&foreign(&after), &others);
        }
    }

    #[test]
    fn nothing_new_sends_nothing(family in families(), variant in variants(), acts in acts(8)) {
        let (mut world, mut settings) = (start(), settings());
        acts.iter().for_each(|act| play(&mut world, &mut settings, act));
        let (mut mode, _) = among_others(family, variant);
        mode.sync(&settings, world.all(family)).unwrap();
        let restores = mode.kernel().restores();
        let report = mode.sync(&settings, world.all(family)).unwrap();
        prop_assert_eq!((report.full, report.added, report.removed), (false, 0, 0));
        // Not even if we look, nor if we have just been started.
        mode.distrust();
        let report = mode.sync(&settings, Vec::new()).unwrap();
        prop_assert_eq!((report.full, report.added, report.removed), (true, 0, 0));
        prop_assert!(report.drift.is_empty(), "{}", report.drift);
        let mut again = self::mode(family, variant);
        *again.kernel() = mode.kernel().clone();
        again.sync(&settings, world.all(family)).unwrap();
        prop_assert_eq!(again.kernel().restores(), restores, "{}", again.kernel().last());
    }

    #[test]
    fn what_others_do_to_our_rules_is_reported_and_repaired(
        family in families(), variant in variants(), acts in acts(6),
        tampers in prop::collection::vec(tamper(), 1..3), later in acts(3),
    ) {
        let (mut world, mut settings) = (start(), settings());
        acts.iter().for_each(|act| play(&mut world, &mut settings, act));
        let (mut mode, _) = among_others(family, variant);
        mode.sync(&settings, world.all(family)).unwrap();
        let before = ours(mode.kernel().tables());
        tampers.iter().for_each(|t| t.apply(mode.kernel().tables_mut()));
        let differs = ours(mode.kernel().tables()) != before;
        let others = foreign(mode.kernel().tables());
        let drift = mode.verify().unwrap();
        prop_assert_eq!(drift.is_empty(), !differs, "{}", drift);
        let restores = mode.kernel().restores();
        mode.distrust();
        let report = mode.sync(&settings, Vec::new()).unwrap();
        prop_assert_eq!(&report.drift, &drift);
        prop_assert_eq!(mode.kernel().restores() > restores, differs, "{}", mode.kernel().last());
        prop_assert_eq!(ours(mode.kernel().tables()), before);
        prop_assert_eq!(&foreign(mode.kernel().tables()), &others);
        // And from there on changes are changes again.
        later.iter().for_each(|act| play(&mut world, &mut settings, act));
        mode.sync(&settings, world.changes(family)).unwrap();
        is_from_scratch(&mut mode, &mut world, family, &settings);
        prop_assert_eq!(&foreign(mode.kernel().tables()), &others);
    }

    #[test]
    fn whatever_fails_the_next_sync_makes_good(
        family in families(), variant in variants(),
        batches in prop::collection::vec((prop::collection::vec(act(), 1..3), 0..6u8, 0..40usize), 1..8),
    ) {
        let mut world = start();
        let mut settings = settings();
        let (mut mode, others) = among_others(family, variant);
        for (batch, what, lines) in &batches {
            batch.iter().for_each(|act| play(&mut world, &mut settings, act));
            match what {
                0 => mode.kernel().fail(1, Fault::Refuse),
                1 => mode.kernel().fail(1, Fault::DieAfter(*lines)),
                2 => mode.kernel().fail(2, Fault::DieAfter(*lines)),
                3 => mode.kernel().lock(1),
                4 => mode.kernel().fail_saves(1),
                _ => {}
            }
            if let Err(error) = mode.sync(&settings, world.changes(family)) {
                // Only what was told to fail does; a script that makes no sense would be refused otherwise.
                let words = error.to_string();
                let told = ["temporarily unavailable", "ended early", "xtables lock"];
                prop_assert!(told.iter().any(|t| words.contains(t)), "{}", words);
            }
            prop_assert_eq!(&foreign(mode.kernel().tables()), &others);
        }
        mode.kernel().recover();
        let report = mode.sync(&settings, Vec::new()).unwrap();
        prop_assert!(report.drift.is_empty(), "our own failure is nobody's tampering: {}", report.drift);
        is_from_scratch(&mut mode, &mut world, family, &settings);
    }
}
