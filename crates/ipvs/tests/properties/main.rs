//! What always holds, whatever happens in the cluster, whoever else changes servers, and however often the kernel refuses.

#[path = "../node/mod.rs"]
mod node;

mod cost;
mod drain;
mod held;
mod others;
mod refused;

use held::held;
use node::{Mode, mode};
use others::{foreign, settle_others, tamper};
use portway_dataplane::acts::{act, acts, cases, families, play, start};
use portway_dataplane::world::{World, settings};
use portway_dataplane::{Dataplane, Settings};
use portway_model::Family;
use proptest::prelude::*;

/// The kernel holds of ours what a mode that starts now would put there.
fn is_from_scratch(mode: &mut Mode, world: &mut World, family: Family, settings: &Settings) {
    // Nobody in this kernel has connections, so what drains is done at once.
    assert!(!mode.hears_of_changes() && !mode.looks_different(), "nobody changed anything");
    let mut fresh = self::mode(family);
    fresh.sync(settings, world.all(family)).unwrap();
    let (ours, wanted) = (held(mode.kernel()), held(fresh.kernel()));
    let extra: Vec<&String> = ours.iter().filter(|line| !wanted.contains(line)).collect();
    let missing: Vec<&String> = wanted.iter().filter(|line| !ours.contains(line)).collect();
    assert!(extra.is_empty() && missing.is_empty(), "too much: {extra:#?}, missing: {missing:#?}");
    assert_eq!(mode.rules().kernel().tables().to_string(), fresh.rules().kernel().tables().to_string());
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
    assert_eq!(mode.kernel().resets, Vec::<String>::new());
}

/// A mode in a kernel in which others have servers.
fn among_others(family: Family) -> Mode {
    let mut mode = mode(family);
    settle_others(mode.kernel());
    mode
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn incremental_equals_from_scratch(
        family in families(),
        batches in prop::collection::vec(prop::collection::vec(act(), 1..4), 1..8),
    ) {
        let (mut world, mut settings) = (start(), settings());
        let mut mode = among_others(family);
        mode.sync(&settings, world.all(family)).unwrap();
        for batch in &batches {
            let known = settings.clone();
            batch.iter().for_each(|act| play(&mut world, &mut settings, act));
            let sent = mode.kernel().sent;
            let report = mode.sync(&settings, world.changes(family)).unwrap();
            prop_assert_eq!(report.full, known != settings, "only settings concern everything");
            prop_assert!(report.afterthoughts.is_empty() && report.refused.is_empty(), "{:?}", report);
            prop_assert!(report.drift.is_empty() && report.partial_failures == 0, "{:?}", report);
            if mode.kernel().sent == sent && !report.full {
                prop_assert_eq!((report.added, report.removed), (0, 0));
            }
            is_from_scratch(&mut mode, &mut world, family, &settings);
            prop_assert_eq!(foreign(mode.kernel()), foreign(among_others(family).kernel()));
        }
    }

    #[test]
    fn nothing_new_sends_nothing(family in families(), acts in acts(8)) {
        let (mut world, mut settings) = (start(), settings());
        acts.iter().for_each(|act| play(&mut world, &mut settings, act));
        let mut mode = among_others(family);
        mode.sync(&settings, world.all(family)).unwrap();
        let sent = mode.kernel().sent;
        let report = mode.sync(&settings, world.all(family)).unwrap();
        prop_assert_eq!((report.full, report.added, report.removed), (false, 0, 0));
        // Not even if we look, nor if we have just been started.
        mode.distrust();
        let report = mode.sync(&settings, Vec::new()).unwrap();
        prop_assert_eq!((report.full, report.added, report.removed), (true, 0, 0));
        prop_assert!(report.drift.is_empty(), "{}", report.drift);
        let mut again = self::mode(family);
        *again.kernel() = mode.kernel().clone();
        *again.rules().kernel() = mode.rules().kernel().clone();
        again.sync(&settings, world.all(family)).unwrap();
        prop_assert_eq!(again.kernel().sent, sent);
        prop_assert_eq!(&again.kernel().servers, &mode.kernel().servers, "the marks are the same");
    }

    #[test]
    fn what_others_do_is_noticed_reported_and_repaired(
        family in families(), acts in acts(6), tampers in prop::collection::vec(tamper(), 1..3),
        later in acts(3),
    ) {
        let (mut world, mut settings) = (start(), settings());
        acts.iter().for_each(|act| play(&mut world, &mut settings, act));
        let mut mode = among_others(family);
        mode.sync(&settings, world.all(family)).unwrap();
        let before = mode.kernel().clone();
        tampers.iter().for_each(|t| t.apply(mode.kernel(), family));
        let differs = held(mode.kernel()) != held(&before);
        let drift = mode.verify().unwrap();
        prop_assert_eq!(drift.is_empty(), !differs, "{}", drift);
        let noticed = mode.hears_of_changes() | mode.looks_different();
        prop_assert_eq!(noticed, differs, "{}", drift);
        mode.distrust();
        let report = mode.sync(&settings, Vec::new()).unwrap();
        prop_assert_eq!(&report.drift, &drift);
        prop_assert_eq!(held(mode.kernel()), held(&before));
        prop_assert_eq!(foreign(mode.kernel()), foreign(&before));
        mode.kernel().resets.clear();
        // And from there on changes are changes again.
        later.iter().for_each(|act| play(&mut world, &mut settings, act));
        mode.sync(&settings, world.changes(family)).unwrap();
        is_from_scratch(&mut mode, &mut world, family, &settings);
    }

    #[test]
    fn whatever_fails_the_next_sync_makes_good(
        family in families(),
        batches in prop::collection::vec((prop::collection::vec(act(), 1..3), prop::option::of(0..60usize)), 1..8),
    ) {
        let (mut world, mut settings) = (start(), settings());
        let mut mode = among_others(family);
        for (batch, fails) in &batches {
            batch.iter().for_each(|act| play(&mut world, &mut settings, act));
            mode.kernel().recover();
            if let Some(after) = fails {
                mode.kernel().fail_after(*after);
            }
            if let Err(error) = mode.sync(&settings, world.changes(family)) {
                let words = error.to_string();
                prop_assert!(words.contains("Cannot allocate memory"), "{}", words);
            }
            prop_assert_eq!(&mode.kernel().resets, &Vec::<String>::new());
        }
        mode.kernel().recover();
        let report = mode.sync(&settings, Vec::new()).unwrap();
        prop_assert!(report.drift.is_empty(), "our own failure is nobody's tampering: {}", report.drift);
        is_from_scratch(&mut mode, &mut world, family, &settings);
    }
}
