//! Packs endpoints into slices with few writes: an endpoint stays in the slice that it is in, and slices that are
//! written anyway take new endpoints first.

use crate::cluster::slice::SliceState;
use crate::endpointslice::desired::Desired;
use crate::plan::count;
use portway_api::complete::EndpointPort;
use std::collections::HashMap;
use std::rc::Rc;

/// The slices and endpoints of one set of ports.
#[derive(Debug)]
pub(crate) struct Group<'s, 'd> {
    pub(crate) ports: Rc<[EndpointPort]>,
    pub(crate) existing: Vec<&'s SliceState>,
    pub(crate) desired: Vec<Desired<'d>>,
}

/// The content of a slice that is to be written.
#[derive(Debug, Default)]
pub(crate) struct Content<'d> {
    pub(crate) ports: Rc<[EndpointPort]>,
    pub(crate) endpoints: Vec<Desired<'d>>,
    pub(crate) reason: String,
}

/// The slices to write.
#[derive(Debug, Default)]
pub(crate) struct Changes<'s, 'd> {
    pub(crate) create: Vec<Content<'d>>,
    pub(crate) update: Vec<(&'s SliceState, Content<'d>)>,
    pub(crate) delete: Vec<&'s SliceState>,
    pub(crate) added: usize,
    pub(crate) changed: usize,
    pub(crate) removed: usize,
}

impl Changes<'_, '_> {
    /// Writes new slices over those that would be deleted: one write instead of two.
    pub(crate) fn reuse_deleted(&mut self) {
        while !self.create.is_empty() && !self.delete.is_empty() {
            let (slice, mut content) = (self.delete.remove(0), self.create.remove(0));
            content.reason = match content.endpoints.len() {
                0 => "the Service has no endpoints".to_owned(),
                n => format!("{} in place of others", count(n, "endpoint")),
            };
            self.update.push((slice, content));
        }
    }
}

/// Slices and endpoints by their ports, in the order of the first endpoint. Slices whose ports no endpoint has come
/// last.
pub(crate) fn groups<'s, 'd>(existing: &[&'s SliceState], desired: Vec<Desired<'d>>) -> Vec<Group<'s, 'd>> {
    let mut groups: Vec<Group<'s, 'd>> = Vec::new();
    for endpoint in desired {
        match groups.iter_mut().find(|group| group.ports == endpoint.ports) {
            Some(group) => group.desired.push(endpoint),
            None => {
                let ports = endpoint.ports.clone();
                groups.push(Group { ports, existing: Vec::new(), desired: vec![endpoint] });
            }
        }
    }
    for slice in existing {
        match groups.iter_mut().find(|group| *group.ports == *slice.ports) {
            Some(group) => group.existing.push(slice),
            None => groups.push(Group {
                ports: slice.ports.clone().into(),
                existing: vec![slice],
                desired: Vec::new(),
            }),
        }
    }
    groups
}

/// A slice while endpoints are being packed.
struct Filling<'s, 'd> {
    slice: &'s SliceState,
    endpoints: Vec<Desired<'d>>,
    changed: usize,
    removed: usize,
    added: usize,
    metadata: bool,
}

impl<'d> Filling<'_, 'd> {
    fn is_changed(&self) -> bool {
        self.changed + self.removed + self.added > 0 || self.metadata
    }

    fn content(self, ports: Rc<[EndpointPort]>) -> Content<'d> {
        let parts = [
            (self.added, "endpoint", "added"),
            (self.removed, "endpoint", "removed"),
            (self.changed, "endpoint", "changed"),
        ];
        let mut reasons: Vec<String> = parts
            .into_iter()
            .filter(|(n, ..)| *n > 0)
            .map(|(n, what, done)| format!("{} {done}", count(n, what)))
            .collect();
        if self.metadata {
            reasons.push("labels or owner changed".to_owned());
        }
        Content { ports, endpoints: self.endpoints, reason: reasons.join(", ") }
    }
}

/// Packs the endpoints of one set of ports.
pub(crate) fn pack<'s, 'd>(
    ports: Rc<[EndpointPort]>,
    existing: &[&'s SliceState],
    desired: Vec<Desired<'d>>,
    max: usize,
    metadata_differs: impl Fn(&SliceState) -> bool,
    changes: &mut Changes<'s, 'd>,
) {
    let order: Vec<u64> = desired.iter().map(|endpoint| endpoint.print().identity).collect();
    let mut wanted: HashMap<u64, Desired<'d>> = order.iter().copied().zip(desired).collect();

    // Endpoints stay where they are.
    let mut slices: Vec<Filling<'s, 'd>> = Vec::with_capacity(existing.len());
    for &slice in existing {
        let mut filling = Filling {
            slice,
            endpoints: Vec::with_capacity(slice.endpoints.len()),
            changed: 0,
            removed: 0,
            added: 0,
            metadata: metadata_differs(slice),
        };
        for print in &slice.endpoints {
            match wanted.remove(&print.identity) {
                Some(endpoint) => {
                    filling.changed += usize::from(endpoint.print() != *print);
                    filling.endpoints.push(endpoint);
                }
                None => filling.removed += 1,
            }
        }
        slices.push(filling);
    }

    let mut left: Vec<Desired<'d>> = order.iter().filter_map(|identity| wanted.remove(identity)).collect();
    left.reverse();
    changes.added += left.len();

    // Slices that are written anyway are filled first, the fullest one before the others. One without endpoints is
    // deleted, unless it is needed again.
    let mut by_length: Vec<usize> = (0..slices.len()).filter(|&i| slices[i].is_changed()).collect();
    by_length.sort_by_key(|&i| std::cmp::Reverse(slices[i].endpoints.len()));
    for i in by_length {
        fill(&mut slices[i], &mut left, max);
    }
    while !left.is_empty() {
        // The slice that is closest to full with the rest of them; else a new one.
        let fits = |slice: &Filling<'_, '_>| {
            !slice.is_changed() && slice.endpoints.len() + left.len() <= max && left.len() < max
        };
        let best = slices.iter_mut().filter(|slice| fits(slice)).max_by_key(|slice| slice.endpoints.len());
        match best {
            Some(slice) => fill(slice, &mut left, max),
            None => {
                let rest = left.split_off(left.len().saturating_sub(max));
                let endpoints = rest.into_iter().rev().collect();
                changes.create.push(Content { ports: ports.clone(), endpoints, reason: String::new() });
            }
        }
    }

    for slice in slices {
        changes.changed += slice.changed;
        changes.removed += slice.removed;
        if slice.endpoints.is_empty() {
            changes.delete.push(slice.slice);
        } else if slice.is_changed() {
            changes.update.push((slice.slice, slice.content(ports.clone())));
        }
    }
}

/// Moves endpoints into a slice until it is full.
fn fill<'d>(slice: &mut Filling<'_, 'd>, left: &mut Vec<Desired<'d>>, max: usize) {
    while slice.endpoints.len() < max
        && let Some(endpoint) = left.pop()
    {
        slice.endpoints.push(endpoint);
        slice.added += 1;
    }
}
