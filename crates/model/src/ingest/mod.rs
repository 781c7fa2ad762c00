//! Converts API objects to compact domain values, or to an error that names the invalid field.

mod service;
mod slice;
#[cfg(test)]
mod tests;

pub use service::{PROXY_PROTOCOL_ANNOTATION, Port, SCHEDULER_ANNOTATION, Service, read_service};
pub use slice::{Endpoint, Flags, Slice, SlicePort, read_slice};

pub use crate::reject::Fault;
use std::net::IpAddr;

/// Parses an address of a Service or an endpoint. Link-local, unspecified, loopback and multicast addresses are errors.
fn address(field: &str, text: &str) -> Result<IpAddr, Fault> {
    let ip: IpAddr = text
        .parse()
        .map_err(|_| Fault::new("bad-address", field, format!("{text:?} is not an IPv4 or IPv6 address")))?;
    let special = match ip {
        IpAddr::V4(a) if a.is_link_local() => Some("a link-local"),
        IpAddr::V6(a) if a.is_unicast_link_local() => Some("a link-local"),
        _ if ip.is_unspecified() => Some("the unspecified"),
        _ if ip.is_loopback() => Some("a loopback"),
        _ if ip.is_multicast() => Some("a multicast"),
        _ => None,
    };
    match special {
        Some(kind) => {
            Err(Fault::new("bad-address", field, format!("{ip} is {kind} address and cannot be served")))
        }
        None => Ok(ip),
    }
}

/// Checks a port number.
fn port(field: &str, number: i32) -> Result<u16, Fault> {
    match u16::try_from(number) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Fault::new("bad-port", field, format!("{number} is not a port, which is 1 to 65535"))),
    }
}
