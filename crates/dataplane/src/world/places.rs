//! Where things are in the test world: places have names, and an address in each family.

use portway_model::Family;
use std::net::IpAddr;

/// Places that endpoints may be at, for reading addresses back.
pub const PODS: [&str; 5] = ["a", "b", "c", "d", "node"];

/// The address a place has.
///
/// # Panics
/// If there is no such place.
pub fn address(family: Family, place: &str) -> IpAddr {
    let [v4, v6] = named(place).or_else(|| numbered(place)).unwrap_or_else(|| panic!("{place} is nowhere"));
    let text = if family == Family::V4 { v4 } else { v6 };
    text.parse().unwrap_or_else(|e| panic!("{place}: {text}: {e}"))
}

/// Both families' addresses of a place, as text.
pub fn both(place: &str) -> [String; 2] {
    Family::ALL.map(|f| address(f, place).to_string())
}

/// The addresses that this node has: one that node ports answer at, and one that they do not.
pub fn own_addresses(family: Family) -> [IpAddr; 2] {
    ["node", "alternative"].map(|place| address(family, place))
}

fn named(place: &str) -> Option<[String; 2]> {
    let addresses = match place {
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
fn numbered(place: &str) -> Option<[String; 2]> {
    let digits = place.find(|c: char| c.is_ascii_digit())?;
    let (kind, n) = place.split_at(digits);
    let n: u8 = n.parse().ok()?;
    match kind {
        "svc" => Some([format!("10.96.0.{n}"), format!("fd96::{n}")]),
        "lb" => Some([format!("203.0.113.{n}"), format!("2001:db8:113::{n}")]),
        "ext" => Some([format!("198.18.0.{n}"), format!("2001:db8:114::{n}")]),
        _ => None,
    }
}
