//! What other modes left behind, ours or kube-proxy's: found, and removed once this mode's rules are in force.

use super::families;
use super::plane::Plane;
use crate::config::Mode;
use ipnet::IpNet;
use portway_dataplane::{Clear, Dataplane, Error};
use portway_iptables::commit::Tool;
use portway_iptables::{Tools, Variant};
use portway_model::Family;
use std::io::ErrorKind;

/// A place in which a mode leaves something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// An nftables table.
    Table(&'static str, Family),
    /// The tables of one variant of iptables.
    Iptables(Variant, Family),
    /// What only an ipvs mode makes.
    Ipvs,
    /// The process that only the userspace mode has.
    Carrier,
}

/// Something that was left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Where.
    pub place: String,
    /// What, in words.
    pub what: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Table(_, family) => write!(f, "nftables {family}"),
            Place::Iptables(variant, family) => write!(f, "iptables ({variant}) {family}"),
            Place::Ipvs => f.write_str("ipvs"),
            Place::Carrier => f.write_str("userspace"),
        }
    }
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// All places, in the order in which they can be cleared: rules refer to sets, and a set in use stays.
fn places() -> Vec<Place> {
    let mut places = Vec::new();
    for family in families() {
        for table in [portway_nftables::TABLE, portway_nftables::KUBE_PROXY_TABLE] {
            places.push(Place::Table(table, family));
        }
        for variant in Variant::ALL
            .into_iter()
            .filter(|v| Tools::of(*v).is_some() && portway_iptables::variant::is_used(*v, family))
        {
            places.push(Place::Iptables(variant, family));
        }
    }
    places.push(Place::Ipvs);
    places.push(Place::Carrier);
    places
}

impl Place {
    /// Whether it is where this mode works.
    fn is_own(self, mode: Mode, planes: &[Plane]) -> bool {
        let variant = planes.iter().find_map(Plane::variant);
        match self {
            Place::Table(table, _) => {
                let nftables = matches!(mode, Mode::Nftables | Mode::Userspace) && variant.is_none();
                nftables && table == portway_nftables::TABLE
            }
            Place::Iptables(v, family) => variant == Some(v) && planes.iter().any(|p| p.family() == family),
            Place::Ipvs => mode == Mode::Ipvs,
            Place::Carrier => mode == Mode::Userspace,
        }
    }

    /// What is there, in words; gone afterwards if so wished.
    fn clear(self, how: Clear, exclude: &[IpNet]) -> Result<Vec<String>, Error> {
        match self {
            Place::Table(table, family) => portway_nftables::leftovers::clear(family, table, how),
            Place::Iptables(variant, family) => {
                let Some(tools) = Tools::of(variant) else { return Ok(Vec::new()) };
                let mut tool = Tool::open(&tools, family).map_err(portway_iptables::mode::missing)?;
                match how {
                    Clear::Look => portway_iptables::leftovers::find(&mut tool, family),
                    Clear::WhenIdle | Clear::Now => portway_iptables::leftovers::remove(&mut tool, family),
                }
            }
            Place::Ipvs => portway_ipvs::leftovers::clear(how, exclude),
            Place::Carrier => clear_carrier(how),
        }
    }
}

/// The process that carries connections ends when they have; nothing leads to it any more.
fn clear_carrier(how: Clear) -> Result<Vec<String>, Error> {
    let found = match how {
        Clear::Look => portway_userspace::is_there(),
        Clear::WhenIdle | Clear::Now => portway_userspace::dismiss(),
    };
    const WHAT: &str = "the process that carries connections";
    let found = match found {
        Ok(found) => found,
        // Another user's, and so no business of a mode that runs.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && how == Clear::WhenIdle => false,
        Err(source) if source.kind() == ErrorKind::PermissionDenied => {
            return Err(Error::Permission { operation: format!("reach {WHAT}"), source: Box::new(source) });
        }
        Err(source) => return Err(Error::Process { what: WHAT, source }),
    };
    Ok(found.then(|| WHAT.to_owned()).into_iter().collect())
}

/// Servers of ipvs within `exclude` are somebody else's.
fn clear(
    places: impl IntoIterator<Item = Place>,
    how: Clear,
    exclude: &[IpNet],
) -> (Vec<Leftover>, Vec<Error>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for place in places {
        match place.clear(how, exclude) {
            Ok(what) => {
                found.extend(what.into_iter().map(|what| Leftover { place: place.to_string(), what }));
            }
            Err(error) => errors.push(error),
        }
    }
    (found, errors)
}

/// What became of what other modes left behind.
#[derive(Debug)]
pub(super) struct Tidied {
    /// Why some of it is left.
    pub(super) errors: Vec<Error>,
    /// There was something.
    pub(super) something: bool,
}

/// Removes what modes other than this one left behind.
pub(super) fn remove_others(mode: Mode, planes: &[Plane], exclude: &[IpNet]) -> Tidied {
    let others = places().into_iter().filter(|p| !p.is_own(mode, planes));
    let (removed, errors) = clear(others, Clear::WhenIdle, exclude);
    for leftover in &removed {
        tracing::info!("removed what another mode left behind: {leftover}");
    }
    Tidied { something: !removed.is_empty(), errors }
}

/// What Portway and kube-proxy have made here, in any mode.
pub fn find_leftovers(exclude: &[IpNet]) -> (Vec<Leftover>, Vec<Error>) {
    clear(places(), Clear::Look, exclude)
}

/// Removes it all, and goes on where something fails.
pub fn cleanup(exclude: &[IpNet]) -> (Vec<Leftover>, Vec<Error>) {
    clear(places(), Clear::Now, exclude)
}
