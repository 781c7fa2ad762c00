//! Timeouts of idle connections through virtual servers.

use super::wire::*;
use crate::DecodeError;
use crate::message::{Attrs, Buffer};

/// Seconds until IPVS drops an idle connection. All virtual servers of a namespace share them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// An established TCP connection.
    pub tcp: u32,
    /// A TCP connection that is being closed.
    pub tcp_fin: u32,
    /// A UDP flow.
    pub udp: u32,
}

impl Timeouts {
    /// Decodes the timeouts. A timeout of a protocol that the kernel was built without is 0.
    pub fn decode(body: Attrs<'_>) -> Result<Timeouts, DecodeError> {
        let seconds = |kind, field| body.clone().find(kind).map_or(Ok(0), |a| a.u32(field));
        Ok(Timeouts {
            tcp: seconds(IPVS_CMD_ATTR_TIMEOUT_TCP, "TCP timeout")?,
            tcp_fin: seconds(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, "TCP FIN timeout")?,
            udp: seconds(IPVS_CMD_ATTR_TIMEOUT_UDP, "UDP timeout")?,
        })
    }

    pub(super) fn encode(&self, b: &mut Buffer) {
        b.attr_u32(IPVS_CMD_ATTR_TIMEOUT_TCP, self.tcp);
        b.attr_u32(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, self.tcp_fin);
        b.attr_u32(IPVS_CMD_ATTR_TIMEOUT_UDP, self.udp);
    }
}
