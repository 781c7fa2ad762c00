//! Changes to virtual and real servers as values: each is encoded to a command, and has a description for error texts.
//!
//! The kernel's errnos for a change that does not apply: `EEXIST` ([`Error::is_exists`]) if the server to be added
//! exists, `ESRCH` ([`is_no_service`]) if the virtual server does not exist, and `ENOENT` ([`Error::is_not_found`])
//! both if the real server does not exist and if the kernel does not have the scheduler; which of the two it means
//! depends on the change ([`Change::is_no_server`], [`Change::is_no_scheduler`]).
//!
//! [`Error::is_exists`]: crate::Error::is_exists
//! [`Error::is_not_found`]: crate::Error::is_not_found

use super::server::{encode_address, family};
use super::wire::*;
use super::{Key, ServiceOptions};
use crate::Error;
use crate::genl::Command;
use crate::message::Buffer;
use std::net::SocketAddr;

/// A change. Real servers are added with NAT as the forwarding method and without connection limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the server and its new state")]
pub enum Change<'a> {
    /// Adds a virtual server; fails if it exists.
    AddService { service: Key, options: ServiceOptions<'a> },
    /// Changes the options of a virtual server; its connections and real servers stay.
    SetService { service: Key, options: ServiceOptions<'a> },
    /// Deletes a virtual server with its real servers.
    DeleteService { service: Key },
    /// Adds a real server to a virtual one; fails if it exists. With weight 0 it gets no new connections.
    AddServer { service: Key, server: SocketAddr, weight: u32 },
    /// Changes the weight of a real server.
    SetServer { service: Key, server: SocketAddr, weight: u32 },
    /// Deletes a real server of a virtual one.
    DeleteServer { service: Key, server: SocketAddr },
}

impl Change<'_> {
    /// The virtual server of the change.
    pub fn service(&self) -> Key {
        match self {
            Change::AddService { service, .. }
            | Change::SetService { service, .. }
            | Change::DeleteService { service }
            | Change::AddServer { service, .. }
            | Change::SetServer { service, .. }
            | Change::DeleteServer { service, .. } => *service,
        }
    }

    /// Whether `error`, the answer to this change, means that the virtual server has no such real server.
    pub fn is_no_server(&self, error: &Error) -> bool {
        matches!(self, Change::SetServer { .. } | Change::DeleteServer { .. }) && error.is_not_found()
    }

    /// Whether `error`, the answer to this change, means that the kernel does not have the scheduler.
    pub fn is_no_scheduler(&self, error: &Error) -> bool {
        matches!(self, Change::AddService { .. } | Change::SetService { .. }) && error.is_not_found()
    }
}

/// Whether the kernel refused because there is no such virtual server (`ESRCH`).
pub fn is_no_service(error: &Error) -> bool {
    error.errno() == Some(libc::ESRCH)
}

impl Command for Change<'_> {
    fn code(&self) -> u8 {
        match self {
            Change::AddService { .. } => IPVS_CMD_NEW_SERVICE,
            Change::SetService { .. } => IPVS_CMD_SET_SERVICE,
            Change::DeleteService { .. } => IPVS_CMD_DEL_SERVICE,
            Change::AddServer { .. } => IPVS_CMD_NEW_DEST,
            Change::SetServer { .. } => IPVS_CMD_SET_DEST,
            Change::DeleteServer { .. } => IPVS_CMD_DEL_DEST,
        }
    }

    fn fill(&self, b: &mut Buffer) {
        let key = self.service();
        b.nest(IPVS_CMD_ATTR_SERVICE, |b| {
            key.encode(b);
            if let Change::AddService { options, .. } | Change::SetService { options, .. } = self {
                options.encode(key.family(), b);
            }
        });
        match self {
            Change::AddServer { server, weight, .. } | Change::SetServer { server, weight, .. } => {
                fill_server(b, *server, Some(*weight));
            }
            Change::DeleteServer { server, .. } => fill_server(b, *server, None),
            _ => {}
        }
    }

    fn describe(&self) -> String {
        match self {
            Change::AddService { service, .. } => format!("add {service}"),
            Change::SetService { service, .. } => format!("change {service}"),
            Change::DeleteService { service } => format!("delete {service}"),
            Change::AddServer { service, server, .. } => format!("add {server} to {service}"),
            Change::SetServer { service, server, weight } => {
                format!("set the weight of {server} in {service} to {weight}")
            }
            Change::DeleteServer { service, server } => format!("delete {server} from {service}"),
        }
    }
}

/// Writes a real server. To delete one, its address and port are enough.
fn fill_server(b: &mut Buffer, server: SocketAddr, weight: Option<u32>) {
    b.nest(IPVS_CMD_ATTR_DEST, |b| {
        b.attr(IPVS_DEST_ATTR_ADDR, &encode_address(server.ip()));
        b.attr_be16(IPVS_DEST_ATTR_PORT, server.port());
        // Kernels before 3.18 ignore this attribute; newer ones refuse a family other than the virtual server's.
        b.attr_u16(IPVS_DEST_ATTR_ADDR_FAMILY, family(server.ip()).into());
        let Some(weight) = weight else { return };
        b.attr_u32(IPVS_DEST_ATTR_FWD_METHOD, IP_VS_CONN_F_MASQ);
        b.attr_u32(IPVS_DEST_ATTR_WEIGHT, weight);
        b.attr_u32(IPVS_DEST_ATTR_U_THRESH, 0);
        b.attr_u32(IPVS_DEST_ATTR_L_THRESH, 0);
    });
}
