//! Objects that other modes left behind, Portway's or kube-proxy's: found, and removed.

use crate::modes::MODES;
use portway_dataplane::{Clear, Error, Location, Mode, Settings};
use std::fmt;

/// Objects that were left behind in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The place.
    pub location: String,
    /// The objects, in words.
    pub objects: String,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.objects)
    }
}

/// All places of all modes, in the order in which they can be cleared: rules refer to sets, and a set in use cannot be
/// removed.
fn locations() -> impl Iterator<Item = (&'static dyn Mode, Location)> {
    MODES.into_iter().flat_map(|mode| mode.locations().into_iter().map(move |location| (mode, location)))
}

/// Goes on where something fails.
fn clear(
    places: impl Iterator<Item = (&'static dyn Mode, Location)>,
    how: Clear,
    settings: &Settings,
) -> (Vec<Leftover>, Vec<Error>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for (mode, location) in places {
        match mode.clear(&location, how, settings) {
            Ok(objects) => found.extend(
                objects.into_iter().map(|objects| Leftover { location: location.to_string(), objects }),
            ),
            Err(error) => errors.push(error),
        }
    }
    (found, errors)
}

/// Removes the objects in all places but those in use, once no connection needs them.
pub(super) fn remove_unused(used: &[Location], settings: &Settings) -> (Vec<Leftover>, Vec<Error>) {
    clear(locations().filter(|(_, location)| !used.contains(location)), Clear::WhenIdle, settings)
}

/// The objects that Portway and kube-proxy have made here, in any mode.
pub fn find_leftovers(settings: &Settings) -> (Vec<Leftover>, Vec<Error>) {
    clear(locations(), Clear::Look, settings)
}

/// Removes all of them.
pub fn cleanup(settings: &Settings) -> (Vec<Leftover>, Vec<Error>) {
    clear(locations(), Clear::Now, settings)
}
