//! From one typed value to one meant value: the parsers behind single fields, and the collector of their mistakes.

use super::error::{ConfigError, Problem};
use super::file::{Field, Given};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// Why a value is refused, as the end of a sentence that begins with the value.
type Why = String;

/// Collects the mistakes, so that one does not hide the next.
#[derive(Default)]
pub(super) struct Checks {
    pub(super) errors: Vec<ConfigError>,
}

impl Checks {
    /// Parses a field's text if it was given; a mistake is noted and counts as not given.
    pub(super) fn text<T>(
        &mut self,
        field: &str,
        given: &Field<String>,
        parse: impl FnOnce(&str) -> Result<T, Why>,
    ) -> Option<T> {
        given
            .as_ref()
            .filter(|given| !given.value.is_empty())
            .and_then(|given| self.item(field, given, parse))
    }

    /// Parses one text.
    pub(super) fn item<T>(
        &mut self,
        field: &str,
        given: &Given<String>,
        parse: impl FnOnce(&str) -> Result<T, Why>,
    ) -> Option<T> {
        match parse(given.value.trim()) {
            Ok(value) => Some(value),
            Err(why) => {
                self.invalid(field, given, why);
                None
            }
        }
    }

    /// Keeps a number that lies within its range.
    pub(super) fn within<T: TryFrom<i64>>(
        &mut self,
        field: &str,
        given: &Field<i64>,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        let given = given.as_ref()?;
        let value = range.contains(&given.value).then(|| T::try_from(given.value).ok()).flatten();
        if value.is_none() {
            let (least, most) = range.into_inner();
            let why = match given.value {
                _ if most < i64::from(i32::MAX) => format!("must be between {least} and {most}"),
                value if value < least => format!("must be at least {least}"),
                _ => format!("must be at most {most}"),
            };
            self.invalid(field, given, why);
        }
        value
    }

    /// Notes a value that means nothing.
    pub(super) fn invalid<T: ToString>(&mut self, field: &str, given: &Given<T>, why: impl Into<Why>) {
        let problem = Problem::Invalid { value: given.value.to_string(), why: why.into() };
        self.errors.push(ConfigError { origin: given.origin.clone(), field: field.to_owned(), problem });
    }
}

/// An IP address.
pub(super) fn ip(text: &str) -> Result<IpAddr, Why> {
    text.parse().map_err(|_| "is not an IP address".to_owned())
}

/// An IP address with a port; without one it gets `default_port`, as upstream does.
pub(super) fn listen_address(text: &str, default_port: u16) -> Result<SocketAddr, Why> {
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, default_port));
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err("needs a port from 1 to 65535".to_owned()),
        Ok(address) => Ok(address),
        Err(_) => Err("is not an address such as 0.0.0.0:10256 or [::]:10256".to_owned()),
    }
}

/// Where the health and the metrics servers listen unless told: the family follows `bindAddress`, and metrics
/// stay on the loopback interface.
pub(super) fn default_hosts(bind_address: IpAddr) -> (IpAddr, IpAddr) {
    match bind_address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    }
}

/// A CIDR, with the bits behind the prefix cut off.
pub(super) fn cidr(text: &str) -> Result<IpNet, Why> {
    text.parse()
        .map(|net: IpNet| net.trunc())
        .map_err(|_| "is not a range such as 10.244.0.0/16 or fd00:10:244::/56".to_owned())
}

/// One range, or one of each family, comma-separated.
pub(super) fn cluster_cidrs(text: &str) -> Result<Vec<IpNet>, Why> {
    let cidrs = text.split(',').map(|part| cidr(part.trim())).collect::<Result<Vec<_>, _>>()?;
    let families = cidrs.iter().map(|net| net.addr().is_ipv4()).collect::<Vec<_>>();
    match families[..] {
        [_] | [true, false] | [false, true] => Ok(cidrs),
        _ => Err("must be one range, or one IPv4 and one IPv6 range with a comma between".to_owned()),
    }
}

/// The kernel's limit on interface names, IFNAMSIZ without the closing zero.
const MAX_INTERFACE_NAME: usize = 15;

/// The name of a network interface, or the beginning of one.
pub(super) fn interface_name(text: &str) -> Result<String, Why> {
    if text.len() > MAX_INTERFACE_NAME {
        return Err(format!("is longer than the {MAX_INTERFACE_NAME} characters of an interface name"));
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/' || c == '"') {
        return Err("cannot be the name of an interface".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_address_may_lack_its_port() {
        let listen = |text| listen_address(text, 10256).map(|address| address.to_string());
        assert_eq!(listen("0.0.0.0"), Ok("0.0.0.0:10256".to_owned()));
        assert_eq!(listen("::"), Ok("[::]:10256".to_owned()));
        assert_eq!(listen("[::1]"), Ok("[::1]:10256".to_owned()));
        assert_eq!(listen("[::1]:80"), Ok("[::1]:80".to_owned()));
        for wrong in ["", ":10256", "localhost:80", "1.2.3.4:0", "1.2.3.4:70000"] {
            assert!(listen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cluster_cidrs_are_one_or_one_of_each_family() {
        for right in ["10.0.0.0/8", "fd00::/8", "10.0.0.0/8,fd00::/8", "fd00::/8, 10.0.0.0/8"] {
            assert!(cluster_cidrs(right).is_ok(), "{right}");
        }
        for wrong in
            ["", "10.0.0.0", "10.0.0.0/8,", "10.0.0.0/8,11.0.0.0/8", "10.0.0.0/8,fd00::/8,11.0.0.0/8"]
        {
            assert!(cluster_cidrs(wrong).is_err(), "{wrong}");
        }
        assert_eq!(cidr("10.1.2.3/8"), cidr("10.0.0.0/8"));
    }

    #[test]
    fn interface_names_fit_the_kernel() {
        assert!(interface_name("cni0").is_ok());
        assert!(interface_name("a-name-of-15-ch").is_ok());
        assert!(interface_name("a-name-of-16-chr").is_err());
        assert!(interface_name("eth 0").is_err());
        assert!(interface_name("eth\"0").is_err());
    }
}
