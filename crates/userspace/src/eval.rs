//! Following a packet through the userspace mode, without a kernel.
//!
//! Input: the plans, the listeners, the first packet of a connection, and its trace through the redirecting rules,
//! which are another mode's. Output: that trace, continued through the relay. A verdict of the rules is final unless
//! the packet is for a listener; then the relay's own [`Routes`] and [`Port`](crate::balance::Port) decide, as they do
//! in the relay process. The relay opens a connection of its own, so the pod sees the node's address: `masqueraded`.
//!
//! Session affinity and ejection are state of a running relay, so they are not evaluated: the verdict has all endpoints
//! of the listener's scope.

use crate::balance::PortId;
use crate::clock::Moment;
use crate::redirect::{EndpointScope, ListenerPorts};
use crate::routes::Routes;
use portway_dataplane::UserspaceSettings;
use portway_dataplane::trace::{Packet, Path, Step, Trace, Verdict};
use portway_model::{Protocol, ServicePlan, Target};
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

/// A relay without sockets: its routes and listeners.
#[derive(Debug)]
pub struct Evaluator {
    routes: Routes,
    listeners: Option<ListenerPorts>,
}

/// A decision of the relay.
enum Decision {
    /// A listener of the relay received the packet; its scope determines which endpoints are allowed.
    Listener(Target, EndpointScope),
    /// The client dialled the listener directly, so there is no original destination.
    Direct(Target),
    /// The Service port that owns the original destination.
    Route(PortId),
    /// No Service port owns the original destination.
    NoRoute(SocketAddr),
    /// The relay connects to one of these endpoints, and sends a PROXY protocol header first if the Service asks for
    /// it.
    Connect {
        /// The endpoints of the scope.
        endpoints: BTreeSet<Target>,
        /// Whether the pod receives the client's address.
        proxy_header: bool,
    },
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Listener(listener, scope) => write!(f, "listener {listener}, scope {scope:?}"),
            Decision::Direct(listener) => write!(f, "listener {listener} dialled directly"),
            Decision::Route(id) => write!(f, "route: {} port {:?}", id.service, id.port),
            Decision::NoRoute(original) => write!(f, "no route for {original}"),
            Decision::Connect { endpoints, proxy_header } => {
                let header = if *proxy_header { ", with a PROXY header" } else { "" };
                write!(f, "connect to one of {endpoints:?}{header}")
            }
        }
    }
}

impl Evaluator {
    /// A relay with these plans. Without listeners there is no relay, and the rules point to endpoints.
    pub fn new<'p>(
        plans: impl IntoIterator<Item = &'p ServicePlan>,
        settings: &UserspaceSettings,
        listeners: Option<ListenerPorts>,
    ) -> Evaluator {
        let mut routes = Routes::default();
        for plan in plans {
            routes.change(&plan.name, plan.family, Some(plan), settings, Moment::now());
        }
        Evaluator { routes, listeners }
    }

    /// Follows a packet through the relay, after the redirecting rules gave `rules`.
    pub fn follow(&self, packet: &Packet, rules: Trace) -> Trace {
        Trace::new(rules.paths.into_iter().map(|path| self.follow_path(packet, path)).collect())
    }

    fn follow_path(&self, packet: &Packet, mut path: Path) -> Path {
        let Some(listeners) = &self.listeners else { return path };
        let mut decisions = Vec::new();
        match &path.verdict {
            Verdict::Delivered { to, .. } => {
                let mut to = to.iter();
                let (Some(target), None) = (to.next().copied(), to.next()) else { return path };
                if let Some(scope) = listeners.scope_of(packet.protocol, &target) {
                    decisions.push(Decision::Listener(target, scope));
                    path.verdict = self.relay(packet, scope, &mut decisions);
                }
            }
            Verdict::Untouched => {
                let target = Target { ip: packet.destination, port: packet.port };
                if listeners.scope_of(packet.protocol, &target).is_some() {
                    decisions.push(Decision::Direct(target));
                    path.verdict = refused(packet.protocol);
                }
            }
            Verdict::Rejected | Verdict::Dropped => {}
        }
        path.steps.extend(decisions.iter().map(|decision| Step::Relay(decision.to_string())));
        path
    }

    /// The relay's decision about a packet that a listener received.
    fn relay(&self, packet: &Packet, scope: EndpointScope, decisions: &mut Vec<Decision>) -> Verdict {
        let original = SocketAddr::new(packet.destination, packet.port);
        let Some(port) = self.routes.find(packet.protocol, original) else {
            decisions.push(Decision::NoRoute(original));
            return refused(packet.protocol);
        };
        decisions.push(Decision::Route(port.id.clone()));
        let endpoints: BTreeSet<Target> = port.targets(scope).into_iter().collect();
        if endpoints.is_empty() {
            return refused(packet.protocol);
        }
        let proxy_header = packet.protocol == Protocol::Tcp && port.wants_proxy_header();
        decisions.push(Decision::Connect { endpoints: endpoints.clone(), proxy_header });
        Verdict::Delivered { to: endpoints, masqueraded: true }
    }
}

/// A packet that the relay does not pass on: a TCP connection is reset, a datagram is discarded.
fn refused(protocol: Protocol) -> Verdict {
    if protocol == Protocol::Tcp { Verdict::Rejected } else { Verdict::Dropped }
}

#[cfg(test)]
mod tests;
