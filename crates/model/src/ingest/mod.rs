//! Converts API objects to compact domain values. A value that cannot be used is left out alone and becomes a [`Fault`]
//! that names its field; everything else of the object is used.

mod address;
mod service;
mod slice;
#[cfg(test)]
mod tests;

pub use service::{PROXY_PROTOCOL_ANNOTATION, Port, SCHEDULER_ANNOTATION, Service, read_service};
pub use slice::{Endpoint, Flags, Slice, SlicePort, read_slice};

pub use crate::reject::Fault;
use address::address;
pub(crate) use address::parse_cidr;
pub(crate) use portway_api::address::parse_ip;

/// The value of a field, or none after its fault was added to `faults`.
fn usable<T>(value: Result<T, Fault>, faults: &mut Vec<Fault>) -> Option<T> {
    value.map_err(|fault| faults.push(fault)).ok()
}

/// Checks a port number.
fn port(field: &str, number: i32) -> Result<u16, Fault> {
    match u16::try_from(number) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Fault::new("bad-port", field, format!("{number} is not a port, which is 1 to 65535"))),
    }
}
