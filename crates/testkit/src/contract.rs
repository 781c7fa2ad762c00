//! A test of the contract between agent and mode ([`portway_dataplane::Mode`], [`portway_dataplane::Backend`]), which
//! every mode has to pass. It programs the network namespace of the calling thread.

use crate::cluster::{TestCluster, service, settings};
use crate::objects::Endpoint;
use portway_dataplane::trace::{Host, Packet, Verdict};
use portway_dataplane::{Backend, Clear, Mode, OpenOptions, Outcome, PlanChanges, Report, Settings};
use portway_model::{Family, Protocol};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs the test.
///
/// # Panics
/// If the mode breaks the contract.
pub fn check(mode: &'static dyn Mode) {
    mode.check().expect("the host has everything that the mode needs");
    let settings = mode.settings(settings());
    let options = OpenOptions {
        families: &Family::ALL,
        settings: &settings,
        modes: &[mode],
        relaunch: Arc::new(|_| Command::new("false")),
    };
    let mut backend = mode.open(&options).expect("the mode opens");
    assert_eq!(backend.families(), Family::ALL, "{}", mode.name());
    syncs_converge(&mut *backend, &settings);
    no_drift_is_reported(&mut *backend);
    leftovers_are_cleared(mode, backend, &settings);
}

/// Syncs all families as the agent does.
fn sync(
    backend: &mut dyn Backend,
    settings: &Settings,
    changes: impl Fn(Family) -> PlanChanges,
) -> Vec<Report> {
    backend.sync_begins(Instant::now());
    let sync = |family| Outcome {
        family,
        took: Duration::from_millis(1),
        result: backend.sync(family, settings, changes(family)),
    };
    let outcomes: Vec<Outcome> = Family::ALL.map(sync).into();
    backend.sync_ended(&outcomes, Instant::now());
    outcomes.into_iter().map(|outcome| outcome.result.expect("a sync")).collect()
}

fn syncs_converge(backend: &mut dyn Backend, settings: &Settings) {
    let none = |_| Vec::new();
    let is_idle = |reports: &[Report]| reports.iter().all(|r| !r.changed() && r.drift.is_empty());
    let plans = |family| {
        let web = || service("web", 1).node_port(30001);
        TestCluster::new().service(web()).slice("web", &Endpoint::all(&["a", "c"])).all(family)
    };
    let first = sync(backend, settings, plans);
    assert!(first.iter().all(|r| r.full && r.changed()), "the first sync writes everything: {first:?}");
    let again = sync(backend, settings, plans);
    assert!(is_idle(&again), "equal plans write nothing: {again:?}");
    backend.mark_stale();
    let compared = sync(backend, settings, none);
    assert!(
        compared.iter().all(|r| r.full) && is_idle(&compared),
        "the kernel has the applied rules: {compared:?}"
    );
    for family in Family::ALL {
        let drift = backend.verify(family).expect("the kernel can be listed");
        assert!(drift.is_empty(), "{family}: {drift}");
    }
    let to_no_service = Packet {
        source: "192.0.2.1".parse().expect("an address"),
        destination: "192.0.2.2".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: 80,
        input: Some("eth0".into()),
    };
    let trace = backend.trace(&to_no_service, &Host::default()).expect("a trace");
    assert_eq!(trace.verdict(), Some(&Verdict::Untouched), "no Service has this address");
    let deleted = |family| plans(family).into_iter().map(|(name, _)| (name, None)).collect();
    sync(backend, settings, deleted);
    assert!(is_idle(&sync(backend, settings, none)));
}

fn no_drift_is_reported(backend: &mut dyn Backend) {
    assert!(backend.is_listening());
    let signal = backend.detect_drift(Instant::now());
    assert_eq!(signal, None, "no other process changed anything");
    backend.restart_drift_detection();
}

fn leftovers_are_cleared(mode: &dyn Mode, backend: Box<dyn Backend>, settings: &Settings) {
    let used = backend.locations();
    let all = mode.locations();
    for location in &used {
        assert!(
            all.contains(location),
            "{location} is used by the backend but is not a location of the mode"
        );
    }
    drop(backend);
    for location in all {
        let leftovers = || mode.clear(&location, Clear::List, settings).expect("leftovers can be listed");
        assert_eq!(!leftovers().is_empty(), used.contains(&location), "{location}: {:?}", leftovers());
        mode.clear(&location, Clear::Now, settings).expect("leftovers can be removed");
        assert!(leftovers().is_empty(), "{location}: {:?}", leftovers());
    }
}
