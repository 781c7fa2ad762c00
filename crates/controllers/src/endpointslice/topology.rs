//! Topology-aware hints (KEP-2433), which a Service asks for by annotation: each zone gets endpoints in proportion to
//! its processors.
//!
//! Hints are given only if no endpoint has to take more than 20 percent more than its share of the traffic. Endpoints
//! are moved between zones as little as possible.

use crate::cluster::node::ZoneShares;
use crate::cluster::service::AddressFamily;
use crate::endpointslice::desired::{Desired, Hint};
use crate::fingerprint;
use crate::plan::Note;
use std::collections::{BTreeMap, HashMap};

/// By how much more than its share an endpoint may be used.
const OVERLOAD: f64 = 0.2;

/// The number of endpoints of a zone.
#[derive(Clone, Copy, Debug, Default)]
struct Allocation {
    minimum: usize,
    maximum: usize,
    desired: f64,
}

/// Gives hints to the endpoints that are ready, or to none. Returns Events.
pub(crate) fn assign<'a>(
    shares: &'a ZoneShares,
    family: AddressFamily,
    desired: &mut [Desired<'a>],
    previous: &HashMap<u64, u64>,
) -> Vec<Note> {
    let note = |warning, reason, text: &str| {
        vec![Note { warning, reason, text: format!("{text}, addressType: {}", family.name()), about: None }]
    };
    match zones(shares, desired, previous) {
        Ok(zones) => {
            let ready = desired.iter_mut().filter(|endpoint| endpoint.is_ready());
            for (endpoint, zone) in ready.zip(zones) {
                endpoint.hint = Hint { zone: Some(zone), node: None };
            }
            match previous.is_empty() {
                true => note(false, "TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled"),
                false => Vec::new(),
            }
        }
        Err(_) if desired.is_empty() => Vec::new(),
        Err(why) => note(true, "TopologyAwareHintsDisabled", &why),
    }
}

/// The zone of each endpoint that is ready, or why there are no hints.
fn zones<'a>(
    shares: &'a ZoneShares,
    desired: &[Desired<'a>],
    previous: &HashMap<u64, u64>,
) -> Result<Vec<&'a str>, String> {
    let Some(shares) = &shares.0 else {
        return Err(
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
                .to_owned(),
        );
    };
    let ready: Vec<&Desired<'a>> = desired.iter().filter(|endpoint| endpoint.is_ready()).collect();
    let allocations = allocations(shares, ready.len())?;
    if ready.iter().any(|endpoint| endpoint.fields.zone.is_none()) {
        return Err("One or more endpoints do not have a zone specified".to_owned());
    }
    let prints: Vec<(u64, &'a str)> =
        shares.keys().map(|zone| (fingerprint::hints([&**zone], []), &**zone)).collect();
    // Endpoints keep their zone, or begin with the one that they are in.
    let initial = |endpoint: &&Desired<'a>| {
        let kept = previous.get(&endpoint.print().identity);
        let kept = kept.and_then(|hints| prints.iter().find(|(print, _)| print == hints));
        kept.map(|(_, zone)| *zone).or(endpoint.fields.zone).unwrap_or_default()
    };
    let mut zones: Vec<&'a str> = ready.iter().map(initial).collect();
    balance(&allocations, &ready, &mut zones);
    Ok(zones)
}

fn allocations(
    shares: &BTreeMap<Box<str>, f64>,
    endpoints: usize,
) -> Result<BTreeMap<&str, Allocation>, String> {
    if shares.len() > endpoints {
        return Err(format!(
            "Insufficient number of endpoints ({endpoints} endpoints, {} zones)",
            shares.len()
        ));
    }
    let mut allocations = BTreeMap::new();
    let mut minimum_of_all = 0;
    for (zone, share) in shares {
        let desired = share * endpoints as f64;
        let minimum = (desired / (1.0 + OVERLOAD)).ceil() as usize;
        minimum_of_all += minimum;
        allocations.insert(&**zone, Allocation { minimum, maximum: 0, desired: desired.max(minimum as f64) });
    }
    let Some(free) = endpoints.checked_sub(minimum_of_all) else {
        return Err(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold ({endpoints} endpoints, {} zones)",
            shares.len()
        ));
    };
    allocations.values_mut().for_each(|allocation| allocation.maximum = allocation.minimum + free);
    Ok(allocations)
}

/// Moves endpoints from zones with too many to zones with too few, until each zone has a number that it may have. Every
/// move is from a zone above its minimum to one below its maximum, and brings one of them closer to its range.
fn balance<'a>(allocations: &BTreeMap<&'a str, Allocation>, ready: &[&Desired<'a>], zones: &mut [&'a str]) {
    let mut counts: BTreeMap<&'a str, usize> = allocations.keys().map(|zone| (*zone, 0)).collect();
    for zone in zones.iter() {
        *counts.entry(zone).or_default() += 1;
    }
    // A zone without nodes may have no endpoints.
    let of = |zone: &str| allocations.get(zone).copied().unwrap_or_default();
    let surplus = |zone: &str, n: usize| n as f64 - of(zone).desired;
    loop {
        let above = |(zone, n): &(&&'a str, &usize)| **n > of(zone).maximum;
        let below = |(zone, n): &(&&'a str, &usize)| **n < of(zone).minimum;
        let gives = |(zone, n): &(&&'a str, &usize)| **n > of(zone).minimum;
        let takes = |(zone, n): &(&&'a str, &usize)| **n < of(zone).maximum;
        let by_surplus = |a: &(&&'a str, &usize), b: &(&&'a str, &usize)| {
            surplus(a.0, *a.1).total_cmp(&surplus(b.0, *b.1))
        };
        let (any_above, any_below) = (counts.iter().any(|z| above(&z)), counts.iter().any(|z| below(&z)));
        if !any_above && !any_below {
            return;
        }
        let giver = counts.iter().filter(|z| if any_above { above(z) } else { gives(z) }).max_by(by_surplus);
        let receiver =
            counts.iter().filter(|z| if any_below { below(z) } else { takes(z) }).min_by(by_surplus);
        let (Some((&giver, _)), Some((&receiver, _))) = (giver, receiver) else { return };
        // An endpoint that is in the receiving zone anyway, else the last one.
        let given = (0..zones.len()).filter(|&i| zones[i] == giver);
        let Some(moved) = given.max_by_key(|&i| (ready[i].fields.zone == Some(receiver), i)) else { return };
        zones[moved] = receiver;
        *counts.entry(giver).or_default() -= 1;
        *counts.entry(receiver).or_default() += 1;
    }
}
