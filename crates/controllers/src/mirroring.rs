//! The mirroring controller: slices for the Endpoints object that a person or another program writes for a Service
//! without a selector.
//!
//! In: the Service, the Endpoints object and the mirrored slices that there are. Out: the writes that make these right.
//! Pure.

use crate::cluster::Cluster;
use crate::cluster::service::AddressFamily;
use crate::cluster::slice::{Maintainer, SliceState};
use crate::fingerprint;
use crate::generated;
use crate::key::Key;
use crate::names::{LAST_APPLIED, SERVICE_NAME, SLICE_MANAGED_BY, TRIGGER_TIME};
use crate::plan::{Note, Object, Plan, Read, Reasoned, Version, Write, count};
use portway_api::address::parse_ip;
use portway_api::complete::{Endpoint, EndpointPort, EndpointSlice};
use portway_api::{
    EndpointAddress, EndpointConditions, EndpointSubset, Endpoints, ObjectMeta, OwnerReference, Resource,
    SubsetPort,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Decides which mirrored slices to write. `max_endpoints` is that of a subset.
pub fn reconcile(cluster: &Cluster, key: &Key, max_endpoints: usize) -> Plan {
    let existing = cluster.slices_of(key, Maintainer::Mirroring);
    let mirrored = cluster
        .service(key)
        .filter(|service| service.selector.is_none() && !service.external_name)
        .and_then(|_| cluster.endpoints(key))
        .filter(|endpoints| endpoints.may_be_mirrored());
    let mut plan = Plan::default();
    let Some(endpoints) = mirrored else {
        let reason = "the Endpoints object is not mirrored any more";
        plan.writes.extend(existing.into_iter().map(|slice| delete(slice, reason)));
        return plan;
    };
    let Some(subsets) = endpoints.subsets() else {
        plan.reads.push(Read { resource: Endpoints::TYPE, key: key.clone(), uid: None });
        return plan;
    };
    let desired = desired(subsets, max_endpoints, &mut plan);
    let meta = endpoints.meta.unpack();
    let is_taken = |name: &str| cluster.has_slice(&Key::new(key.namespace(), name));
    plan_slices(&mut plan, Metadata { key, meta: &meta }, existing, desired, is_taken);
    plan
}

type Desired = BTreeMap<(AddressFamily, Vec<EndpointPort>), Vec<Endpoint>>;

/// The endpoints by family and ports. Adds Events about addresses that cannot be mirrored.
fn desired(subsets: Vec<EndpointSubset>, max_endpoints: usize, plan: &mut Plan) -> Desired {
    let (mut desired, mut invalid) = (Desired::new(), 0);
    for subset in subsets {
        let mut ports: Vec<EndpointPort> = subset.ports.into_iter().map(port).collect();
        ports.sort_unstable();
        let total = subset.addresses.len() + subset.not_ready_addresses.len();
        let ready = subset.addresses.into_iter().map(|address| (address, true));
        let unready = subset.not_ready_addresses.into_iter().map(|address| (address, false));
        let (mut added, mut seen) = (0, HashSet::new());
        for (address, ready) in ready.chain(unready) {
            if added == max_endpoints {
                break;
            }
            match endpoint(address, ready) {
                Some((family, endpoint)) => {
                    added += 1;
                    let endpoints = desired.entry((family, ports.clone())).or_default();
                    // The same address may be written in two ways.
                    let identity = fingerprint::mirrored(&endpoint).identity;
                    if seen.insert((family, identity)) {
                        endpoints.push(endpoint);
                    }
                }
                None => invalid += 1,
            }
        }
        plan.figures.skipped += total - added;
        plan.figures.endpoints += added;
    }
    let mut warn = |reason, text| plan.notes.push(Note::warning(reason, text));
    if invalid > 0 {
        let text = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
        warn("InvalidIPAddress", text);
    }
    if plan.figures.skipped > invalid {
        let skipped = plan.figures.skipped;
        let text = format!(
            "A max of {max_endpoints} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were skipped"
        );
        plan.notes.push(Note::warning("TooManyAddressesToMirror", text));
    }
    desired
}

fn port(port: SubsetPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name),
        protocol: Some(port.protocol),
        port: Some(port.port),
        app_protocol: port.app_protocol,
    }
}

/// `None` if the address is not one.
fn endpoint(address: EndpointAddress, ready: bool) -> Option<(AddressFamily, Endpoint)> {
    let ip = parse_ip(&address.ip)?;
    let endpoint = Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: Some(address.hostname).filter(|name| !name.is_empty()),
        target_ref: address.target_ref,
        node_name: address.node_name,
        ..Endpoint::default()
    };
    Some((AddressFamily::of(ip), endpoint))
}

