//! The running mode: opens it, syncs it in every family, detects drift, and removes leftovers of other modes.

use super::leftovers;
use crate::config::{Config, LogFormat, Logging};
use crate::modes::{LocalhostNodePorts, MODES};
use portway_dataplane::{
    Backend, CounterSource, DriftSignal, Error, Mode, OpenOptions, Outcome, Settings, Wake,
};
use portway_model::{Family, ServiceChange};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The time between attempts to remove the leftovers of other modes.
const RETRY_LEFTOVERS: Duration = Duration::from_secs(10);

/// One mode, in every family that the kernel has.
#[derive(Debug)]
pub(crate) struct Backends {
    mode: ModeRef,
    backend: Box<dyn Backend>,
    woken: Arc<Notify>,
    /// When to remove leftovers of other modes; `None` once there are none.
    leftovers_due: Option<Instant>,
    /// The kinds of errors about leftovers that were logged as a warning, so that an error that lasts for hours is
    /// logged once.
    logged_errors: Vec<std::mem::Discriminant<Error>>,
    /// This mode's rules are in force.
    in_force: bool,
    /// Another proxy runs: what looks like leftovers may be its rules.
    has_rival: bool,
}

/// A mode of the registry.
#[derive(Clone, Copy)]
struct ModeRef(&'static dyn Mode);

impl std::fmt::Debug for ModeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

/// The families that this kernel has and that are not switched off.
fn families() -> Vec<Family> {
    let disabled = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let disabled = disabled.is_ok_and(|value| value.trim() == "1");
    let v6 = Path::new("/proc/net/if_inet6").exists() && !disabled;
    if v6 { Family::ALL.to_vec() } else { vec![Family::V4] }
}

impl Backends {
    /// Opens the configured mode. Fails if the host does not support it or the process lacks the privilege.
    pub(crate) fn open(config: &Config, settings: &Settings) -> Result<Backends, Error> {
        let families = families();
        if !families.contains(&Family::V6) {
            tracing::info!("this kernel has no IPv6, or it is off: only IPv4 is programmed");
        }
        let mode = config.mode();
        let logging = config.logging.clone();
        let relaunch: Arc<dyn Fn(&str) -> Command + Send + Sync> =
            Arc::new(move |subcommand| relaunch(subcommand, &logging));
        let options = OpenOptions {
            families: &families,
            settings: &mode.settings(settings.clone()),
            modes: MODES,
            relaunch: relaunch.clone(),
        };
        let mut backend = mode.open(&options)?;
        if !mode.features().localhost_node_ports {
            let start = move || relaunch("relay");
            backend = Box::new(LocalhostNodePorts::new(backend, start, Instant::now()));
        }
        let woken = Arc::new(Notify::new());
        let notify = woken.clone();
        backend.set_wake(Wake::new(move || notify.notify_one()));
        Ok(Backends {
            mode: ModeRef(mode),
            backend,
            woken,
            leftovers_due: Some(Instant::now()),
            logged_errors: Vec::new(),
            in_force: false,
            has_rival: false,
        })
    }

    /// The mode.
    pub(crate) fn mode(&self) -> &'static dyn Mode {
        self.mode.0
    }

    /// The families that it programs.
    pub(crate) fn families(&self) -> Vec<Family> {
        self.backend.families()
    }

    /// Sets the time between comparisons of all rules, for changes that the kernel does not announce. Expensive
    /// comparisons are less frequent.
    pub(crate) fn set_audit_period(&mut self, period: Duration) {
        self.backend.set_audit_period(period);
    }

    /// The metric that counts failed syncs.
    pub(crate) fn failure_metric(&self) -> &'static str {
        self.backend.failure_metric()
    }

    /// The mode's own counters.
    pub(crate) fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        self.backend.counters()
    }

    /// Syncs every family. Also returns whether changes by other processes may have gone unnoticed.
    pub(crate) fn sync(&mut self, settings: &Settings, services: Vec<ServiceChange>) -> (Vec<Outcome>, bool) {
        self.backend.sync_begins(Instant::now());
        let mode_settings = self.mode.0.settings(settings.clone());
        let mut by_family: [Vec<_>; 2] = Default::default();
        for change in services {
            let [v4, v6] = change.plans;
            by_family[0].push((change.name.clone(), v4));
            by_family[1].push((change.name, v6));
        }
        let mut outcomes = Vec::new();
        for family in self.backend.families() {
            let started = Instant::now();
            let changes = std::mem::take(&mut by_family[usize::from(family == Family::V6)]);
            let result = self.backend.sync(family, &mode_settings, changes);
            outcomes.push(Outcome { family, took: started.elapsed(), result });
        }
        let mut unnoticed = self.backend.sync_ended(&outcomes, Instant::now());
        self.in_force = outcomes.iter().all(|o| o.result.is_ok());
        if self.leftovers_due().is_some_and(|when| when <= Instant::now()) {
            self.remove_leftovers(settings);
            unnoticed |= !self.backend.is_listening();
        }
        if unnoticed {
            self.backend.mark_stale();
        }
        (outcomes, unnoticed)
    }

    /// When to remove leftovers of other modes: not before this mode's rules are in force, and not beside another proxy.
    pub(crate) fn leftovers_due(&self) -> Option<Instant> {
        self.leftovers_due.filter(|_| self.in_force && !self.has_rival)
    }

    /// Records whether another proxy runs. When it has ended, its rules are leftovers.
    pub(crate) fn set_rival(&mut self, has_rival: bool) {
        if std::mem::replace(&mut self.has_rival, has_rival) && !has_rival {
            self.leftovers_due = Some(Instant::now());
        }
    }

    /// Removes the leftovers of other modes.
    pub(crate) fn remove_leftovers(&mut self, settings: &Settings) {
        let used = self.backend.locations();
        let (removed, errors) = leftovers::remove_unused(&used, settings);
        for leftover in &removed {
            tracing::info!(
                location = leftover.location,
                objects = leftover.objects,
                "removed leftovers of a previous proxy mode"
            );
        }
        for error in &errors {
            if self.logged_errors.contains(&std::mem::discriminant(error)) {
                tracing::debug!("leftovers of a previous proxy mode stay for now: {error}");
            } else {
                tracing::warn!("leftovers of a previous proxy mode stay for now: {error}");
            }
        }
        self.logged_errors = errors.iter().map(std::mem::discriminant).collect();
        self.leftovers_due = (!errors.is_empty()).then(|| Instant::now() + RETRY_LEFTOVERS);
        if !removed.is_empty() {
            // The kernel's announcements may have been lost while many objects were removed.
            self.backend.restart_drift_detection();
        }
    }

    /// The objects of other proxies and modes beside the rules of this one, as the end of a message.
    pub(crate) fn objects_beside(&self, settings: Option<&Settings>) -> String {
        let settings = settings.cloned().unwrap_or_default();
        let found = leftovers::list_unused(&self.backend.locations(), &settings);
        if found.is_empty() {
            return String::new();
        }
        let names: Vec<String> = found.iter().map(ToString::to_string).collect();
        format!(", with {}", names.join("; "))
    }

    /// Whether the mode listens for changes by other processes.
    pub(crate) fn is_listening(&self) -> bool {
        self.backend.is_listening()
    }

    /// Prepares the rules for the end of the agent.
    pub(crate) fn stop(&mut self, settings: &Settings) {
        self.backend.stop(&self.mode.0.settings(settings.clone()));
    }

    /// Waits until other processes may have changed the rules. May be dropped and called again at any time.
    pub(crate) async fn drift_signal(&mut self) -> DriftSignal {
        loop {
            if let Some(signal) = self.backend.detect_drift(Instant::now()) {
                return signal;
            }
            let next = self.backend.next_drift_check();
            tokio::select! {
                () = self.woken.notified() => {}
                () = super::until(next) => {}
            }
        }
    }

    /// Makes the next sync compare all rules with the kernel.
    pub(crate) fn mark_stale(&mut self) {
        self.backend.mark_stale();
    }
}

/// The command that starts this program with a subcommand, for a mode that needs a second process. That process gets
/// its own process group, so that an interrupt at the terminal reaches the agent only.
fn relaunch(subcommand: &str, logging: &Logging) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("portway").arg(subcommand).arg(format!("--v={}", logging.verbosity));
    if logging.format == LogFormat::Json {
        command.arg("--json");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    command
}
