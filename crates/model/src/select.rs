//! Selects the endpoints of a Service that are eligible on this node (KEP-1669 terminating endpoints, KEP-2433 topology
//! hints, KEP-2086 internal traffic policy).

use crate::ingest::{Flags, Slice};
use crate::types::{Family, Protocol, Target};
use std::net::IpAddr;

/// An endpoint of one Service port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) target: Target,
    flags: Flags,
    zones: u16,
}

/// All endpoints of a Service port, from all of its slices, sorted. Of the same endpoint in two slices, the one that is
/// not terminating is used, then the one that is ready, then the one in the first slice.
pub(crate) fn candidates<'s>(
    slices: impl Iterator<Item = &'s Slice>,
    family: Family,
    name: &str,
    protocol: Protocol,
) -> Vec<Candidate> {
    let mut all = Vec::new();
    for slice in slices.filter(|s| s.family == family) {
        for port in slice.ports.iter().filter(|p| p.protocol == protocol && &*p.name == name) {
            all.extend(slice.endpoints.iter().map(|e| Candidate {
                target: Target { ip: e.ip, port: port.port },
                flags: e.flags,
                zones: e.zones,
            }));
        }
    }
    all.sort_by_key(|c| (c.target, c.flags.terminating(), !c.flags.ready()));
    all.dedup_by_key(|c| c.target);
    all
}

/// The eligible endpoints under policy `Cluster`.
pub(crate) fn cluster(all: &[Candidate], in_zone: impl Fn(u16) -> bool) -> Box<[Target]> {
    let ready: Vec<&Candidate> = all.iter().filter(|c| c.flags.ready()).collect();
    if ready.is_empty() {
        return targets(all.iter().filter(draining));
    }
    let for_node = |c: &&&Candidate| c.flags.hinted_for_this_node();
    let for_zone = |c: &&&Candidate| in_zone(c.zones);
    if ready.iter().all(|c| c.flags.node_hints()) && ready.iter().any(|c| for_node(&c)) {
        return targets(ready.iter().filter(for_node).copied());
    }
    if ready.iter().all(|c| c.zones != 0) && ready.iter().any(|c| for_zone(&c)) {
        return targets(ready.iter().filter(for_zone).copied());
    }
    targets(ready.into_iter())
}

/// The eligible endpoints under policy `Local`: those on this node.
pub(crate) fn local(all: &[Candidate]) -> Box<[Target]> {
    let here = || all.iter().filter(|c| c.flags.local());
    if here().any(|c| c.flags.ready()) {
        targets(here().filter(|c| c.flags.ready()))
    } else {
        targets(here().filter(draining))
    }
}

/// The addresses of ready endpoints on this node.
pub(crate) fn local_ready(all: &[Candidate]) -> impl Iterator<Item = IpAddr> {
    all.iter().filter(|c| c.flags.local() && c.flags.ready()).map(|c| c.target.ip)
}

/// Endpoints that are serving and not `used`: existing flows to them may continue.
pub(crate) fn also_serving(all: &[Candidate], used: impl Fn(&Target) -> bool) -> Box<[Target]> {
    targets(all.iter().filter(|c| (c.flags.serving() || c.flags.ready()) && !used(&c.target)))
}

/// The addresses of `used` endpoints that may be on this node, so that their own traffic begins here.
pub(crate) fn here(all: &[Candidate], used: impl Fn(&Target) -> bool) -> Box<[IpAddr]> {
    let mut ips: Vec<IpAddr> =
        all.iter().filter(|c| !c.flags.on_other_node() && used(&c.target)).map(|c| c.target.ip).collect();
    ips.dedup();
    ips.into()
}

fn draining(c: &&Candidate) -> bool {
    c.flags.serving() && c.flags.terminating()
}

fn targets<'c>(candidates: impl Iterator<Item = &'c Candidate>) -> Box<[Target]> {
    candidates.map(|c| c.target).collect()
}
