//! Neighbours, the hardware addresses of IP addresses on a link: `struct ndmsg` and the attributes of
//! `linux/neighbour.h`.

use super::{attr_ip, decode_ip, family, fixed};
use crate::DecodeError;
use crate::message::{Buffer, attrs};
use std::net::IpAddr;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// Size of `struct ndmsg`.
pub(super) const NDMSG_LEN: usize = 12;

/// A neighbour: an entry of the ARP or neighbour discovery table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the link.
    pub link: u32,
    /// Its IP address.
    pub ip: IpAddr,
    /// Its hardware address, if it is known and has six bytes.
    pub mac: Option<[u8; 6]>,
    /// Whether it was configured and does not expire (`NUD_PERMANENT`), or was learnt and expires.
    pub permanent: bool,
}

impl Neighbour {
    /// Decodes the body of an `RTM_NEWNEIGH` message.
    pub fn decode(body: &[u8]) -> Result<Neighbour, DecodeError> {
        let [family, _, _, _, l0, l1, l2, l3, s0, s1, _, _]: [u8; NDMSG_LEN] =
            fixed(body, "neighbour header")?;
        let all = attrs(&body[NDMSG_LEN..]);
        let ip = all.clone().need(NDA_DST, "neighbour address")?;
        Ok(Neighbour {
            link: u32::from_ne_bytes([l0, l1, l2, l3]),
            ip: decode_ip(family, ip.value, "neighbour address")?,
            mac: all.find(NDA_LLADDR).and_then(|a| a.value.try_into().ok()),
            permanent: u16::from_ne_bytes([s0, s1]) & libc::NUD_PERMANENT != 0,
        })
    }

    pub(super) fn fill(&self, b: &mut Buffer) {
        let state = if self.permanent { libc::NUD_PERMANENT } else { libc::NUD_REACHABLE };
        b.raw(&[family(self.ip), 0, 0, 0]);
        b.raw(&self.link.to_ne_bytes());
        b.raw(&state.to_ne_bytes());
        b.raw(&[0; 2]);
        attr_ip(b, NDA_DST, self.ip);
        if let Some(mac) = self.mac {
            b.attr(NDA_LLADDR, &mac);
        }
    }
}
