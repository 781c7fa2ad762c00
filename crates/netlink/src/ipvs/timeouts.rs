//! How long an idle connection through a virtual server is remembered.

use crate::Malformed;
use crate::message::{Attrs, Buffer};

const TCP: u16 = 4;
const TCP_FIN: u16 = 5;
const UDP: u16 = 6;

/// Seconds until an idle connection is forgotten. All virtual servers of a namespace share them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// An established TCP connection.
    pub tcp: u32,
    /// A TCP connection that is being closed.
    pub tcp_fin: u32,
    /// A UDP conversation.
    pub udp: u32,
}

impl Timeouts {
    /// Reads them. A kernel built without one of the protocols leaves its timeouts out: they are 0.
    pub fn decode(body: Attrs<'_>) -> Result<Timeouts, Malformed> {
        let seconds = |kind, what| body.clone().find(kind).map_or(Ok(0), |a| a.u32(what));
        Ok(Timeouts {
            tcp: seconds(TCP, "TCP timeout")?,
            tcp_fin: seconds(TCP_FIN, "TCP FIN timeout")?,
            udp: seconds(UDP, "UDP timeout")?,
        })
    }

    pub(super) fn encode(&self, b: &mut Buffer) {
        b.attr_u32(TCP, self.tcp);
        b.attr_u32(TCP_FIN, self.tcp_fin);
        b.attr_u32(UDP, self.udp);
    }
}
