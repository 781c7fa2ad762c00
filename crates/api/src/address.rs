//! Parses addresses as Kubernetes' own components do.
//!
//! Objects that were stored by old API servers may have addresses that stricter parsers refuse: leading zeros, which are
//! decimal (`010.0.0.1` is 10.0.0.1), and IPv4 addresses in IPv6 notation (`::ffff:1.2.3.4` is 1.2.3.4). They mean the
//! same as with Go's `ParseIPSloppy`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Parses an address.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        let ip: Ipv6Addr = text.parse().ok()?;
        return Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4));
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = decimal(parts.next()?)?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

/// A decimal number without a sign, perhaps with leading zeros.
pub fn decimal(text: &str) -> Option<u8> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}
