//! The hosts of the test cluster by name, with an address in each family.

use crate::objects::AddressBook;
use portway_model::Family;
use std::net::IpAddr;

/// Hosts that endpoints may be on, to find the name of an endpoint's address.
pub const ENDPOINT_HOSTS: [&str; 5] = ["a", "b", "c", "d", "node"];

/// The hosts, with their addresses in one family.
#[derive(Clone, Copy, Debug)]
pub struct Hosts(pub Family);

impl AddressBook for Hosts {
    fn family(&self) -> Family {
        self.0
    }

    fn address(&self, host: &str) -> IpAddr {
        address(self.0, host)
    }

    fn node_of(&self, host: &str) -> String {
        if ["a", "b", "node"].contains(&host) { "node1" } else { "node2" }.to_owned()
    }
}

/// The address of a host.
///
/// # Panics
/// If there is no such host.
pub fn address(family: Family, host: &str) -> IpAddr {
    let [v4, v6] =
        named(host).or_else(|| numbered(host)).unwrap_or_else(|| panic!("no host is called {host}"));
    let text = if family == Family::V4 { v4 } else { v6 };
    text.parse().unwrap_or_else(|e| panic!("{host}: {text}: {e}"))
}

/// The addresses of a host in both families.
pub fn both(host: &str) -> [IpAddr; 2] {
    Family::ALL.map(|family| address(family, host))
}

/// The addresses that this node has: one that node ports answer at, and one that they do not.
pub fn own_addresses(family: Family) -> [IpAddr; 2] {
    ["node", "alternative"].map(|host| address(family, host))
}

fn named(host: &str) -> Option<[String; 2]> {
    let addresses = match host {
        "a" => ["10.244.1.10", "fd10:244:1::10"],
        "b" => ["10.244.1.11", "fd10:244:1::11"],
        "c" => ["10.244.2.20", "fd10:244:2::20"],
        "d" => ["10.244.2.21", "fd10:244:2::21"],
        "client" => ["192.0.2.77", "2001:db8:1::77"],
        "stranger" => ["198.51.100.5", "2001:db8:2::5"],
        "node" => ["192.168.50.11", "fd50::11"],
        "alternative" => ["172.31.0.11", "fd51::11"],
        "node2" => ["192.168.50.12", "fd50::12"],
        "lo" => ["127.0.0.1", "::1"],
        "unallocated" => ["10.96.200.1", "fd96::c801"],
        _ => return None,
    };
    Some(addresses.map(str::to_owned))
}

/// The addresses that a Service with a number has.
fn numbered(host: &str) -> Option<[String; 2]> {
    let digits = host.find(|c: char| c.is_ascii_digit())?;
    let (kind, n) = host.split_at(digits);
    let n: u8 = n.parse().ok()?;
    match kind {
        "svc" => Some([format!("10.96.0.{n}"), format!("fd96::{n}")]),
        "lb" => Some([format!("203.0.113.{n}"), format!("2001:db8:113::{n}")]),
        "ext" => Some([format!("198.18.0.{n}"), format!("2001:db8:114::{n}")]),
        _ => None,
    }
}
