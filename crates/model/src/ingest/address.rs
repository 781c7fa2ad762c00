//! Parses addresses and ranges as kube-proxy does.
//!
//! Objects that were stored by old API servers may have addresses that stricter parsers refuse: leading zeros, which are
//! decimal (`010.0.0.1` is 10.0.0.1), and IPv4 addresses in IPv6 notation (`::ffff:1.2.3.4` is 1.2.3.4). They mean the
//! same as with Go's `ParseIPSloppy`.

use super::Fault;
use ipnet::IpNet;
use portway_api::address::{decimal, parse_ip};
use std::net::IpAddr;

/// Parses an address of a Service or an endpoint. Link-local, unspecified, loopback and multicast addresses are errors.
pub(super) fn address(field: &str, text: &str) -> Result<IpAddr, Fault> {
    let ip = parse_ip(text).ok_or_else(|| {
        Fault::new("bad-address", field, format!("{text:?} is not an IPv4 or IPv6 address"))
    })?;
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

/// Parses a range. Its host bits are cleared.
pub(crate) fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let (ip, length): (IpAddr, u8) = (parse_ip(address)?, decimal(length)?);
    // The length of an IPv4 range in IPv6 notation counts from the first of 128 bits.
    let length = if ip.is_ipv4() && address.contains(':') { length.checked_sub(96)? } else { length };
    IpNet::new(ip, length).ok().map(|net| net.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_mean_the_same_as_in_kube_proxy() {
        let parsed = |text: &str| parse_ip(text).map(|ip| ip.to_string());
        for (text, meaning) in [
            ("10.0.0.1", "10.0.0.1"),
            ("010.000.0.001", "10.0.0.1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("fd00::1", "fd00::1"),
            ("FD00:0:0::1", "fd00::1"),
        ] {
            assert_eq!(parsed(text).as_deref(), Some(meaning), "{text}");
        }
        for text in [
            "",
            "10.0.0",
            "10.0.0.1.2",
            "10.0.0.256",
            "10.0.0.+1",
            "10.0.0.",
            "0x0a.0.0.1",
            "fd00::g",
            "::1%lo",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn ranges_mean_the_same_as_in_kube_proxy() {
        let parsed = |text: &str| parse_cidr(text).map(|net| net.to_string());
        for (text, meaning) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("010.0.0.0/08", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("fd00::/8", "fd00::/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(parsed(text).as_deref(), Some(meaning), "{text}");
        }
        for text in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1", "::ffff:10.0.0.0/8", "fd00::/129", "/8"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
