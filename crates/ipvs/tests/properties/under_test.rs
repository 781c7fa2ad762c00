//! The ipvs mode as the properties test it.

use crate::contents::contents;
use crate::foreign::{Tamper, add_foreign_servers, foreign_servers, tamper};
use crate::node::{Mode, mode};
use crate::restarted;
use portway_dataplane::{Report, Settings};
use portway_ipvs::drift::sample;
use portway_model::{Family, ServiceName, ServicePlan};
use portway_testkit::cluster::TestCluster;
use portway_testkit::properties::ModeUnderTest;
use proptest::prelude::*;

pub(crate) struct IpvsMode;

impl ModeUnderTest for IpvsMode {
    type Mode = Mode;
    type Contents = Vec<String>;
    type Tampering = Tamper;

    const SETTINGS_NEED_A_LISTING: bool = true;

    fn open(family: Family, _: bool) -> Mode {
        let mut mode = mode(family);
        add_foreign_servers(mode.program().kernel());
        mode
    }

    fn restart(running: &mut Mode, _: bool) -> Mode {
        let family = running.family();
        restarted(running, family)
    }

    fn contents(mode: &mut Mode) -> Vec<String> {
        contents(mode.program().kernel())
    }

    fn foreign(mode: &mut Mode) -> Vec<String> {
        foreign_servers(mode.program().kernel()).iter().map(|server| format!("{server:?}")).collect()
    }

    fn writes(mode: &mut Mode) -> usize {
        mode.program().kernel().sent
    }

    fn assert_from_scratch(mode: &mut Mode, cluster: &mut TestCluster, settings: &Settings) {
        // The fake kernel has no connections, so an endpoint that is removed does not drain.
        assert!(!mode.program().addresses_changed() && !sample(mode), "no other process changed anything");
        let mut fresh = self::mode(mode.family());
        fresh.sync(settings, cluster.all(mode.family())).unwrap();
        let (listed, wanted) = (contents(mode.program().kernel()), contents(fresh.program().kernel()));
        let extra: Vec<&String> = listed.iter().filter(|line| !wanted.contains(line)).collect();
        let missing: Vec<&String> = wanted.iter().filter(|line| !listed.contains(line)).collect();
        assert!(extra.is_empty() && missing.is_empty(), "extra: {extra:#?}, missing: {missing:#?}");
        assert_eq!(
            mode.program().rules().program().kernel().tables().to_string(),
            fresh.program().rules().program().kernel().tables().to_string()
        );
        let drift = mode.verify().unwrap();
        assert!(drift.is_empty(), "{drift}");
        assert_eq!(mode.program().kernel().resets, Vec::<String>::new());
    }

    fn sync(
        mode: &mut Mode,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Report {
        let sent = mode.program().kernel().sent;
        let report = mode.sync(settings, changes).unwrap();
        if mode.program().kernel().sent == sent && !report.full {
            assert_eq!((report.added, report.removed), (0, 0));
        }
        report
    }

    fn tamperings() -> BoxedStrategy<Tamper> {
        tamper().boxed()
    }

    fn tamper(mode: &mut Mode, tampering: &Tamper) {
        let family = mode.family();
        tampering.apply(mode.program().kernel(), family);
    }

    fn notices(mode: &mut Mode) -> Option<bool> {
        Some(mode.program().addresses_changed() | sample(mode))
    }

    /// Repairing objects that another process removed may reset connections; a sync may not.
    fn repaired(mode: &mut Mode) {
        mode.program().kernel().resets.clear();
    }

    fn fail(mode: &mut Mode, kind: u8, after: usize) {
        assert_eq!(mode.program().kernel().resets, Vec::<String>::new());
        mode.program().kernel().recover();
        if kind < 3 {
            mode.program().kernel().fail_after(after);
        }
    }

    fn recover(mode: &mut Mode, _: &Settings) {
        mode.program().kernel().recover();
    }

    fn is_injected(error: &str) -> bool {
        error.contains("Cannot allocate memory")
    }
}
