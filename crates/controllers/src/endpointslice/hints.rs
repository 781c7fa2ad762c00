//! Hints: the zones and nodes whose clients should use an endpoint.

use crate::cluster::node::ZoneShares;
use crate::cluster::service::{AddressFamily, Distribution, ServiceState};
use crate::cluster::slice::SliceState;
use crate::endpointslice::desired::{Desired, Hint};
use crate::endpointslice::topology;
use crate::plan::Note;
use std::collections::HashMap;

/// The hints that endpoints have, by their identity: those of topology-aware Services are changed as little as possible.
pub(crate) fn previous(slices: &[&SliceState]) -> HashMap<u64, u64> {
    let prints = slices.iter().flat_map(|slice| slice.endpoints.iter());
    prints.filter(|print| print.hints != 0).map(|print| (print.identity, print.hints)).collect()
}

/// Gives hints to the endpoints that are ready. Returns Events about hints that were switched on or cannot be given.
pub(crate) fn assign<'a>(
    service: &ServiceState,
    shares: &'a ZoneShares,
    family: AddressFamily,
    desired: &mut [Desired<'a>],
    previous: &HashMap<u64, u64>,
) -> Vec<Note> {
    if service.topology {
        return topology::assign(shares, family, desired, previous);
    }
    let with_node = match service.distribution {
        Distribution::Any => return Vec::new(),
        Distribution::SameZone { .. } => false,
        Distribution::SameNode => true,
    };
    for endpoint in desired.iter_mut().filter(|endpoint| endpoint.is_ready()) {
        let node = endpoint.fields.node.filter(|_| with_node);
        endpoint.hint = Hint { zone: endpoint.fields.zone, node };
    }
    Vec::new()
}
