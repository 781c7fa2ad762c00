//! Subsets of an Endpoints object in canonical form, and at most a thousand addresses of them.

use portway_api::{EndpointAddress, EndpointSubset, SubsetPort};
use std::collections::BTreeMap;

/// Addresses of an object at most.
pub(crate) const CAPACITY: usize = 1000;

/// An address as it is sorted.
type AddressKey = (String, String, String, String);
/// Addresses, and whether they are ready.
type Addresses = BTreeMap<AddressKey, (EndpointAddress, bool)>;

/// The same subsets in canonical form: one for each set of addresses that have the same ports, everything sorted. An
/// address that is both ready and not ready for a port is not. Ports of one name are in different subsets. Versions of Pods are left out.
pub(crate) fn canonical(subsets: Vec<EndpointSubset>) -> Vec<EndpointSubset> {
    // Addresses and their readiness by port; without a port, all addresses together.
    let mut by_port: BTreeMap<Option<SubsetPort>, Addresses> = BTreeMap::new();
    for subset in subsets {
        let ports: Vec<Option<SubsetPort>> = match subset.ports.is_empty() {
            true => vec![None],
            false => subset.ports.into_iter().map(with_protocol).map(Some).collect(),
        };
        let ready = subset.addresses.into_iter().map(|address| (address, true));
        let unready = subset.not_ready_addresses.into_iter().map(|address| (address, false));
        for (mut address, is_ready) in ready.chain(unready) {
            if let Some(target) = &mut address.target_ref {
                target.resource_version.clear();
            }
            for port in &ports {
                let addresses = by_port.entry(port.clone()).or_default();
                let entry = addresses.entry(key(&address)).or_insert_with(|| (address.clone(), true));
                entry.1 &= is_ready;
            }
        }
    }
    // Ports with the same addresses share a subset.
    let mut found: Vec<(Vec<SubsetPort>, Addresses)> = Vec::new();
    for (port, addresses) in by_port {
        let shared = port.as_ref().and_then(|port| {
            found.iter_mut().find(|(ports, known)| {
                let names_differ = ports.iter().all(|p| p.name != port.name);
                !ports.is_empty() && names_differ && *known == addresses
            })
        });
        match shared {
            Some((ports, _)) => ports.extend(port),
            None => found.push((port.into_iter().collect(), addresses)),
        }
    }
    let subset = |(ports, addresses): (Vec<SubsetPort>, Addresses)| {
        let (ready, unready): (Vec<_>, Vec<_>) = addresses.into_values().partition(|(_, ready)| *ready);
        let addresses = |list: Vec<(EndpointAddress, bool)>| list.into_iter().map(|(a, _)| a).collect();
        EndpointSubset { addresses: addresses(ready), not_ready_addresses: addresses(unready), ports }
    };
    found.into_iter().map(subset).collect()
}

fn with_protocol(mut port: SubsetPort) -> SubsetPort {
    if port.protocol.is_empty() {
        port.protocol = "TCP".to_owned();
    }
    port
}

fn key(address: &EndpointAddress) -> AddressKey {
    let target = address.target_ref.clone().unwrap_or_default();
    (address.ip.clone(), target.uid, target.name, address.hostname.clone())
}

/// Leaves out addresses over the capacity, and says whether there were any: those that are not ready first, else a
/// share of each subset.
pub(crate) fn truncate(subsets: &mut [EndpointSubset]) -> bool {
    let ready: usize = subsets.iter().map(|subset| subset.addresses.len()).sum();
    let unready: usize = subsets.iter().map(|subset| subset.not_ready_addresses.len()).sum();
    if ready + unready <= CAPACITY {
        return false;
    }
    let (capacity, total) = match ready > CAPACITY {
        true => (CAPACITY, ready),
        false => (CAPACITY - ready, unready),
    };
    let mut left = capacity;
    for subset in subsets {
        let list = match ready > CAPACITY {
            true => {
                subset.not_ready_addresses.clear();
                &mut subset.addresses
            }
            false => &mut subset.not_ready_addresses,
        };
        // Rounded up, so the last subset may get less than its share.
        let share = (list.len() * capacity).div_ceil(total).min(left);
        list.truncate(share);
        left -= list.len();
    }
    true
}

#[cfg(test)]
mod tests;