/// Plans one slice for each family and set of ports.
fn plan_slices(
    plan: &mut Plan,
    metadata: Metadata<'_>,
    mut existing: Vec<&SliceState>,
    desired: Desired,
    is_taken: impl Fn(&str) -> bool,
) {
    let (mut creates, mut updates) = (Vec::new(), Vec::new());
    for ((family, ports), wanted) in desired {
        plan.figures.slices += 1;
        plan.figures.needed += 1;
        let same = |slice: &&SliceState| *slice.address_type == *family.name() && *slice.ports == *ports;
        match existing.iter().position(same) {
            Some(position) => {
                let slice = existing.remove(position);
                let (added, changed, removed) = differences(slice, &wanted);
                plan.figures.added += added;
                plan.figures.changed += changed;
                plan.figures.removed += removed;
                if added + changed + removed > 0 || metadata.differs(slice) {
                    updates.push((slice, family, ports, wanted, "the Endpoints object changed"));
                }
            }
            None => {
                plan.figures.added += wanted.len();
                creates.push((family, ports, wanted));
            }
        }
    }
    let (mut writes, mut names) = (Vec::new(), Vec::new());
    for (family, ports, wanted) in creates {
        // A slice that is not needed any more is written over.
        let unneeded = existing.iter().position(|slice| *slice.address_type == *family.name());
        match unneeded.map(|position| existing.remove(position)) {
            Some(slice) => updates.push((slice, family, ports, wanted, "the ports changed")),
            None => {
                let reason = count(wanted.len(), "endpoint");
                let taken = |name: &str| is_taken(name) || names.iter().any(|n: &String| n == name);
                let meta = metadata.new_slice(family, &ports, taken);
                names.push(meta.name.clone());
                let slice = slice(meta, family, ports, wanted);
                writes.push(Reasoned::new(Write::Create(Object::Slice(Box::new(slice))), reason));
            }
        }
    }
    for (old, family, ports, wanted, reason) in updates {
        let slice = slice(metadata.of_slice(old), family, ports, wanted);
        writes.push(Reasoned::new(Write::Replace(Object::Slice(Box::new(slice))), reason));
    }
    // While the Endpoints object is being deleted, its slices are too.
    if metadata.meta.deletion_timestamp.is_some() {
        writes.retain(|reasoned| !matches!(reasoned.write, Write::Create(_)));
    }
    plan.writes.extend(writes);
    plan.writes.extend(existing.into_iter().map(|slice| delete(slice, "no address is left in it")));
}

fn slice(
    meta: ObjectMeta,
    family: AddressFamily,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    EndpointSlice { metadata: Some(meta), endpoints, ports, address_type: family.name().to_owned() }
}

fn delete(slice: &SliceState, reason: &str) -> Reasoned {
    Reasoned::new(Write::delete::<EndpointSlice>(Version::of(&slice.meta.unpack())), reason)
}

/// The numbers of endpoints that a slice lacks, has with other content, and has too many.
fn differences(slice: &SliceState, wanted: &[Endpoint]) -> (usize, usize, usize) {
    let mut missing: HashMap<u64, u64> =
        wanted.iter().map(fingerprint::mirrored).map(|print| (print.identity, print.content)).collect();
    let (mut changed, mut removed) = (0, 0);
    for print in &slice.endpoints {
        match missing.remove(&print.identity) {
            Some(content) => changed += usize::from(content != print.content),
            None => removed += 1,
        }
    }
    (missing.len(), changed, removed)
}

/// The metadata of the slices of an Endpoints object.
#[derive(Clone, Copy)]
struct Metadata<'a> {
    key: &'a Key,
    /// That of the Endpoints object.
    meta: &'a ObjectMeta,
}

impl Metadata<'_> {
    fn labels(&self) -> HashMap<String, String> {
        let mut labels = self.meta.labels.clone();
        labels.insert(SERVICE_NAME.to_owned(), self.key.name().to_owned());
        labels.insert(SLICE_MANAGED_BY.to_owned(), Maintainer::Mirroring.label().to_owned());
        labels
    }

    /// The annotations of the Endpoints object, without those that are about that object only.
    fn annotations(&self) -> HashMap<String, String> {
        let mut annotations = self.meta.annotations.clone();
        annotations.retain(|name, _| name != TRIGGER_TIME && name != LAST_APPLIED);
        annotations
    }

    fn owner(&self) -> OwnerReference {
        OwnerReference {
            kind: "Endpoints".to_owned(),
            name: self.key.name().to_owned(),
            uid: self.meta.uid.clone(),
            api_version: "v1".to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    fn differs(&self, slice: &SliceState) -> bool {
        let meta = slice.meta.unpack();
        let owned = meta.owner_references.iter().any(|owner| owner.uid == self.meta.uid);
        !owned || meta.labels != self.labels() || meta.annotations != self.annotations()
    }

    /// The metadata of a slice that is there, as it should be.
    fn of_slice(&self, slice: &SliceState) -> ObjectMeta {
        let mut meta = slice.meta.unpack();
        meta.owner_references.retain(|owner| owner.kind != "Endpoints" && owner.controller != Some(true));
        meta.owner_references.push(self.owner());
        ObjectMeta { labels: self.labels(), annotations: self.annotations(), ..meta }
    }

    /// The metadata of a new slice; its name is the same each time it is computed.
    fn new_slice(
        &self,
        family: AddressFamily,
        ports: &[EndpointPort],
        is_taken: impl Fn(&str) -> bool,
    ) -> ObjectMeta {
        let prefix = format!("{}-", self.key.name());
        let ports: Vec<u8> = ports.iter().flat_map(prost::Message::encode_to_vec).collect();
        let parts = [self.meta.uid.as_bytes(), family.name().as_bytes(), &ports];
        ObjectMeta {
            name: generated::name(&prefix, &parts, is_taken),
            generate_name: prefix,
            namespace: self.key.namespace().to_owned(),
            labels: self.labels(),
            annotations: self.annotations(),
            owner_references: vec![self.owner()],
            ..ObjectMeta::default()
        }
    }
}

#[cfg(test)]
mod tests;
