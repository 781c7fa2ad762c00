//! Converts an EndpointSlice to the fields that the proxy uses.

use super::{Fault, address, port, usable};
use crate::api;
use crate::types::{Family, PortName, Protocol};
use std::net::IpAddr;

/// The fields of an EndpointSlice that the proxy uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its family.
    pub family: Family,
    /// Its ports.
    pub ports: Box<[SlicePort]>,
    /// Its endpoints.
    pub endpoints: Box<[Endpoint]>,
}

/// A port that every endpoint of a slice serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// The Service port's name.
    pub name: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port at the endpoint.
    pub port: u16,
}

/// An endpoint: 20 bytes, because a cluster may have a hundred thousand of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub ip: IpAddr,
    /// Its conditions, and whether it is on this node.
    pub flags: Flags,
    /// The zones in its hints: the number of a list that the caller of [`read_slice`] assigned, 0 for none.
    pub zones: u16,
}

/// Conditions of an endpoint, its location and its node hints, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    const READY: u8 = 1;
    const SERVING: u8 = 2;
    const TERMINATING: u8 = 4;
    const LOCAL: u8 = 8;
    const OTHER_NODE: u8 = 16;
    const NODE_HINTS: u8 = 32;
    const HINTED_FOR_THIS_NODE: u8 = 64;

    fn when(self, condition: bool, flag: u8) -> Flags {
        if condition { Flags(self.0 | flag) } else { self }
    }

    fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    /// It accepts new connections.
    pub fn ready(self) -> bool {
        self.has(Flags::READY)
    }

    /// It is serving, even if it is terminating.
    pub fn serving(self) -> bool {
        self.has(Flags::SERVING)
    }

    /// It is terminating.
    pub fn terminating(self) -> bool {
        self.has(Flags::TERMINATING)
    }

    /// It is on this node.
    pub fn local(self) -> bool {
        self.has(Flags::LOCAL)
    }

    /// It is known to be on another node. Otherwise its own traffic may begin on this node.
    pub fn on_other_node(self) -> bool {
        self.has(Flags::OTHER_NODE)
    }

    /// It has hints for nodes.
    pub fn node_hints(self) -> bool {
        self.has(Flags::NODE_HINTS)
    }

    /// It has a hint for this node.
    pub fn hinted_for_this_node(self) -> bool {
        self.has(Flags::HINTED_FOR_THIS_NODE)
    }
}

/// Converts a slice for the node `this_node`; `zones` returns the number of a list of zones. None if its addresses are
/// not IP addresses.
pub fn read_slice(
    object: &api::EndpointSlice,
    this_node: &str,
    mut zones: impl FnMut(&[api::Named]) -> u16,
    mut port_name: impl FnMut(&str) -> PortName,
    faults: &mut Vec<Fault>,
) -> Option<Slice> {
    let family = match object.address_type.as_str() {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        "FQDN" => return None,
        other => {
            let reason = format!("{other:?} is none of IPv4, IPv6, FQDN");
            faults.push(Fault::new("bad-value", "addressType", reason));
            return None;
        }
    };
    let mut endpoints = Vec::with_capacity(object.endpoints.len());
    for (i, given) in object.endpoints.iter().enumerate() {
        let Some(text) = given.addresses.first() else {
            faults.push(Fault::new("bad-address", format!("endpoints[{i}].addresses"), "is empty"));
            continue;
        };
        let field = format!("endpoints[{i}].addresses[0]");
        let Some(ip) = usable(address(&field, text), faults) else { continue };
        if Family::of(ip) != family {
            let reason = format!("{ip} is {}, but addressType says {family}", Family::of(ip));
            faults.push(Fault::new("wrong-family", field, reason));
            continue;
        }
        let hints = given.hints.as_ref();
        let zone_hints = hints.map_or(&[][..], |h| &h.for_zones);
        endpoints.push(Endpoint { ip, flags: flags(given, this_node), zones: zones(zone_hints) });
    }
    Some(Slice { family, ports: ports(object, &mut port_name, faults), endpoints: endpoints.into() })
}

fn flags(given: &api::Endpoint, this_node: &str) -> Flags {
    let conditions = given.conditions.unwrap_or_default();
    let node = given.node_name.as_deref().filter(|n| !n.is_empty());
    let nodes = given.hints.as_ref().map_or(&[][..], |h| &h.for_nodes);
    Flags::default()
        .when(conditions.ready.unwrap_or(true), Flags::READY)
        .when(conditions.serving.unwrap_or(true), Flags::SERVING)
        .when(conditions.terminating.unwrap_or(false), Flags::TERMINATING)
        .when(node == Some(this_node), Flags::LOCAL)
        .when(node.is_some_and(|n| n != this_node), Flags::OTHER_NODE)
        .when(!nodes.is_empty(), Flags::NODE_HINTS)
        .when(nodes.iter().any(|n| n.name == this_node), Flags::HINTED_FOR_THIS_NODE)
}

fn ports(
    object: &api::EndpointSlice,
    port_name: &mut impl FnMut(&str) -> PortName,
    faults: &mut Vec<Fault>,
) -> Box<[SlicePort]> {
    let mut ports = Vec::with_capacity(object.ports.len());
    for (i, given) in object.ports.iter().enumerate() {
        let number = given.port.unwrap_or(0);
        if number == 0 {
            continue;
        }
        let text = given.protocol.as_deref().unwrap_or("");
        let Some(protocol) = Protocol::parse(text) else {
            let reason = format!("{text:?} is none of TCP, UDP, SCTP");
            faults.push(Fault::new("bad-value", format!("ports[{i}].protocol"), reason));
            continue;
        };
        if let Some(port) = usable(port(&format!("ports[{i}].port"), number), faults) {
            ports.push(SlicePort { name: port_name(given.name.as_deref().unwrap_or("")), protocol, port });
        }
    }
    ports.into()
}
