//! What can be different about virtual servers, as values: each knows its command and its name in words.
//!
//! What the kernel says to a change that does not fit: [`Error::is_exists`] (`EEXIST`) to one that adds what is there,
//! [`is_no_service`] (`ESRCH`) to one about a virtual server that is not there, and `ENOENT`
//! ([`Error::is_not_found`]) both for a real server that is not there and for a scheduler that the kernel does not
//! have; which of the two it is, the change tells: [`Change::is_no_server`] and [`Change::is_no_scheduler`].
//!
//! [`Error::is_exists`]: crate::Error::is_exists
//! [`Error::is_not_found`]: crate::Error::is_not_found

use super::server::{
    SERVER_ADDRESS, SERVER_FAMILY, SERVER_FORWARDING, SERVER_LOWER, SERVER_PORT, SERVER_UPPER, SERVER_WEIGHT,
    encode_address, family,
};
use super::{Behaviour, Key, SERVER, SERVICE};
use crate::Error;
use crate::genl::Command;
use crate::message::Buffer;
use std::net::SocketAddr;

const NEW_SERVICE: u8 = 1;
const SET_SERVICE: u8 = 2;
const DELETE_SERVICE: u8 = 3;
const NEW_SERVER: u8 = 5;
const SET_SERVER: u8 = 6;
const DELETE_SERVER: u8 = 7;

/// `IP_VS_CONN_F_MASQ`.
const MASQUERADE: u32 = 0;

/// A change. The real servers it makes are reached by NAT and take any number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the server and what is to become of it")]
pub enum Change<'a> {
    /// Makes a virtual server; fails if it is there.
    AddService { service: Key, behaviour: Behaviour<'a> },
    /// Changes how a virtual server behaves; its connections and what is behind it stay.
    SetService { service: Key, behaviour: Behaviour<'a> },
    /// Removes a virtual server with all that is behind it.
    DeleteService { service: Key },
    /// Puts a real server behind a virtual one; fails if it is there. With weight 0 it gets nothing new.
    AddServer { service: Key, server: SocketAddr, weight: u32 },
    /// Gives a real server another weight.
    SetServer { service: Key, server: SocketAddr, weight: u32 },
    /// Removes a real server from behind a virtual one.
    DeleteServer { service: Key, server: SocketAddr },
}

impl Change<'_> {
    /// The virtual server it is about.
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

    /// Whether `error`, the answer to this change, says that there is no such real server behind the virtual one.
    pub fn is_no_server(&self, error: &Error) -> bool {
        matches!(self, Change::SetServer { .. } | Change::DeleteServer { .. }) && error.is_not_found()
    }

    /// Whether `error`, the answer to this change, says that the kernel does not have the scheduler.
    pub fn is_no_scheduler(&self, error: &Error) -> bool {
        matches!(self, Change::AddService { .. } | Change::SetService { .. }) && error.is_not_found()
    }
}

/// Whether the kernel refused because there is no such virtual server.
pub fn is_no_service(error: &Error) -> bool {
    error.errno() == Some(libc::ESRCH)
}

impl Command for Change<'_> {
    fn code(&self) -> u8 {
        match self {
            Change::AddService { .. } => NEW_SERVICE,
            Change::SetService { .. } => SET_SERVICE,
            Change::DeleteService { .. } => DELETE_SERVICE,
            Change::AddServer { .. } => NEW_SERVER,
            Change::SetServer { .. } => SET_SERVER,
            Change::DeleteServer { .. } => DELETE_SERVER,
        }
    }

    fn fill(&self, b: &mut Buffer) {
        let key = self.service();
        b.nest(SERVICE, |b| {
            key.encode(b);
            if let Change::AddService { behaviour, .. } | Change::SetService { behaviour, .. } = self {
                behaviour.encode(key.family(), b);
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
            Change::AddServer { service, server, .. } => format!("put {server} behind {service}"),
            Change::SetServer { service, server, weight } => {
                format!("give {server} behind {service} weight {weight}")
            }
            Change::DeleteServer { service, server } => format!("remove {server} from behind {service}"),
        }
    }
}

/// Writes a real server; its address alone is enough to remove it.
fn fill_server(b: &mut Buffer, server: SocketAddr, weight: Option<u32>) {
    b.nest(SERVER, |b| {
        b.attr(SERVER_ADDRESS, &encode_address(server.ip()));
        b.attr_be16(SERVER_PORT, server.port());
        // Kernels before 3.18 do not know this one; newer ones refuse a family that is not the virtual server's.
        b.attr_u16(SERVER_FAMILY, family(server.ip()).into());
        let Some(weight) = weight else { return };
        b.attr_u32(SERVER_FORWARDING, MASQUERADE);
        b.attr_u32(SERVER_WEIGHT, weight);
        b.attr_u32(SERVER_UPPER, 0);
        b.attr_u32(SERVER_LOWER, 0);
    });
}
