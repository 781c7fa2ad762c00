//! Properties that every mode has after any [random changes](crate::random) of the cluster, any changes that other
//! processes make to its objects, and any failures of the kernel.
//!
//! A mode is described by a [`ModeUnderTest`]; [`mode_properties!`](crate::mode_properties) generates the tests.

use crate::cluster::{TestCluster, settings};
use crate::mode::FamilyMode;
use crate::random::{Change, two_services};
use portway_dataplane::{Report, Settings};
use portway_model::{Family, ServiceName, ServicePlan};
use proptest::strategy::BoxedStrategy;
use std::fmt::Debug;

/// How a mode is opened over a fake kernel, how the kernel is read, and how it fails.
pub trait ModeUnderTest {
    /// The mode over its fake kernel.
    type Mode: FamilyMode;
    /// The objects of the mode in the kernel, in a form that can be compared.
    type Contents: PartialEq + Debug;
    /// A change that another process makes to these objects.
    type Tampering: Debug;

    /// Whether the mode lists the kernel after a change of settings.
    const SETTINGS_NEED_A_LISTING: bool;

    /// Opens the mode over a fake kernel that has objects of other programs. `variant` chooses between two variants of
    /// the mode.
    fn open(family: Family, variant: bool) -> Self::Mode;

    /// Opens the mode again, over a copy of the kernel of a running one.
    fn restart(mode: &mut Self::Mode, variant: bool) -> Self::Mode;

    /// The objects of the mode.
    fn contents(mode: &mut Self::Mode) -> Self::Contents;

    /// The objects of other programs.
    fn foreign(_: &mut Self::Mode) -> Vec<String> {
        Vec::new()
    }

    /// How often the kernel was written to.
    fn writes(mode: &mut Self::Mode) -> usize;

    /// Asserts that the kernel holds exactly the objects that a mode which starts now would create.
    fn assert_from_scratch(mode: &mut Self::Mode, cluster: &mut TestCluster, settings: &Settings);

