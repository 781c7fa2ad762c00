//! IPVS: virtual servers and their real servers (`linux/ip_vs.h`).
//!
//! Lists [`VirtualServer`]s and [`RealServer`]s, and applies [`Change`]s to them. A virtual server is identified by its
//! [`Key`]: firewall mark, or protocol, address and port; its other properties are its [`ServiceOptions`]. An address
//! has sixteen bytes on the wire, of which IPv4 uses the first four; ports and masks are in network order, all other
//! numbers in host order. There are no transactions: each change of a batch succeeds or fails independently, and the
//! errors are returned with the index of the change.

mod change;
mod server;
#[cfg(test)]
mod tests;
mod timeouts;
mod wire;

pub use change::{Change, is_no_service};
pub use server::{Forwarding, Key, PERSISTENT, RealServer, ServiceOptions, VirtualServer};
pub use timeouts::Timeouts;

use crate::genl::Genl;
use crate::message::Attrs;
use crate::{Failed, Result};
use std::path::Path;
use wire::*;

/// Whether the kernel has IPVS loaded. Unlike [`open`], this does not load the module.
pub fn is_loaded() -> bool {
    Path::new("/proc/thread-self/net/ip_vs").exists()
}

/// Opens a socket for IPVS; `None` if the kernel does not have it. If IPVS is a module, the kernel loads it.
pub fn open() -> Result<Option<Genl>> {
    Genl::open(IPVS_GENL_NAME, IPVS_GENL_VERSION)
}

/// All virtual servers of the namespace.
pub fn services(genl: &mut Genl) -> Result<Vec<VirtualServer>> {
    genl.list(IPVS_CMD_GET_SERVICE, "list virtual servers", |_| {}, VirtualServer::decode)
}

/// The virtual server with this key, if it exists.
pub fn service(genl: &mut Genl, key: &Key) -> Result<Option<VirtualServer>> {
    let operation = format!("read {key}");
    let found = genl.query(
        IPVS_CMD_GET_SERVICE,
        &operation,
        |b| b.nest(IPVS_CMD_ATTR_SERVICE, |b| key.encode(b)),
        VirtualServer::decode,
    );
    match found {
        Ok(service) => Ok(Some(service)),
        Err(e) if is_no_service(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The real servers of a virtual one; empty if the virtual server does not exist.
pub fn servers(genl: &mut Genl, service: &Key) -> Result<Vec<RealServer>> {
    let operation = format!("list the real servers of {service}");
    let decode = |body: Attrs<'_>| RealServer::decode(body, service.family());
    genl.list(IPVS_CMD_GET_DEST, &operation, |b| b.nest(IPVS_CMD_ATTR_SERVICE, |b| service.encode(b)), decode)
}

/// Applies one change.
pub fn apply(genl: &mut Genl, change: &Change<'_>) -> Result<()> {
    let failed = genl.command_all(std::slice::from_ref(change))?;
    failed.into_iter().next().map_or(Ok(()), |failed| Err(failed.error))
}

/// Applies changes in few datagrams, in order, continues after refused ones, and returns their errors.
pub fn apply_all(genl: &mut Genl, changes: &[Change<'_>]) -> Result<Vec<Failed>> {
    genl.command_all(changes)
}

/// Deletes a virtual server with its real servers; false if it did not exist.
pub fn delete_service(genl: &mut Genl, service: &Key) -> Result<bool> {
    match apply(genl, &Change::DeleteService { service: *service }) {
        Ok(()) => Ok(true),
        Err(e) if is_no_service(&e) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The namespace's timeouts.
pub fn timeouts(genl: &mut Genl) -> Result<Timeouts> {
    genl.query(IPVS_CMD_GET_CONFIG, "read the timeouts of virtual servers", |_| {}, Timeouts::decode)
}

/// Sets the namespace's timeouts; a timeout of 0 is not changed.
pub fn set_timeouts(genl: &mut Genl, timeouts: &Timeouts) -> Result<()> {
    genl.request(IPVS_CMD_SET_CONFIG, "set the timeouts of virtual servers", |b| timeouts.encode(b))
}
