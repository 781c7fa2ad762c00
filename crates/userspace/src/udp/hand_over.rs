//! Hands a UDP session over to the kernel: an entry of connection tracking translates the client's flow to the endpoint
//! of the session, so that a client keeps its pod when the agent stops.
//!
//! The entry has the source address and port of the session's socket. The endpoint therefore sees the same peer as
//! before, and an answer that is on its way reaches the client.

use super::sessions::Session;
use crate::listeners::{Listener, address_of};
use portway_netlink::conntrack::{self, Flow, NewFlow, Tuple};
use portway_netlink::{Result, Socket};
use rustix::net::getsockname;
use std::net::SocketAddr;
use std::time::Duration;

/// Attempts to create an entry: a datagram of the client or of the endpoint may create one in between.
const ATTEMPTS: usize = 3;

/// Has the kernel translate the flow of a session. False if there is no tracked flow, or the session's endpoint is
/// no longer eligible: the rules choose an endpoint then.
pub(super) fn hand_over(
    tracker: &mut Socket,
    listener: &Listener,
    session: &Session,
    timeout: Duration,
) -> Result<bool> {
    if session.refused || session.lease.drains_until().is_some() {
        return Ok(false);
    }
    let reply = Tuple::udp(listener.address, session.key.1);
    let source = getsockname(&session.socket).ok().and_then(|address| address_of(address).ok());
    let (Some(source), Some(flow)) = (source, conntrack::find(tracker, &reply)?) else { return Ok(false) };
    if SocketAddr::new(flow.original.destination, flow.original.destination_port) != session.original {
        return Ok(false);
    }
    let endpoint = SocketAddr::new(session.lease.target.ip, session.lease.target.port);
    // The flow of the session's own socket has the addresses that the client's flow is to be translated to.
    let own = Tuple::udp(source, endpoint);
    let own = Flow { original: own, reply: own.reversed(), zone: flow.zone, translated: false };
    let new = NewFlow { original: flow.original, source, endpoint, zone: flow.zone, timeout };
    for _ in 0..ATTEMPTS {
        conntrack::delete(tracker, &own)?;
        conntrack::delete(tracker, &flow)?;
        if conntrack::create(tracker, &new)? {
            return Ok(true);
        }
    }
    Ok(false)
}
