//! The data planes of both families, and the ear on what others do to them.

use super::AgentError;
use crate::config::Mode;
use crate::metrics::SyncKind;
use portway_dataplane::{Dataplane, Error, Report, Settings};
use portway_model::{Family, ServiceChange};
use portway_netlink::nft::{self, Monitor};
use portway_nftables::{Nftables, TABLE};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// One mode, in every family the kernel has.
#[derive(Debug)]
pub(crate) struct Planes {
    modes: Vec<Nftables>,
    tampering: Option<mpsc::Receiver<String>>,
}

/// What a sync did in one family.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) family: Family,
    pub(crate) took: Duration,
    pub(crate) result: Result<Report, Error>,
}

impl Outcome {
    pub(crate) fn kind(&self) -> SyncKind {
        if self.result.as_ref().is_ok_and(|r| r.full) { SyncKind::Full } else { SyncKind::Partial }
    }
}

/// The families this kernel has.
fn families() -> Vec<Family> {
    let v6 = Path::new("/proc/net/if_inet6").exists();
    if !v6 {
        tracing::info!("this kernel has no IPv6, or it is off: only IPv4 is programmed");
    }
    if v6 { Family::ALL.to_vec() } else { vec![Family::V4] }
}

impl Planes {
    /// Opens the mode, and finds out whether we may use it.
    pub(crate) fn open(mode: Mode) -> Result<Planes, AgentError> {
        debug_assert_eq!(mode, Mode::Nftables, "validation admits only what is built");
        let mut modes = Vec::new();
        for family in families() {
            let mut mode = Nftables::open(family)?;
            mode.check()?;
            modes.push(mode);
        }
        Ok(Planes { modes, tampering: None })
    }

    /// The families it programs.
    pub(crate) fn families(&self) -> Vec<Family> {
        self.modes.iter().map(Dataplane::family).collect()
    }

    /// Brings every family up to date. Also tells whether somebody may have changed something unheard.
    pub(crate) fn sync(&mut self, settings: &Settings, services: Vec<ServiceChange>) -> (Vec<Outcome>, bool) {
        let deaf = self.tampering.is_none();
        let before = if deaf { self.modes.first_mut().and_then(|m| m.generation().ok()) } else { None };
        let mut by_family: [Vec<_>; 2] = Default::default();
        for change in services {
            let [v4, v6] = change.plans;
            by_family[0].push((change.name.clone(), v4));
            by_family[1].push((change.name, v6));
        }
        let mut outcomes = Vec::new();
        for mode in &mut self.modes {
            let started = Instant::now();
            let family = mode.family();
            let result =
                mode.sync(settings, std::mem::take(&mut by_family[usize::from(family == Family::V6)]));
            outcomes.push(Outcome { family, took: started.elapsed(), result });
        }
        let suspicious = deaf && self.listen(before, &outcomes);
        if suspicious {
            self.distrust();
        }
        (outcomes, suspicious)
    }

    /// Starts listening once the first sync is done: before, a hundred thousand of our own changes would be
    /// announced to us. The generation tells whether somebody slipped in between.
    fn listen(&mut self, before: Option<u32>, outcomes: &[Outcome]) -> bool {
        let ports: Vec<u32> = self.modes.iter().map(Nftables::port).collect();
        let (sender, receiver) = mpsc::channel(1);
        let listening = Monitor::open(&ports).map_err(std::io::Error::other).and_then(|monitor| {
            std::thread::Builder::new()
                .name("monitor".into())
                .stack_size(64 * 1024)
                .spawn(|| watch(monitor, sender))
        });
        match listening {
            Ok(_) => self.tampering = Some(receiver),
            Err(error) => tracing::warn!(%error, "changes made by others cannot be noticed"),
        }
        let changed = |o: &Outcome| o.result.as_ref().is_ok_and(|r| r.added + r.removed > 0);
        let ours = outcomes.iter().filter(|o| changed(o)).count() as u32;
        let now = self.modes.first_mut().and_then(|m| m.generation().ok());
        before.zip(now).is_none_or(|(before, now)| now != before.wrapping_add(ours))
    }

    /// Waits until somebody else has changed our tables; who it was, as far as is known.
    pub(crate) async fn tampered(&mut self) -> String {
        let Some(tampering) = &mut self.tampering else { return std::future::pending().await };
        match tampering.recv().await {
            Some(by) => by,
            None => {
                // The next sync listens again.
                self.tampering = None;
                "unknown: nobody listened".to_owned()
            }
        }
    }

    /// Has every family look at the kernel before it changes anything.
    pub(crate) fn distrust(&mut self) {
        self.modes.iter_mut().for_each(Dataplane::distrust);
    }
}

/// Tells of others' changes, on a thread of its own, as long as somebody wants to know.
fn watch(mut monitor: Monitor, tell: mpsc::Sender<String>) {
    loop {
        let by = match monitor.wait(&[nft::Family::Ipv4, nft::Family::Ipv6], TABLE) {
            Ok(foreign) => {
                foreign.process.map_or("unknown".into(), |(pid, name)| format!("{name} (process {pid})"))
            }
            // Notifications were lost, or made no sense: ours may have been among them.
            Err(error) => format!("unknown: {error}"),
        };
        if tell.blocking_send(by).is_err() {
            return;
        }
    }
}

/// Removes everything of ours from the kernel, in every family, and goes on where something fails.
pub fn cleanup() -> Result<(), Vec<Error>> {
    let remove = |family| Nftables::open(family).and_then(|mut mode| mode.cleanup());
    let errors: Vec<Error> = families().into_iter().filter_map(|family| remove(family).err()).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
