//! Properties of a packet that only the matches of iptables ask for.

use crate::rules::States;
use portway_dataplane::trace::PacketState;

/// The conntrack states of its connection.
pub(super) fn states(packet: &PacketState) -> States {
    if packet.translated { States::NEW.or(States::DNAT) } else { States::NEW }
}

/// Whether it arrived on this interface; a `+` at the end of a name stands for any rest.
pub(super) fn arrived_on(packet: &PacketState, name: &str) -> bool {
    let input = packet.input.as_deref().unwrap_or_default();
    match name.strip_suffix('+') {
        Some(prefix) => input.starts_with(prefix),
        None => input == name,
    }
}
