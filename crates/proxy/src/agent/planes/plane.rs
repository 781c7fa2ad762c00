//! One family's data plane in one mode.

use crate::config::{Config, LogFormat, Logging, Mode};
use portway_dataplane::{Dataplane, Drift, Error, Report, Settings};
use portway_iptables::{Iptables, Tools, Variant};
use portway_ipvs::Ipvs;
use portway_model::{Family, ServiceName, ServicePlan};
use portway_nftables::Nftables;
use portway_userspace::{Link, Userspace};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// One of the modes at work.
#[derive(Debug)]
pub(super) enum Plane {
    Nftables(Nftables),
    Iptables(Iptables),
    Ipvs(Box<Ipvs>),
    Userspace(Box<Userspace<Plane>>),
}

/// Opens a mode in every family, and finds out whether we may use it. IPv6 may be missing; IPv4 may not.
pub(super) fn open(config: &Config, families: &[Family]) -> Result<Vec<Plane>, Error> {
    let mut planes = Vec::new();
    let open = opener(config.mode, config)?;
    for family in families {
        match open(*family) {
            Ok(plane) => planes.push(plane),
            Err(error) if *family == Family::V6 && !planes.is_empty() && !is_permission(&error) => {
                tracing::warn!("only IPv4 is programmed: {error}");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(planes)
}

fn is_permission(error: &Error) -> bool {
    matches!(error, Error::Permission { .. })
}

type Opener = Box<dyn Fn(Family) -> Result<Plane, Error>>;

fn opener(mode: Mode, config: &Config) -> Result<Opener, Error> {
    match mode {
        Mode::Nftables => Ok(Box::new(|family| {
            let mut plane = Nftables::open(family)?;
            plane.check()?;
            Ok(Plane::Nftables(plane))
        })),
        Mode::Iptables => Ok(iptables(detect()?)),
        Mode::Ipvs => {
            let tools = detect()?;
            let scheduler = config.ipvs.scheduler;
            Ok(Box::new(move |family| {
                let mut plane = Ipvs::open(&tools, family, scheduler)?;
                plane.check()?;
                Ok(Plane::Ipvs(Box::new(plane)))
            }))
        }
        Mode::Userspace => {
            let logging = config.logging.clone();
            let link = Arc::new(Link::new(move || carrier(&logging)));
            let rules = rules_to_doors(config)?;
            Ok(Box::new(move |family| {
                let rules = rules(family)?;
                Ok(Plane::Userspace(Box::new(Userspace::new(rules, link.clone()))))
            }))
        }
    }
}

fn iptables(tools: Tools) -> Opener {
    Box::new(move |family| {
        let mut plane = Iptables::open(&tools, family)?;
        plane.check()?;
        Ok(Plane::Iptables(plane))
    })
}

/// The rules that lead to the doors of the userspace mode: those of nftables where it is there, else those of iptables.
fn rules_to_doors(config: &Config) -> Result<Opener, Error> {
    let has_nftables = Nftables::open(Family::V4).and_then(|mut plane| plane.check_features());
    match has_nftables {
        Err(error) if !is_permission(&error) => {
            tracing::info!("connections are led here by iptables: {error}");
            // Its newer variant would need nf_tables too.
            let tools = Tools::of(Variant::Legacy).map_or_else(detect, Ok)?;
            Ok(iptables(tools))
        }
        Ok(()) | Err(_) => opener(Mode::Nftables, config),
    }
}

/// This program again, as the process that carries connections. It is in a group of its own, so that an interrupt at the
/// terminal is for the agent.
fn carrier(logging: &Logging) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("portway").arg("carry").arg(format!("--v={}", logging.verbosity));
    if logging.format == LogFormat::Json {
        command.arg("--json");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    command
}

/// The variant of iptables that this host uses.
fn detect() -> Result<Tools, Error> {
    let (tools, why) = Tools::detect().map_err(portway_iptables::mode::missing)?;
    tracing::info!(variant = %tools.variant, why, "iptables");
    Ok(tools)
}

impl Plane {
    /// What it has in the tables of iptables, if it has anything there.
    pub(super) fn iptables(&mut self) -> Option<&mut Iptables> {
        match self {
            Plane::Iptables(plane) => Some(plane),
            Plane::Ipvs(plane) => Some(plane.rules()),
            Plane::Userspace(plane) => plane.rules().iptables(),
            Plane::Nftables(_) => None,
        }
    }

    /// What it has in our own table of nftables, if it has anything there.
    pub(super) fn nftables(&mut self) -> Option<&mut Nftables> {
        match self {
            Plane::Nftables(plane) => Some(plane),
            Plane::Userspace(plane) => plane.rules().nftables(),
            Plane::Iptables(_) | Plane::Ipvs(_) => None,
        }
    }

    /// The variant of iptables that it uses, if it does.
    pub(super) fn variant(&self) -> Option<Variant> {
        match self {
            Plane::Iptables(plane) => Some(plane.variant()),
            Plane::Ipvs(plane) => Some(plane.variant()),
            Plane::Userspace(plane) => plane.the_rules().variant(),
            Plane::Nftables(_) => None,
        }
    }

    /// Whether it heard of something that it has to act on, which costs nothing.
    pub(super) fn hears_of_changes(&mut self) -> bool {
        match self {
            Plane::Ipvs(plane) => plane.hears_of_changes(),
            Plane::Userspace(plane) => plane.lost_its_carrier(),
            Plane::Nftables(_) | Plane::Iptables(_) => false,
        }
    }

    /// Whether tables have other sizes than after its last change, where nobody announces that.
    pub(super) fn has_other_sizes(&mut self) -> bool {
        let silent = self.variant() == Some(Variant::Legacy);
        silent && self.iptables().is_some_and(Iptables::looks_different)
    }

    /// Whether what it has besides rules looks different than after its last change.
    pub(super) fn looks_different(&mut self) -> bool {
        match self {
            Plane::Ipvs(plane) => plane.looks_different(),
            Plane::Nftables(_) | Plane::Iptables(_) | Plane::Userspace(_) => false,
        }
    }

    /// Who carries connections, in userspace mode.
    pub(super) fn link(&self) -> Option<&Arc<Link>> {
        match self {
            Plane::Userspace(plane) => Some(plane.link()),
            Plane::Nftables(_) | Plane::Iptables(_) | Plane::Ipvs(_) => None,
        }
    }

    /// We are about to leave: what only works while somebody is there is left to the kernel.
    pub(super) fn farewell(&mut self, settings: &Settings) -> Result<(), Error> {
        match self {
            Plane::Userspace(plane) => plane.farewell(settings).map(drop),
            Plane::Nftables(_) | Plane::Iptables(_) | Plane::Ipvs(_) => Ok(()),
        }
    }

    fn inner(&mut self) -> &mut dyn Dataplane {
        match self {
            Plane::Nftables(plane) => plane,
            Plane::Iptables(plane) => plane,
            Plane::Ipvs(plane) => plane.as_mut(),
            Plane::Userspace(plane) => plane.as_mut(),
        }
    }
}

impl Dataplane for Plane {
    fn family(&self) -> Family {
        match self {
            Plane::Nftables(plane) => plane.family(),
            Plane::Iptables(plane) => plane.family(),
            Plane::Ipvs(plane) => plane.family(),
            Plane::Userspace(plane) => plane.family(),
        }
    }

    fn sync(
        &mut self,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Result<Report, Error> {
        self.inner().sync(settings, changes)
    }

    fn distrust(&mut self) {
        self.inner().distrust();
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        self.inner().verify()
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.inner().cleanup()
    }
}
