//! The data planes of both families, whatever the mode, and the ear on what others do to them.

mod ear;
mod leftovers;
mod plane;

use super::AgentError;
use crate::config::{Config, Mode};
use crate::metrics::SyncKind;
use ear::Ear;
pub(crate) use ear::Suspicion;
use ipnet::IpNet;
use plane::Plane;
use portway_dataplane::{Dataplane, Error, Report, Settings, UserspaceSettings};
use portway_model::{Family, ServiceChange};
use portway_userspace::Link;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use leftovers::{Leftover, cleanup, find_leftovers};

/// When to try again to remove what other modes left behind.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// One mode, in every family the kernel has.
#[derive(Debug)]
pub(crate) struct Planes {
    mode: Mode,
    planes: Vec<Plane>,
    ear: Ear,
    /// Where servers of ipvs are somebody else's.
    exclude: Vec<IpNet>,
    /// When to look for what other modes left behind; none once there is nothing left.
    tidy: Option<Instant>,
    /// Why something could not be removed, as it was said.
    said: Vec<std::mem::Discriminant<Error>>,
    /// This mode's rules are in force.
    in_force: bool,
}

/// What a sync did in one family.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) mode: Mode,
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
    if v6 { Family::ALL.to_vec() } else { vec![Family::V4] }
}

impl Planes {
    /// Opens the mode, and finds out whether we may use it.
    pub(crate) fn open(config: &Config) -> Result<Planes, AgentError> {
        let families = families();
        if !families.contains(&Family::V6) {
            tracing::info!("this kernel has no IPv6, or it is off: only IPv4 is programmed");
        }
        let planes = plane::open(config, &families)?;
        let ear = Ear::new(&planes);
        let exclude = config.ipvs.exclude_cidrs.clone();
        Ok(Planes {
            mode: config.mode,
            planes,
            ear,
            exclude,
            tidy: Some(Instant::now()),
            said: Vec::new(),
            in_force: false,
        })
    }

    /// The mode.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The families it programs.
    pub(crate) fn families(&self) -> Vec<Family> {
        self.planes.iter().map(|p| p.family()).collect()
    }

    /// How often everything is synced, though nothing happened.
    pub(crate) fn period(&mut self, period: Duration) {
        self.ear.audit_every(period);
    }

    /// Brings every family up to date. Also tells whether somebody may have changed something unheard.
    pub(crate) fn sync(&mut self, settings: &Settings, services: Vec<ServiceChange>) -> (Vec<Outcome>, bool) {
        self.ear.prepare(&mut self.planes);
        let mut by_family: [Vec<_>; 2] = Default::default();
        for change in services {
            let [v4, v6] = change.plans;
            by_family[0].push((change.name.clone(), v4));
            by_family[1].push((change.name, v6));
        }
        let mut outcomes = Vec::new();
        for plane in &mut self.planes {
            let started = Instant::now();
            let family = plane.family();
            let changes = std::mem::take(&mut by_family[usize::from(family == Family::V6)]);
            let result = plane.sync(settings, changes);
            outcomes.push(Outcome { mode: self.mode, family, took: started.elapsed(), result });
        }
        let mut suspicious = self.ear.listen(&mut self.planes, &outcomes);
        self.in_force = outcomes.iter().all(|o| o.result.is_ok());
        if self.tidies_at().is_some_and(|when| when <= Instant::now()) {
            self.tidy_up();
            suspicious |= !self.ear.listens();
        }
        if suspicious {
            self.distrust();
        }
        (outcomes, suspicious)
    }

    /// When to look for what other modes left behind: once this mode's rules are in force, and not before.
    pub(crate) fn tidies_at(&self) -> Option<Instant> {
        self.tidy.filter(|_| self.in_force)
    }

    /// Removes what other modes left behind now: this mode's rules are in force.
    pub(crate) fn tidy_up(&mut self) {
        let tidied = leftovers::remove_others(self.mode, &self.planes, &self.exclude);
        for error in &tidied.errors {
            let words = format!("what another mode left behind stays for now: {error}");
            // Once is enough: it may take hours.
            if self.said.contains(&std::mem::discriminant(error)) {
                tracing::debug!("{words}");
            } else {
                tracing::warn!("{words}");
            }
        }
        self.said = tidied.errors.iter().map(std::mem::discriminant).collect();
        self.tidy = (!self.said.is_empty()).then(|| Instant::now() + TRY_AGAIN);
        if tidied.something {
            // So much may have gone that what is announced meanwhile is lost.
            self.ear.begin_again();
        }
    }

    /// Whether changes by others would be noticed.
    pub(crate) fn listens(&self) -> bool {
        self.ear.listens()
    }

    /// Who carries connections, in userspace mode.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.planes.iter().find_map(Plane::link).cloned()
    }

    /// We are about to leave. Where connections are carried by a process, the kernel leads new ones from now on, and
    /// those that are open may finish: as long as they may otherwise, or if our end is that process's too, as a container's
    /// first is, only as long as we may wait.
    pub(crate) fn farewell(&mut self, settings: &Settings) {
        let Some(link) = self.link() else { return };
        if link.is_shared() {
            tracing::info!("another agent goes on with the process that carries connections");
            return;
        }
        for plane in &mut self.planes {
            if let Err(error) = plane.farewell(settings) {
                tracing::error!("connections are carried on: the kernel cannot lead them: {error}");
                return;
            }
        }
        let is_first = std::process::id() == 1;
        let UserspaceSettings { stop_timeout, drain_timeout, .. } = settings.userspace;
        let limit = if is_first { stop_timeout } else { drain_timeout };
        if let Err(error) = link.leave(limit) {
            tracing::warn!("the process that carries connections was not told to leave: {error}");
        } else if is_first {
            tracing::info!(limit = ?stop_timeout, "open connections may finish");
            link.wait(stop_timeout);
        }
    }

    /// Waits until somebody else may have changed our rules.
    pub(crate) async fn tampered(&mut self) -> Suspicion {
        self.ear.tampered(&mut self.planes).await
    }

    /// Has every family look at the kernel before it changes anything.
    pub(crate) fn distrust(&mut self) {
        self.planes.iter_mut().for_each(Dataplane::distrust);
    }
}
