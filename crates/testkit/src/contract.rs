//! A test of the contract between agent and mode ([`portway_dataplane::Mode`], [`portway_dataplane::Backend`]), which
//! every mode has to pass. It programs the network namespace of the calling thread.

use crate::cluster::{TestCluster, address, own_addresses, service, settings};
use crate::objects::Endpoint;
use portway_dataplane::trace::{Host, Packet, Verdict};
use portway_dataplane::{
    Backend, Clear, Location, Mode, OpenOptions, Outcome, PlanChanges, Report, Settings,
};
use portway_model::{Family, Protocol, Target};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mode under test.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The mode.
    pub mode: &'static dyn Mode,
    /// All modes that the agent would know.
    pub modes: &'static [&'static dyn Mode],
    /// Makes the command that starts the program with a subcommand.
    pub relaunch: fn(&str) -> Command,
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject").field("mode", &self.mode.name()).finish_non_exhaustive()
    }
}

impl Subject {
    /// Lists or removes the objects in a location, through the mode that the location belongs to.
    fn clear(&self, location: &Location, how: Clear, settings: &Settings) -> Vec<String> {
        let has = |mode: &&&dyn Mode| mode.locations().contains(location);
        let mode = self.modes.iter().find(has).unwrap_or_else(|| panic!("no mode has location {location}"));
        mode.clear(location, how, settings).unwrap_or_else(|error| panic!("{location}: {error}"))
    }
}

/// Runs the test.
///
/// # Panics
/// If the mode breaks the contract.
pub fn check(subject: &Subject) {
    let mode = subject.mode;
    mode.check().expect("the host has everything that the mode needs");
    let mut settings = mode.settings(settings());
    settings.userspace.addresses = Family::ALL.map(|family| address(family, "node")).into();
    let options = OpenOptions {
        families: &Family::ALL,
        settings: &settings,
        modes: subject.modes,
        relaunch: Arc::new(subject.relaunch),
    };
    let mut backend = mode.open(&options).expect("the mode opens");
    assert_eq!(backend.families(), Family::ALL, "{}", mode.name());
    syncs_converge(&mut *backend, &settings);
    packets_are_traced(&mut *backend);
    drift_is_repaired(subject, &mut *backend, &settings);
    deletions_converge(&mut *backend, &settings);
    backend.stop(&settings);
    leftovers_are_cleared(subject, backend, &settings);
}

/// The plans of a Service with one endpoint on this node and one on another.
fn plans(family: Family) -> PlanChanges {
    let web = service("web", 1).node_port(30001);
    TestCluster::new().service(web).slice("web", &Endpoint::all(&["a", "c"])).all(family)
}

fn no_changes(_: Family) -> PlanChanges {
    Vec::new()
}

fn is_idle(reports: &[Report]) -> bool {
    reports.iter().all(|r| !r.changed() && r.drift.is_empty())
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
    let first = sync(backend, settings, plans);
    assert!(first.iter().all(|r| r.full && r.changed()), "the first sync writes everything: {first:?}");
    assert!(
        first.iter().all(|r| r.refused.is_empty() && r.degraded.is_empty()),
        "nothing is left out: {first:?}"
    );
    let again = sync(backend, settings, plans);
    assert!(is_idle(&again), "equal plans write nothing: {again:?}");
    backend.mark_stale();
    let compared = sync(backend, settings, no_changes);
    assert!(
        compared.iter().all(|r| r.full) && is_idle(&compared),
        "the kernel has the wanted rules: {compared:?}"
    );
    no_drift(backend);
    assert!(backend.is_listening());
    backend.restart_drift_detection();
    sync(backend, settings, no_changes);
    assert!(backend.is_listening(), "a sync starts the detection again");
}

fn matches_kernel(backend: &mut dyn Backend) {
    for family in Family::ALL {
        let drift = backend.verify(family).expect("the kernel can be listed");
        assert!(drift.is_empty(), "{family}: {drift}");
    }
}

fn no_drift(backend: &mut dyn Backend) {
    matches_kernel(backend);
    let signal = backend.detect_drift(Instant::now());
    assert_eq!(signal, None, "no other process changed anything");
}

fn packets_are_traced(backend: &mut dyn Backend) {
    // A mode without locations has no rules that a packet could meet.
    let has_rules = !backend.locations().is_empty();
    for family in Family::ALL {
        let address = |host| address(family, host);
        let host = Host::with_addresses(own_addresses(family));
        let mut trace = |destination| {
            let packet = Packet {
                source: address("client"),
                destination: address(destination),
                protocol: Protocol::Tcp,
                port: 80,
                input: Some("eth0".into()),
            };
            let trace = backend.trace(&packet, &host).expect("a trace");
            trace.verdict().cloned().unwrap_or_else(|| panic!("one verdict: {trace:?}"))
        };
        assert_eq!(trace("stranger"), Verdict::Untouched, "no Service has this address");
        let endpoints = ["a", "c"].map(|host| Target { ip: address(host), port: 8080 }).into();
        match trace("svc1") {
            Verdict::Delivered { to, .. } if has_rules => assert_eq!(to, endpoints),
            Verdict::Untouched if !has_rules => {}
            other => panic!("a packet to the cluster IP of a Service is {other:?}"),
        }
    }
}

/// Another process removes everything: the mode detects it, and the next sync restores it.
fn drift_is_repaired(subject: &Subject, backend: &mut dyn Backend, settings: &Settings) {
    let used = backend.locations();
    for location in &used {
        let listed = subject.clear(location, Clear::List, settings);
        assert!(!listed.is_empty(), "{location} {:?} has nothing to remove", location.id);
    }
    // In the order of the modes: rules refer to other objects.
    for location in subject.modes.iter().flat_map(|mode| mode.locations()).filter(|l| used.contains(l)) {
        subject.clear(&location, Clear::Now, settings);
    }
    if used.is_empty() {
        return no_drift(backend);
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while backend.detect_drift(Instant::now()).is_none() {
        assert!(Instant::now() < deadline, "removed rules are not detected");
        std::thread::sleep(Duration::from_millis(20));
    }
    let drift = backend.verify(Family::V4).expect("the kernel can be listed");
    assert!(!drift.is_empty(), "verify reports removed rules");
    backend.mark_stale();
    let repaired = sync(backend, settings, no_changes);
    assert!(repaired.iter().all(|r| r.full && !r.drift.is_empty()), "drift is repaired: {repaired:?}");
    matches_kernel(backend);
}

fn deletions_converge(backend: &mut dyn Backend, settings: &Settings) {
    let deleted = |family| plans(family).into_iter().map(|(name, _)| (name, None)).collect();
    sync(backend, settings, deleted);
    assert!(is_idle(&sync(backend, settings, no_changes)));
    matches_kernel(backend);
}

fn leftovers_are_cleared(subject: &Subject, backend: Box<dyn Backend>, settings: &Settings) {
    let used = backend.locations();
    drop(backend);
    for location in &used {
        let listed = subject.clear(location, Clear::List, settings);
        assert!(!listed.is_empty() || location.family.is_none(), "{location} has no leftovers");
    }
    for mode in subject.modes {
        for location in mode.locations() {
            subject.clear(&location, Clear::Now, settings);
            let left = subject.clear(&location, Clear::List, settings);
            assert!(left.is_empty(), "{location}: {left:?}");
        }
    }
}
