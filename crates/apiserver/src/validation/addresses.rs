//! IP addresses and ranges in fields of objects.

use super::Causes;
use serde_json::json;
use std::net::{IpAddr, Ipv6Addr};

/// What is wrong with an address, in a field that once took more forms of it. Addresses that the object already had
/// (`known`) are taken as they are.
pub fn check_address(field: &str, text: &str, known: &[&str], causes: &mut Causes) -> bool {
    if known.contains(&text) {
        return true;
    }
    let why = match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => "must not be an IPv4-mapped IPv6 address",
        Ok(_) => return true,
        Err(_) if sloppy(text).is_some() => "must not have leading 0s",
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    causes.invalid(field, &json!(text), why);
    false
}

/// What is wrong with a range.
pub fn check_range(field: &str, text: &str, known: &[&str], causes: &mut Causes) {
    if known.contains(&text) {
        return;
    }
    const MALFORMED: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
    let why = match parts(text) {
        None => MALFORMED,
        Some((address, length)) => {
            let has_zeros = text.split_once('/').is_some_and(|(ip, length)| {
                ip.parse::<IpAddr>().is_err() || length.len() > 1 && length.starts_with('0')
            });
            let bits = u128::from_be_bytes(match address {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            });
            let width = if address.is_ipv4() { 32 } else { 128 };
            let beyond = bits.checked_shl(128 - (width - length)).unwrap_or(0);
            match (address, has_zeros) {
                (_, true) => "must not have leading 0s in IP or prefix length",
                (IpAddr::V6(ip), _) if ip.to_ipv4_mapped().is_some() => {
                    "must not have an IPv4-mapped IPv6 address"
                }
                _ if beyond != 0 => "must not have bits set beyond the prefix length",
                _ => return,
            }
        }
    };
    causes.invalid(field, &json!(text), why);
}

/// An address and the length of a prefix, also with leading zeros.
fn parts(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = text.split_once('/')?;
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let length: u32 = length.parse().ok().filter(|_| is_number)?;
    let address = address.parse().ok().or_else(|| sloppy(address))?;
    Some((address, length)).filter(|_| length <= if address.is_ipv4() { 32 } else { 128 })
}

/// An IPv4 address whose numbers have leading zeros.
fn sloppy(text: &str) -> Option<IpAddr> {
    let part = |part: &str| part.trim_start_matches('0').to_owned();
    let parts = text.split('.').map(|text| match part(text) {
        number if number.is_empty() && !text.is_empty() => "0".to_owned(),
        number => number,
    });
    parts.collect::<Vec<_>>().join(".").parse().ok().filter(IpAddr::is_ipv4)
}

/// What is wrong with an address outside of the cluster.
pub fn check_not_special(field: &str, text: &str, causes: &mut Causes) {
    let Ok(ip) = text.parse::<IpAddr>() else { return };
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_link_local_multicast = match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => is_multicast_of_link(ip),
    };
    let why = [
        (ip.is_unspecified(), format!("may not be unspecified ({text})")),
        (ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()),
        (is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()),
        (
            is_link_local_multicast,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned(),
        ),
    ];
    for (_, why) in why.into_iter().filter(|(is, _)| *is) {
        causes.invalid(field, &json!(text), why);
    }
}

fn is_multicast_of_link(ip: Ipv6Addr) -> bool {
    let [first, second, ..] = ip.octets();
    first == 0xff && second & 0x0f == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Option<String> {
        let mut causes = Causes::default();
        check_range("f", text, &[], &mut causes);
        causes.iter().next().map(|cause| cause.message.clone())
    }

    #[test]
    fn ranges_are_those_without_bits_beyond_the_prefix() {
        for good in ["10.0.0.0/8", "0.0.0.0/0", "10.1.2.3/32", "::/0", "fd00::1/128", "fd00::/8"] {
            assert_eq!(range(good), None, "{good}");
        }
        for (bad, why) in [
            ("10.0.0.1/8", "bits set"),
            ("fd00::1/127", "bits set"),
            ("10.0.0.0/33", "valid CIDR"),
            ("10.0.0.0", "valid CIDR"),
            ("10.0.0.00/8", "leading 0s"),
            ("10.0.0.0/08", "leading 0s"),
            ("10.0.0.0/+8", "valid CIDR"),
        ] {
            assert!(range(bad).is_some_and(|found| found.contains(why)), "{bad}: {:?}", range(bad));
        }
    }
}
