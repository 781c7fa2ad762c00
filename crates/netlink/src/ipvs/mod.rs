//! IPVS: virtual servers and the real ones behind them (`linux/ip_vs.h`).
//!
//! In go [`Change`]s, values that say what is to be different; out come [`VirtualServer`]s and [`RealServer`]s as the
//! kernel lists them. A virtual server is found by its [`Key`]: firewall mark, or else protocol, address and port; its
//! [`Behaviour`] is the rest of it. Addresses take sixteen bytes on the wire, of which IPv4 uses the first four; ports
//! and masks are in network order, everything else in the host's. The kernel knows no transactions here: in a batch
//! each change succeeds or fails on its own, and the failures are returned with their place in the batch.

mod change;
mod server;
#[cfg(test)]
mod tests;
mod timeouts;

pub use change::{Change, is_no_service};
pub use server::{Behaviour, Forwarding, Key, PERSISTENT, RealServer, VirtualServer};
pub use timeouts::Timeouts;

use crate::genl::Genl;
use crate::message::Attrs;
use crate::{Failed, Result};
use std::path::Path;

const NAME: &str = "IPVS";
const VERSION: u8 = 1;

const GET_SERVICE: u8 = 4;
const GET_SERVER: u8 = 8;
const SET_CONFIG: u8 = 12;
const GET_CONFIG: u8 = 13;

const SERVICE: u16 = 1;
const SERVER: u16 = 2;

/// Whether IPVS is loaded, and so may have something to tell. Unlike [`open`], this loads nothing.
pub fn is_loaded() -> bool {
    Path::new("/proc/thread-self/net/ip_vs").exists()
}

/// Opens the conversation; `None` if the kernel has no IPVS. It declares itself under the family's name, so a kernel
/// that has it as a module loads it.
pub fn open() -> Result<Option<Genl>> {
    Genl::open(NAME, VERSION)
}

/// All virtual servers of the namespace.
pub fn services(genl: &mut Genl) -> Result<Vec<VirtualServer>> {
    genl.list(GET_SERVICE, "list virtual servers", |_| {}, VirtualServer::decode)
}

/// One virtual server; `None` if there is none of this key.
pub fn service(genl: &mut Genl, key: &Key) -> Result<Option<VirtualServer>> {
    let operation = format!("read {key}");
    let found =
        genl.ask(GET_SERVICE, &operation, |b| b.nest(SERVICE, |b| key.encode(b)), VirtualServer::decode);
    match found {
        Ok(service) => Ok(Some(service)),
        Err(e) if is_no_service(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The real servers behind a virtual one; none if that does not exist.
pub fn servers(genl: &mut Genl, service: &Key) -> Result<Vec<RealServer>> {
    let operation = format!("list what is behind {service}");
    let decode = |body: Attrs<'_>| RealServer::decode(body, service.family());
    genl.list(GET_SERVER, &operation, |b| b.nest(SERVICE, |b| service.encode(b)), decode)
}

/// Makes one change.
pub fn apply(genl: &mut Genl, change: &Change<'_>) -> Result<()> {
    let failed = genl.command_all(std::slice::from_ref(change))?;
    failed.into_iter().next().map_or(Ok(()), |failed| Err(failed.error))
}

/// Makes many changes in few datagrams, in order, and goes on after those that fail.
pub fn apply_all(genl: &mut Genl, changes: &[Change<'_>]) -> Result<Vec<Failed>> {
    genl.command_all(changes)
}

/// Removes a virtual server with all that is behind it; false if it was gone already.
pub fn delete_service(genl: &mut Genl, service: &Key) -> Result<bool> {
    match apply(genl, &Change::DeleteService { service: *service }) {
        Ok(()) => Ok(true),
        Err(e) if is_no_service(&e) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The namespace's timeouts.
pub fn timeouts(genl: &mut Genl) -> Result<Timeouts> {
    genl.ask(GET_CONFIG, "read the timeouts of virtual servers", |_| {}, Timeouts::decode)
}

/// Sets the namespace's timeouts; those that are 0 stay as they are.
pub fn set_timeouts(genl: &mut Genl, timeouts: &Timeouts) -> Result<()> {
    genl.request(SET_CONFIG, "set the timeouts of virtual servers", |b| timeouts.encode(b))
}