    /// Syncs, and asserts properties of a sync that only this mode has.
    fn sync(
        mode: &mut Self::Mode,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Report {
        mode.sync(settings, changes).unwrap()
    }

    /// The changes that another process may make.
    fn tamperings() -> BoxedStrategy<Self::Tampering>;

    /// Makes such a change.
    fn tamper(mode: &mut Self::Mode, tampering: &Self::Tampering);

    /// Whether the mode has detected, without a listing, that its objects were changed; none if it cannot detect that.
    fn notices(_: &mut Self::Mode) -> Option<bool> {
        None
    }

    /// Called after the test has seen that a sync repaired the objects.
    fn repaired(_: &mut Self::Mode) {}

    /// Makes the kernel fail during the next sync; two random numbers determine how, and whether it fails at all.
    fn fail(mode: &mut Self::Mode, kind: u8, after: usize);

    /// Ends all failures.
    fn recover(mode: &mut Self::Mode, settings: &Settings);

    /// Whether an error is one that [`ModeUnderTest::fail`] causes.
    fn is_injected(error: &str) -> bool;
}

/// A mode that has programmed a cluster after some changes.
fn programmed<M: ModeUnderTest>(
    family: Family,
    variant: bool,
    changes: &[Change],
) -> (M::Mode, TestCluster, Settings) {
    let (mut cluster, mut settings) = (two_services(), settings());
    changes.iter().for_each(|change| change.make(&mut cluster, &mut settings));
    let mut mode = M::open(family, variant);
    mode.sync(&settings, cluster.all(family)).unwrap();
    (mode, cluster, settings)
}

/// After every batch of changes the kernel is as if the mode had just started.
pub fn incremental_equals_from_scratch<M: ModeUnderTest>(
    family: Family,
    variant: bool,
    batches: &[Vec<Change>],
) {
    let (mut mode, mut cluster, mut settings) = programmed::<M>(family, variant, &[]);
    let foreign = M::foreign(&mut mode);
    for batch in batches {
        let known = settings.clone();
        batch.iter().for_each(|change| change.make(&mut cluster, &mut settings));
        let report = M::sync(&mut mode, &settings, cluster.changes(family));
        assert_eq!(report.full, M::SETTINGS_NEED_A_LISTING && known != settings, "{report:?}");
        assert!(report.warnings.is_empty() && report.refused.is_empty(), "{report:?}");
        assert!(report.drift.is_empty() && report.partial_failures == 0, "{report:?}");
        M::assert_from_scratch(&mut mode, &mut cluster, &settings);
        assert_eq!(M::foreign(&mut mode), foreign);
    }
}

/// Plans that did not change are not written: not by a sync, nor by a comparison with the kernel, nor after a restart.
pub fn unchanged_plans_write_nothing<M: ModeUnderTest>(family: Family, variant: bool, changes: &[Change]) {
    let (mut mode, mut cluster, settings) = programmed::<M>(family, variant, changes);
    let writes = M::writes(&mut mode);
    let report = mode.sync(&settings, cluster.all(family)).unwrap();
    assert_eq!((report.full, report.added, report.removed), (false, 0, 0));
    mode.mark_stale();
    let report = mode.sync(&settings, Vec::new()).unwrap();
    assert_eq!((report.full, report.added, report.removed), (true, 0, 0));
    assert!(report.drift.is_empty(), "{}", report.drift);
    let mut again = M::restart(&mut mode, variant);
    again.sync(&settings, cluster.all(family)).unwrap();
    assert_eq!(M::writes(&mut again), writes);
    assert_eq!(M::contents(&mut again), M::contents(&mut mode));
}

/// Changes that other processes make to the mode's objects are found, reported and repaired; objects of other programs
/// are not changed.
pub fn tampering_is_reported_and_repaired<M: ModeUnderTest>(
    family: Family,
    variant: bool,
    changes: &[Change],
    tamperings: &[M::Tampering],
    later: &[Change],
) {
    let (mut mode, mut cluster, mut settings) = programmed::<M>(family, variant, changes);
    let before = M::contents(&mut mode);
    tamperings.iter().for_each(|tampering| M::tamper(&mut mode, tampering));
    let differs = M::contents(&mut mode) != before;
    let foreign = M::foreign(&mut mode);
    let drift = mode.verify().unwrap();
    assert_eq!(drift.is_empty(), !differs, "{drift}");
    if let Some(noticed) = M::notices(&mut mode) {
        assert_eq!(noticed, differs, "{drift}");
    }
    let writes = M::writes(&mut mode);
    mode.mark_stale();
    let report = mode.sync(&settings, Vec::new()).unwrap();
    assert_eq!(report.drift, drift);
    assert_eq!(M::writes(&mut mode) > writes, differs, "{drift}");
    assert_eq!(M::contents(&mut mode), before);
    assert_eq!(M::foreign(&mut mode), foreign);
    M::repaired(&mut mode);
    // Later changes are incremental again.
    later.iter().for_each(|change| change.make(&mut cluster, &mut settings));
    mode.sync(&settings, cluster.changes(family)).unwrap();
    M::assert_from_scratch(&mut mode, &mut cluster, &settings);
    assert_eq!(M::foreign(&mut mode), foreign);
}

/// After syncs that failed, the next one that succeeds programs everything, and reports no drift.
pub fn failed_syncs_are_completed_by_the_next<M: ModeUnderTest>(
    family: Family,
    variant: bool,
    batches: &[(Vec<Change>, u8, usize)],
) {
    let (mut cluster, mut settings) = (two_services(), settings());
    let mut mode = M::open(family, variant);
    let foreign = M::foreign(&mut mode);
    for (batch, kind, after) in batches {
        batch.iter().for_each(|change| change.make(&mut cluster, &mut settings));
        M::fail(&mut mode, *kind, *after);
        if let Err(error) = mode.sync(&settings, cluster.changes(family)) {
            // Any other error means that the mode built an invalid transaction.
            let text = error.to_string();
            assert!(M::is_injected(&text), "{text}");
        }
        assert_eq!(M::foreign(&mut mode), foreign);
    }
    M::recover(&mut mode, &settings);
    let report = mode.sync(&settings, Vec::new()).unwrap();
    assert!(report.drift.is_empty(), "a failed sync is not drift: {}", report.drift);
    M::assert_from_scratch(&mut mode, &mut cluster, &settings);
}

/// The tests of all properties, for one [`ModeUnderTest`].
#[macro_export]
macro_rules! mode_properties {
    ($mode:ty) => {
        $crate::proptest::proptest! {
            #![proptest_config($crate::random::cases(96))]

            #[test]
            fn incremental_equals_from_scratch(
                family in $crate::random::families(),
                variant: bool,
                batches in $crate::random::batches(4, 8),
            ) {
                $crate::properties::incremental_equals_from_scratch::<$mode>(family, variant, &batches);
            }

            #[test]
            fn unchanged_plans_write_nothing(
                family in $crate::random::families(),
                variant: bool,
                changes in $crate::random::changes(8),
            ) {
                $crate::properties::unchanged_plans_write_nothing::<$mode>(family, variant, &changes);
            }

            #[test]
            fn tampering_is_reported_and_repaired(
                family in $crate::random::families(),
                variant: bool,
                changes in $crate::random::changes(6),
                tamperings in $crate::proptest::collection::vec(
                    <$mode as $crate::properties::ModeUnderTest>::tamperings(),
                    1..3,
                ),
                later in $crate::random::changes(3),
            ) {
                $crate::properties::tampering_is_reported_and_repaired::<$mode>(
                    family, variant, &changes, &tamperings, &later,
                );
            }

            #[test]
            fn failed_syncs_are_completed_by_the_next(
                family in $crate::random::families(),
                variant: bool,
                batches in $crate::random::batches_with_faults(),
            ) {
                $crate::properties::failed_syncs_are_completed_by_the_next::<$mode>(family, variant, &batches);
            }
        }
    };
}
