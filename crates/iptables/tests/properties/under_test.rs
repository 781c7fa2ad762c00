//! The iptables mode as a [`ModeUnderTest`] of the shared property tests.

use crate::assert_from_scratch;
use crate::node::mode;
use crate::proxy_rules::{FIREWALL, ProxyRules, add_foreign_rules, foreign, proxy_rules};
use crate::tamper::{Tamper, tamper};
use portway_dataplane::{Report, Settings};
use portway_iptables::Iptables;
use portway_model::{Family, ServiceName, ServicePlan};
use portway_testkit::cluster::TestCluster;
use portway_testkit::properties::ModeUnderTest;
use portway_xtables::Variant;
use portway_xtables::chains::Table;
use portway_xtables::fake::{Fake, Fault, Tables};
use proptest::prelude::*;

pub(crate) struct IptablesMode;

fn variant(nft: bool) -> Variant {
    if nft { Variant::Nft } else { Variant::Legacy }
}

/// The mode in a kernel that has rules of other programs.
pub(crate) fn mode_with_foreign_rules(family: Family, variant: Variant) -> Iptables<Fake> {
    let mut mode = mode(family, variant);
    add_foreign_rules(mode.program().kernel(), family);
    mode
}

impl ModeUnderTest for IptablesMode {
    type Mode = Iptables<Fake>;
    type Contents = ProxyRules;
    type Tampering = Tamper;

    const SETTINGS_NEED_A_LISTING: bool = true;

    fn open(family: Family, nft: bool) -> Iptables<Fake> {
        mode_with_foreign_rules(family, variant(nft))
    }

    fn restart(running: &mut Iptables<Fake>, nft: bool) -> Iptables<Fake> {
        let mut again = mode(running.family(), variant(nft));
        *again.program().kernel() = running.program().kernel().clone();
        again
    }

    fn contents(mode: &mut Iptables<Fake>) -> ProxyRules {
        proxy_rules(mode.program().kernel().tables())
    }

    fn foreign(mode: &mut Iptables<Fake>) -> Vec<String> {
        foreign(mode.program().kernel().tables())
    }

    fn writes(mode: &mut Iptables<Fake>) -> usize {
        mode.program().kernel().restores()
    }

    fn assert_from_scratch(mode: &mut Iptables<Fake>, cluster: &mut TestCluster, settings: &Settings) {
        let family = mode.family();
        assert_from_scratch(mode, cluster, family, settings);
    }

    fn sync(
        mode: &mut Iptables<Fake>,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Report {
        let before = mode.program().kernel().tables().clone();
        let restores = mode.program().kernel().restores();
        let report = mode.sync(settings, changes).unwrap();
        let sent = mode.program().kernel().restores() > restores;
        let (after, script) =
            (mode.program().kernel().tables().clone(), mode.program().kernel().last().to_owned());
        assert_eq!(sent, before != after, "a script is sent only if it changes the tables");
        if sent {
            assert_eq!(rewritten_unchanged(&before, &after, &script), None, "{script}");
        }
        assert_counts(&report, &after, sent.then_some(&script));
        report
    }

    fn tamperings() -> BoxedStrategy<Tamper> {
        tamper().boxed()
    }

    fn tamper(mode: &mut Iptables<Fake>, tampering: &Tamper) {
        tampering.apply(mode.program().kernel().tables_mut());
    }

    fn fail(mode: &mut Iptables<Fake>, kind: u8, after: usize) {
        match kind {
            0 => mode.program().kernel().fail(1, Fault::Refuse),
            1 => mode.program().kernel().fail(1, Fault::DieAfter(after)),
            2 => mode.program().kernel().fail(2, Fault::DieAfter(after)),
            3 => mode.program().kernel().lock(1),
            4 => mode.program().kernel().fail_saves(1),
            _ => {}
        }
    }

    fn recover(mode: &mut Iptables<Fake>, _: &Settings) {
        mode.program().kernel().recover();
    }

    fn is_injected(error: &str) -> bool {
        ["temporarily unavailable", "ended early", "xtables lock"].iter().any(|text| error.contains(text))
    }
}

/// A chain that a script rewrites with the same rules. The tool accepts that, but it is unnecessary work, and hides
/// bugs.
fn rewritten_unchanged(before: &Tables, after: &Tables, script: &str) -> Option<String> {
    let mut table = None;
    script.lines().find_map(|line| {
        table = line.strip_prefix('*').and_then(Table::parse).or(table);
        let chain = line.strip_prefix(':')?.split(' ').next()?;
        let rules = before.rules(table?, chain)?;
        (chain != FIREWALL && after.rules(table?, chain) == Some(rules)).then(|| chain.to_owned())
    })
}

/// Asserts that the numbers of rules in a report are those in the kernel and in the script.
fn assert_counts(report: &Report, tables: &Tables, script: Option<&String>) {
    let in_kernel = proxy_rules(tables);
    for (table, name) in [(Table::Nat, "nat"), (Table::Filter, "filter")] {
        let reported = report.tables.iter().find(|t| t.table == name).unwrap();
        assert_eq!(reported.total, in_kernel.rules(table), "rules in {name}");
    }
    let adds = |line: &&str| line.starts_with("-A ") || line.starts_with("-I ");
    let written = script.map_or(0, |script| script.lines().filter(adds).count());
    assert_eq!(report.added, written);
    assert_eq!(report.tables.iter().map(|t| t.written).sum::<usize>(), written);
}
