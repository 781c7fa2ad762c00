//! The bytes of a packet's headers that rules can read.

use portway_dataplane::trace::PacketState;
use portway_netlink::nft::expr::Base;
use std::net::IpAddr;

/// Bytes of a header; `None` if the header is shorter.
pub(super) fn payload(packet: &PacketState, base: Base, offset: u32, len: u32) -> Option<Vec<u8>> {
    let header = match base {
        Base::Network => network_header(packet),
        Base::Transport => transport_header(packet),
    };
    let from = offset as usize;
    header.get(from..from.checked_add(len as usize)?).map(<[u8]>::to_vec)
}

fn network_header(packet: &PacketState) -> Vec<u8> {
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0; 12];
            header[0] = 0x45;
            header[8] = 64;
            header[9] = packet.protocol.number();
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, packet.protocol.number(), 64];
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        _ => Vec::new(),
    }
}

/// The ports. The source port is 0: a trace has none, and no rule of Portway reads it.
fn transport_header(packet: &PacketState) -> Vec<u8> {
    let port = packet.port.to_be_bytes();
    vec![0, 0, port[0], port[1]]
}
