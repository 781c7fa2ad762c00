//! The parsers of single settings. An error message is the end of a sentence that begins with the text.

use super::domain::{LogFormat, ModeName};
use crate::modes;
use ipnet::IpNet;
use portway_dataplane::{Balancing, Scheduler};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The reason that a value is rejected.
type Reason = String;

/// A mode by name. The error distinguishes the mode of Windows nodes from an unknown one.
pub(super) fn mode(text: &str) -> Result<ModeName, Reason> {
    ModeName::parse(text).ok_or_else(|| match text {
        "kernelspace" => {
            format!("is for Windows nodes; Portway runs on Linux, in mode {}", modes::names("or"))
        }
        _ => format!("is not a proxy mode: this release has {}", modes::names("and")),
    })
}

/// A node's name, in lower case.
pub(super) fn node_name(text: &str) -> Result<Option<String>, Reason> {
    match text {
        "" => Err("is empty: give a node's name, or leave it out".to_owned()),
        name => Ok(Some(name.to_lowercase())),
    }
}

/// A load balancing method of userspace mode.
pub(super) fn balancing(text: &str) -> Result<Balancing, Reason> {
    let names = || Balancing::ALL.map(|(_, name)| name).join(" or ");
    Balancing::parse(text).ok_or_else(|| format!("is not a way of balancing: {}", names()))
}

/// A scheduler of ipvs mode.
pub(super) fn scheduler(text: &str) -> Result<Scheduler, Reason> {
    Scheduler::parse(text).ok_or_else(|| format!("is none of {}", Scheduler::names()))
}

/// The format of log lines.
pub(super) fn log_format(text: &str) -> Result<LogFormat, Reason> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("is not a log format: text or json".to_owned()),
    }
}

/// An IP address.
pub(super) fn ip(text: &str) -> Result<IpAddr, Reason> {
    text.parse().map_err(|_| "is not an IP address".to_owned())
}

/// An IP address with a port; without one it gets `default_port`, as upstream does.
pub(super) fn listen_address(text: &str, default_port: u16) -> Result<SocketAddr, Reason> {
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, default_port));
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err("needs a port from 1 to 65535".to_owned()),
        Ok(address) => Ok(address),
        Err(_) => Err("is not an address such as 0.0.0.0:10256 or [::]:10256".to_owned()),
    }
}

/// The default addresses of the health and the metrics server: the family follows `bindAddress`, and metrics are served
/// on the loopback interface only.
pub(super) fn default_hosts(bind_address: IpAddr) -> (IpAddr, IpAddr) {
    match bind_address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    }
}

/// A CIDR, with the host bits set to zero.
pub(super) fn cidr(text: &str) -> Result<IpNet, Reason> {
    text.parse()
        .map(|net: IpNet| net.trunc())
        .map_err(|_| "is not a range such as 10.244.0.0/16 or fd00:10:244::/56".to_owned())
}

/// One range, or one of each family, comma-separated.
pub(super) fn cluster_cidrs(text: &str) -> Result<Vec<IpNet>, Reason> {
    let cidrs = text.split(',').map(|part| cidr(part.trim())).collect::<Result<Vec<_>, _>>()?;
    let families = cidrs.iter().map(|net| net.addr().is_ipv4()).collect::<Vec<_>>();
    match families[..] {
        [_] | [true, false] | [false, true] => Ok(cidrs),
        _ => Err("must be one range, or one IPv4 and one IPv6 range with a comma between".to_owned()),
    }
}

/// The kernel's limit on interface names, IFNAMSIZ without the terminating zero.
const MAX_INTERFACE_NAME: usize = 15;

/// The name of a network interface, or the beginning of one.
pub(super) fn interface_name(text: &str) -> Result<String, Reason> {
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
    fn interface_names_have_at_most_15_characters() {
        assert!(interface_name("cni0").is_ok());
        assert!(interface_name("a-name-of-15-ch").is_ok());
        assert!(interface_name("a-name-of-16-chr").is_err());
        assert!(interface_name("eth 0").is_err());
        assert!(interface_name("eth\"0").is_err());
    }
}
