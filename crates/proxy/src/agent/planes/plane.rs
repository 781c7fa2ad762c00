//! One family's data plane in one mode.

use crate::config::Mode;
use portway_dataplane::{Dataplane, Drift, Error, Report, Settings};
use portway_iptables::{Iptables, Tools};
use portway_model::{Family, ServiceName, ServicePlan};
use portway_nftables::Nftables;

/// One of the modes at work.
#[derive(Debug)]
pub(super) enum Plane {
    Nftables(Nftables),
    Iptables(Iptables),
}

/// Opens a mode in every family, and finds out whether we may use it. IPv6 may be missing; IPv4 may not.
pub(super) fn open(mode: Mode, families: &[Family]) -> Result<Vec<Plane>, Error> {
    let mut planes = Vec::new();
    let open = opener(mode)?;
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

fn opener(mode: Mode) -> Result<Opener, Error> {
    match mode {
        Mode::Nftables => Ok(Box::new(|family| {
            let mut plane = Nftables::open(family)?;
            plane.check()?;
            Ok(Plane::Nftables(plane))
        })),
        Mode::Iptables => {
            let (tools, why) = Tools::detect().map_err(portway_iptables::mode::missing)?;
            tracing::info!(variant = %tools.variant, why, "iptables");
            Ok(Box::new(move |family| {
                let mut plane = Iptables::open(&tools, family)?;
                plane.check()?;
                Ok(Plane::Iptables(plane))
            }))
        }
        Mode::Ipvs | Mode::Userspace => Err(Error::Unsupported {
            feature: format!("the {} mode", mode.as_str()),
            hint: "this release does not have it".to_owned(),
        }),
    }
}

impl Plane {
    /// Itself, if it is the iptables mode.
    pub(super) fn iptables(&mut self) -> Option<&mut Iptables> {
        match self {
            Plane::Iptables(plane) => Some(plane),
            Plane::Nftables(_) => None,
        }
    }

    fn inner(&mut self) -> &mut dyn Dataplane {
        match self {
            Plane::Nftables(plane) => plane,
            Plane::Iptables(plane) => plane,
        }
    }
}

impl Dataplane for Plane {
    fn family(&self) -> Family {
        match self {
            Plane::Nftables(plane) => plane.family(),
            Plane::Iptables(plane) => plane.family(),
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
