//! Finds and removes the objects of modes that do not run any more, Portway's and kube-proxy's.

use crate::modes::MODES;
use portway_dataplane::{Clear, Error, Location, Mode, Settings};
use std::fmt;

/// Leftover objects in one location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The location.
    pub location: String,
    /// A description of the objects.
    pub objects: String,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.objects)
    }
}

/// All locations of all modes, each mode's in the order in which they can be cleared. A location that several modes
/// have is in the list once.
fn locations() -> impl Iterator<Item = (&'static dyn Mode, Location)> {
    let mut known = Vec::new();
    let all = MODES.iter().flat_map(|mode| mode.locations().into_iter().map(|location| (*mode, location)));
    all.filter(move |(_, location)| {
        let is_new = !known.contains(location);
        known.extend(is_new.then(|| location.clone()));
        is_new
    })
}

/// Clears the locations one after the other. An error does not keep the others from being cleared.
fn clear(
    locations: impl Iterator<Item = (&'static dyn Mode, Location)>,
    how: Clear,
    settings: &Settings,
) -> (Vec<Leftover>, Vec<Error>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for (mode, location) in locations {
        match mode.clear(&location, how, settings) {
            Ok(objects) => found.extend(
                objects.into_iter().map(|objects| Leftover { location: location.to_string(), objects }),
            ),
            Err(error) => errors.push(error),
        }
    }
    (found, errors)
}

/// Removes the objects in all locations except the `used` ones. Objects that connections still need stay, and are
/// returned as errors.
pub(super) fn remove_unused(used: &[Location], settings: &Settings) -> (Vec<Leftover>, Vec<Error>) {
    clear(locations().filter(|(_, location)| !used.contains(location)), Clear::WhenIdle, settings)
}

/// Lists the objects in all locations except the `used` ones, as far as they can be listed.
pub(super) fn list_unused(used: &[Location], settings: &Settings) -> Vec<Leftover> {
    clear(locations().filter(|(_, location)| !used.contains(location)), Clear::List, settings).0
}

/// Lists the objects that Portway and kube-proxy created on this node, in any mode.
pub fn find_leftovers(settings: &Settings) -> (Vec<Leftover>, Vec<Error>) {
    clear(locations(), Clear::List, settings)
}

/// Removes the objects that Portway and kube-proxy created on this node, in any mode. `begins` is called with each
/// location before its objects are removed.
pub fn cleanup(settings: &Settings, begins: impl Fn(&str)) -> (Vec<Leftover>, Vec<Error>) {
    let locations = locations().inspect(|(_, location)| begins(&location.to_string()));
    clear(locations, Clear::Now, settings)
}
