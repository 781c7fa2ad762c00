//! Properties of a packet that only matches of iptables need.

use crate::rules::States;
use portway_dataplane::trace::PacketState;

/// The conntrack states of the packet.
pub(super) fn states(packet: &PacketState) -> States {
    if packet.translated { States::NEW.or(States::DNAT) } else { States::NEW }
}

/// Whether the packet arrived on this interface; a `+` at the end matches any interface with this prefix.
pub(super) fn arrived_on(packet: &PacketState, name: &str) -> bool {
    let input = packet.input.as_deref().unwrap_or_default();
    match name.strip_suffix('+') {
        Some(prefix) => input.starts_with(prefix),
        None => input == name,
    }
}
