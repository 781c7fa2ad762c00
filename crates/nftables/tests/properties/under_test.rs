//! The nftables mode on a fake kernel, for the properties that all modes share.

use crate::assert_from_scratch;
use crate::node::mode;
use portway_dataplane::Driver;
use portway_dataplane::{Report, Settings};
use portway_model::{Family, ServiceName, ServicePlan};
use portway_netlink::nft::{Data, Element, Key, Verdict};
use portway_nftables::Nftables;
use portway_nftables::commit::Kernel;
use portway_nftables::diff::Transaction;
use portway_nftables::fake::{ENOBUFS, Fake, Fault};
use portway_nftables::table::{Name, Table};
use portway_testkit::cluster::TestCluster;
use portway_testkit::properties::ModeUnderTest;
use proptest::prelude::*;
use proptest::sample::Index;

pub(crate) struct NftablesMode;

impl ModeUnderTest for NftablesMode {
    type Mode = Driver<Nftables<Fake>>;
    type Contents = Option<Table>;
    type Tampering = (u8, Index);

    const SETTINGS_NEED_A_LISTING: bool = false;

    fn open(family: Family, _: bool) -> Driver<Nftables<Fake>> {
        mode(family)
    }

    fn restart(running: &mut Driver<Nftables<Fake>>, _: bool) -> Driver<Nftables<Fake>> {
        let mut again = mode(running.family());
        *again.program().kernel() = running.program().kernel().clone();
        again
    }

    fn contents(mode: &mut Driver<Nftables<Fake>>) -> Option<Table> {
        mode.program().kernel().list().unwrap()
    }

    fn writes(mode: &mut Driver<Nftables<Fake>>) -> usize {
        mode.program().kernel().commits()
    }

    fn assert_from_scratch(
        mode: &mut Driver<Nftables<Fake>>,
        cluster: &mut TestCluster,
        settings: &Settings,
    ) {
        let family = mode.family();
        assert_from_scratch(mode, cluster, family, settings);
    }

    fn sync(
        mode: &mut Driver<Nftables<Fake>>,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Report {
        let before = mode.program().kernel().list().unwrap().unwrap();
        let commits = mode.program().kernel().commits();
        let report = mode.sync(settings, changes).unwrap();
        if mode.program().kernel().commits() > commits {
            assert_eq!(redundant(&before, mode.program().kernel().last()), None);
        }
        report
    }

    fn tamperings() -> BoxedStrategy<(u8, Index)> {
        (0..4u8, any::<Index>()).boxed()
    }

    fn tamper(mode: &mut Driver<Nftables<Fake>>, (kind, at): &(u8, Index)) {
        damage(mode.program().kernel().table_mut(), at, *kind);
    }

    fn fail(mode: &mut Driver<Nftables<Fake>>, kind: u8, _: usize) {
        match kind {
            0 | 1 => mode.program().kernel().fail(1, Fault::LoseAnswer),
            2 | 3 => mode.program().kernel().fail(1, Fault::Refuse(ENOBUFS)),
            _ => {}
        }
    }

    /// An injected fault may still be pending for the next commit; its error is ignored here.
    fn recover(mode: &mut Driver<Nftables<Fake>>, settings: &Settings) {
        let _ = mode.sync(settings, Vec::new());
        mode.mark_stale();
        let _ = mode.sync(settings, Vec::new());
    }

    fn is_injected(error: &str) -> bool {
        error.contains("injected fault") || error.contains("no answer")
    }
}

/// An object that a transaction adds though it exists. The kernel accepts it, but it makes the transaction longer and
/// can hide an error in the diff.
fn redundant(before: &Table, tx: &Transaction) -> Option<String> {
    let exists =
        |set: &Name, key: &Key| before.elements.get(set).is_some_and(|l| l.iter().any(|e| e.key == *key));
    let removed = |set: &Name, key: &Key| tx.delete.get(set).is_some_and(|l| l.iter().any(|e| e.key == *key));
    let added = tx.add.iter().flat_map(|(set, list)| list.iter().map(move |e| (set, &e.key)));
    let mut twice = added.filter(|(set, key)| exists(set, key) && !removed(set, key));
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

/// Deletes the table, a rule or an element, or adds a foreign element.
fn damage(table: &mut Option<Table>, at: &Index, kind: u8) {
    let Some(inner) = table.as_mut() else { return };
    match kind {
        0 => *table = None,
        1 => {
            let chains: Vec<Name> =
                inner.chains.iter().filter(|(_, c)| !c.rules.is_empty()).map(|(n, _)| n.clone()).collect();
            inner.chains.get_mut(at.get(&chains)).unwrap().rules.pop();
        }
        2 => {
            let sets: Vec<Name> =
                inner.elements.iter().filter(|(_, list)| !list.is_empty()).map(|(n, _)| n.clone()).collect();
            let list = inner.elements.get_mut(at.get(&sets)).unwrap();
            list.remove(at.index(list.len()));
        }
        _ => {
            let sets = [Name::from("hairpin"), Name::from("sticky-services")];
            let set = at.get(&sets);
            let key = inner.sets[set].key_len as usize;
            let data = (&**set == "sticky-services").then_some(Data::Verdict(Verdict::Drop));
            let element = Element { data, ..Element::key(Key::copy(&vec![0xee; key]).unwrap()) };
            inner.element(set, element);
            inner.normalize();
        }
    }
}
