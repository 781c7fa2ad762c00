//! A packet on its way: what rules read of it and what they do to it.

use portway_dataplane::packet::{Packet, Verdict};
use portway_model::{Protocol, Target};
use portway_netlink::nft::expr::Base;
use std::net::IpAddr;

/// The packet as it is by now.
#[derive(Clone, Debug)]
pub(super) struct Walker {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) input: Option<String>,
    pub(super) mark: u32,
    pub(super) translated: bool,
    pub(super) masqueraded: bool,
    /// It left through the loopback interface and came in again.
    pub(super) came_back: bool,
}

impl Walker {
    pub(super) fn new(packet: &Packet) -> Walker {
        Walker {
            source: packet.source,
            destination: packet.destination,
            protocol: packet.protocol,
            port: packet.port,
            input: packet.input.clone(),
            mark: 0,
            translated: false,
            masqueraded: false,
            came_back: false,
        }
    }

    pub(super) fn come_back(&mut self) {
        self.came_back = true;
        self.input = Some("lo".to_owned());
    }

    pub(super) fn translate(&mut self, target: Target) {
        self.destination = target.ip;
        self.port = target.port;
        self.translated = true;
    }

    /// What became of it, if nothing stopped it.
    pub(super) fn verdict(&self) -> Verdict {
        if !self.translated && !self.masqueraded {
            return Verdict::Untouched;
        }
        let target = Target { ip: self.destination, port: self.port };
        Verdict::Delivered { to: [target].into(), masqueraded: self.masqueraded }
    }

    /// Bytes of a header; none if it ends before that.
    pub(super) fn payload(&self, base: Base, offset: u32, len: u32) -> Option<Vec<u8>> {
        let header = match base {
            Base::Network => self.network_header(),
            Base::Transport => self.transport_header(),
        };
        let from = offset as usize;
        header.get(from..from.checked_add(len as usize)?).map(<[u8]>::to_vec)
    }

    fn network_header(&self) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = vec![0; 12];
                header[0] = 0x45;
                header[8] = 64;
                header[9] = self.protocol.number();
                header.extend(source.octets());
                header.extend(destination.octets());
                header
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut header = vec![0x60, 0, 0, 0, 0, 0, self.protocol.number(), 64];
                header.extend(source.octets());
                header.extend(destination.octets());
                header
            }
            _ => Vec::new(),
        }
    }

    /// The ports; what the source port is matters to nobody here.
    fn transport_header(&self) -> Vec<u8> {
        let port = self.port.to_be_bytes();
        vec![0, 0, port[0], port[1]]
    }
}
