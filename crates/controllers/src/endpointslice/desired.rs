//! The endpoints that a Service should have, from its Pods.

use crate::cluster::Cluster;
use crate::cluster::pod::PodState;
use crate::cluster::service::{AddressFamily, PortState, ServiceState, Target};
use crate::fingerprint::{self, EndpointFields, EndpointPrint};
use crate::key::Key;
use portway_api::complete::{Endpoint, EndpointPort};
use portway_api::{EndpointConditions, EndpointHints, Named, ObjectReference};
use std::rc::Rc;

/// The zone and node in an endpoint's hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint<'a> {
    pub(crate) zone: Option<&'a str>,
    pub(crate) node: Option<&'a str>,
}

/// An endpoint that a Service should have.
#[derive(Clone, Debug)]
pub(crate) struct Desired<'a> {
    pub(crate) ports: Rc<[EndpointPort]>,
    pub(crate) fields: EndpointFields<'a>,
    pub(crate) hint: Hint<'a>,
}

impl Desired<'_> {
    pub(crate) fn is_ready(&self) -> bool {
        self.fields.conditions.ready == Some(true)
    }

    pub(crate) fn print(&self) -> EndpointPrint {
        self.fields.print(fingerprint::hints(self.hint.zone, self.hint.node))
    }

    /// As it is written.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let fields = &self.fields;
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let named =
            |name: Option<&str>| name.map(|name| Named { name: name.to_owned() }).into_iter().collect();
        let hints = EndpointHints { for_zones: named(self.hint.zone), for_nodes: named(self.hint.node) };
        Endpoint {
            addresses: vec![fields.address.to_string()],
            conditions: Some(fields.conditions),
            hostname: owned(fields.hostname),
            target_ref: fields.pod.map(|(namespace, name, uid)| ObjectReference {
                kind: "Pod".to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
                ..ObjectReference::default()
            }),
            node_name: owned(fields.node),
            zone: owned(fields.zone),
            hints: (self.hint != Hint::default()).then_some(hints),
            ..Endpoint::default()
        }
    }
}

/// The endpoints of one family, in the order of the Pods' names; and the name of a node that does not exist, whose Pods
/// are left out.
pub(crate) fn desired<'a>(
    cluster: &'a Cluster,
    key: &Key,
    service: &ServiceState,
    pods: &[(&'a Key, &'a PodState)],
    family: AddressFamily,
) -> (Vec<Desired<'a>>, Option<&'a str>) {
    let (mut found, mut missing) = (Vec::with_capacity(pods.len()), None);
    let mut port_sets: Vec<Rc<[EndpointPort]>> = Vec::new();
    for &(name, pod) in pods {
        let Some(address) = pod.address(family).filter(|_| !pod.terminal) else { continue };
        let node = (!pod.node.is_empty()).then_some(&*pod.node);
        let state = node.and_then(|node| cluster.node(node));
        if let Some(node) = node
            && state.is_none()
            && !service.publish_not_ready
        {
            missing = Some(node);
            continue;
        }
        let ports = ports(service, pod);
        let known = port_sets.iter().find(|known| ***known == *ports).cloned();
        let ports = known.unwrap_or_else(|| {
            let ports: Rc<[EndpointPort]> = ports.into();
            port_sets.push(ports.clone());
            ports
        });
        let ready = service.publish_not_ready || pod.ready && !pod.terminating;
        found.push(Desired {
            ports,
            fields: EndpointFields {
                address,
                hostname: hostname(key, name, pod),
                pod: Some((name.namespace(), name.name(), &pod.uid)),
                node,
                zone: state.and_then(|node| node.zone.as_deref()),
                conditions: EndpointConditions {
                    ready: Some(ready),
                    serving: Some(pod.ready),
                    terminating: Some(pod.terminating),
                },
            },
            hint: Hint::default(),
        });
    }
    (found, missing)
}

/// A Pod's host name, if DNS has it under the Service.
pub(crate) fn hostname<'a>(service: &Key, pod: &Key, state: &'a PodState) -> Option<&'a str> {
    let published = !state.hostname.is_empty()
        && *state.subdomain == *service.name()
        && pod.namespace() == service.namespace();
    published.then_some(&*state.hostname)
}

/// The ports of a Pod that a Service leads to, sorted. A port whose name the Pod does not have is left out.
fn ports(service: &ServiceState, pod: &PodState) -> Vec<EndpointPort> {
    let resolved = service.ports.iter().filter_map(|port| Some(endpoint_port(port, number(port, pod)?)));
    let mut ports: Vec<EndpointPort> = resolved.collect();
    ports.sort_unstable();
    ports
}

/// The number of a Service port at a Pod.
pub(crate) fn number(port: &PortState, pod: &PodState) -> Option<i32> {
    match &port.target {
        Target::Number(number) => Some(*number),
        Target::Name(name) => pod.port(name, &port.protocol),
    }
}

fn endpoint_port(port: &PortState, number: i32) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.to_string()),
        protocol: Some(port.protocol.to_string()),
        port: Some(number),
        app_protocol: port.app_protocol.as_ref().map(ToString::to_string),
    }
}
