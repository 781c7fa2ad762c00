//! A packet on its way: what rules read of it and what they do to it.

use crate::rules::States;
use portway_dataplane::packet::{Packet, Verdict};
use portway_model::{Protocol, Target};
use std::net::IpAddr;

/// The packet as it is by now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Walker {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// Where it was headed first.
    pub(super) original: IpAddr,
    /// How.
    pub protocol: Protocol,
    /// To which port.
    pub port: u16,
    pub(super) input: Option<String>,
    /// Its mark.
    pub mark: u32,
    pub(super) connection_mark: u32,
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
            original: packet.destination,
            protocol: packet.protocol,
            port: packet.port,
            input: packet.input.clone(),
            mark: 0,
            connection_mark: 0,
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

    /// What conntrack says of its connection.
    pub(super) fn states(&self) -> States {
        if self.translated { States::NEW.or(States::DNAT) } else { States::NEW }
    }

    /// Whether it came in on this interface; a `+` at the end of a name stands for anything.
    pub(super) fn came_in_on(&self, name: &str) -> bool {
        let input = self.input.as_deref().unwrap_or_default();
        match name.strip_suffix('+') {
            Some(prefix) => input.starts_with(prefix),
            None => input == name,
        }
    }

    /// What became of it, if nothing stopped it.
    pub(super) fn verdict(&self) -> Verdict {
        if !self.translated && !self.masqueraded {
            return Verdict::Untouched;
        }
        let target = Target { ip: self.destination, port: self.port };
        Verdict::Delivered { to: [target].into(), masqueraded: self.masqueraded }
    }
}
