//! The ranges from which Services get addresses and ports.
//!
//! A range has a lower band for those that clients ask for, and an upper one from which the rest are given, so that the
//! two rarely meet (KEP-3070, KEP-3668). Only when the upper band is full, the lower one is used.

use super::{Pools, Shortage};
use ipnet::IpNet;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// Addresses of an IPv6 range that are given at most, as in kube-apiserver: its allocation was once a bitmap.
const MAX_BITS: u32 = 64;

/// Positions in a range: the first ones are for those that ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bands {
    lower: u128,
    size: u128,
}

impl Bands {
    /// The lower band is a part of the range, within limits.
    fn new(size: u128, part: u128, limits: RangeInclusive<u128>) -> Bands {
        let lower = (size / part).clamp(*limits.start(), *limits.end());
        Bands { lower: if lower >= size || size < *limits.start() { 0 } else { lower }, size }
    }

    /// A free position: in the upper band from a random one on, then in the lower band.
    fn pick(self, random: u64, is_free: impl Fn(u128) -> bool) -> Option<u128> {
        let upper = self.size - self.lower;
        // A range of more addresses than there can be Services is never searched to its end.
        let tries = upper.min(1 << 20);
        let start = if upper == 0 { 0 } else { u128::from(random) % upper };
        let in_upper = (0..tries).map(|step| self.lower + (start + step) % upper);
        let lower = self.lower;
        in_upper.chain(0..lower).find(|position| is_free(*position))
    }
}

/// The addresses of a range that Services may have: without the first one, and in IPv4 without the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange(pub IpNet);

impl AddressRange {
    fn bits(ip: IpAddr) -> u128 {
        match ip {
            IpAddr::V4(ip) => u128::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip),
        }
    }

    fn at(self, position: u128) -> IpAddr {
        let bits = Self::bits(self.0.network()) + 1 + position;
        match self.0 {
            IpNet::V4(_) => Ipv4Addr::from(bits as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from(bits).into(),
        }
    }

    fn bands(self) -> Bands {
        let bits = u32::from(self.0.max_prefix_len() - self.0.prefix_len()).min(MAX_BITS);
        let ends = if self.0.network().is_ipv4() { 2 } else { 1 };
        Bands::new((1u128 << bits).saturating_sub(ends), 16, 16..=256)
    }

    /// Whether a Service may have an address.
    pub fn contains(self, ip: IpAddr) -> bool {
        if !self.0.contains(&ip) {
            return false;
        }
        let offset = Self::bits(ip) - Self::bits(self.0.network());
        offset > 0 && offset <= self.bands().size
    }

    /// A free address.
    pub fn pick(self, random: u64, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        self.bands().pick(random, |position| !is_taken(self.at(position))).map(|position| self.at(position))
    }
}

/// The addresses and ports that are free when a Service is decided on, and those that it takes.
pub struct FreePools<'a> {
    /// The ranges of addresses, the default family's first.
    pub ranges: &'a [AddressRange],
    /// The range of node ports.
    pub ports: RangeInclusive<u16>,
    /// Whether another Service has an address.
    pub has_address: &'a dyn Fn(IpAddr) -> bool,
    /// Whether a Service has a port: another one, or this one before its change. Those that it keeps are not taken again.
    pub has_port: &'a dyn Fn(u16) -> bool,
    /// A random number, by which several servers rarely take the same address.
    pub random: u64,
    /// The addresses that this Service takes.
    pub addresses: HashSet<IpAddr>,
    /// The ports that this Service takes.
    pub node_ports: HashSet<u16>,
}

impl FreePools<'_> {
    fn is_taken(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip) || (self.has_address)(ip)
    }

    fn is_port_taken(&self, port: u16) -> bool {
        self.node_ports.contains(&port) || (self.has_port)(port)
    }
}

fn refused(why: &str) -> Shortage {
    Shortage::Refused(why.to_owned())
}

impl Pools for FreePools<'_> {
    fn address(&mut self, family: &str, wanted: Option<&str>) -> Result<String, Shortage> {
        let is_of_family = |range: &&AddressRange| range.0.network().is_ipv6() == (family == "IPv6");
        let mut ranges = self.ranges.iter().filter(is_of_family);
        let ip = match wanted {
            Some(text) => {
                let ip = text.parse().map_err(|_| refused(&format!("{text} is no IP address")))?;
                if !ranges.any(|range| range.contains(ip)) {
                    return Err(refused("the provided network does not match the current range"));
                }
                if self.is_taken(ip) {
                    return Err(refused("provided IP is already allocated"));
                }
                ip
            }
            None => ranges
                .find_map(|range| range.pick(self.random, |ip| self.is_taken(ip)))
                .ok_or(Shortage::Full)?,
        };
        self.addresses.insert(ip);
        // An address that a client wrote in another form stays in that form.
        Ok(wanted.map_or_else(|| ip.to_string(), str::to_owned))
    }

    fn node_port(&mut self, wanted: Option<i64>) -> Result<i64, Shortage> {
        let (first, last) = (*self.ports.start(), *self.ports.end());
        let port = match wanted {
            Some(number) => {
                let port = u16::try_from(number).ok().filter(|port| self.ports.contains(port));
                let outside = || {
                    let range = format!("The range of valid ports is {first}-{last}");
                    refused(&format!("provided port is not in the valid range. {range}"))
                };
                let port = port.ok_or_else(outside)?;
                if self.is_port_taken(port) {
                    return Err(refused("provided port is already allocated"));
                }
                port
            }
            None => {
                // Port 0 is none.
                let size = if first == 0 || first > last { 0 } else { u128::from(last - first) + 1 };
                let at = |position: u128| first + position as u16;
                let is_free = |position: u128| !self.is_port_taken(at(position));
                let picked = Bands::new(size, 32, 16..=128).pick(self.random, is_free);
                at(picked.ok_or(Shortage::Full)?)
            }
        };
        self.node_ports.insert(port);
        Ok(port.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(text: &str) -> AddressRange {
        AddressRange(text.parse().expect("a range"))
    }

    #[test]
    fn the_lower_band_is_for_those_that_ask() {
        // The sizes in KEP-3070 and KEP-3668.
        for (size, part, limits, lower) in [
            (254, 16, 16..=256, 16),
            (4094, 16, 16..=256, 255),
            (65_534, 16, 16..=256, 256),
            (14, 16, 16..=256, 0),
            (2768, 32, 16..=128, 86),
        ] {
            assert_eq!(Bands::new(size, part, limits).lower, lower, "{size}");
        }
        let first = range("10.96.0.0/24").pick(0, |_| false);
        assert_eq!(first, Some(Ipv4Addr::new(10, 96, 0, 17).into()));
    }

    #[test]
    fn ranges_end_before_the_network_and_broadcast_addresses() {
        for (ip, is_in) in
            [("10.96.0.0", false), ("10.96.0.1", true), ("10.96.0.254", true), ("10.96.0.255", false)]
        {
            assert_eq!(range("10.96.0.0/24").contains(ip.parse().expect("an address")), is_in, "{ip}");
        }
        for (ip, is_in) in [("fd96::", false), ("fd96::1", true), ("fd96::ffff", true), ("fd97::1", false)] {
            assert_eq!(range("fd96::/112").contains(ip.parse().expect("an address")), is_in, "{ip}");
        }
    }

    proptest! {
        /// Every address of a range is given once, those of the lower band last, and then none.
        #[test]
        fn every_address_is_given_once(prefix in 24u8..=30, random in any::<u64>()) {
            let range = range(&format!("10.96.0.0/{prefix}"));
            let mut taken: Vec<IpAddr> = Vec::new();
            while let Some(ip) = range.pick(random, |ip| taken.contains(&ip)) {
                prop_assert!(range.contains(ip) && !taken.contains(&ip));
                taken.push(ip);
            }
            prop_assert_eq!(taken.len() as u128, range.bands().size);
            let lower = range.bands().lower as usize;
            let last: Vec<IpAddr> = taken[taken.len() - lower..].to_vec();
            let expected: Vec<IpAddr> = (0..lower).map(|position| range.at(position as u128)).collect();
            prop_assert_eq!(last, expected);
        }

        /// Ports that a Service takes are in the range, free and different.
        #[test]
        fn ports_are_free_and_different(
            taken in prop::collection::hash_set(30_000u16..30_040, 0..30),
            wanted in prop::collection::vec(prop::option::of(29_990i64..30_050), 1..20),
            random in any::<u64>(),
        ) {
            let mut pools = FreePools {
                ranges: &[],
                ports: 30_000..=30_039,
                has_address: &|_| false,
                has_port: &|port| taken.contains(&port),
                random,
                addresses: HashSet::new(),
                node_ports: HashSet::new(),
            };
            let mut given = Vec::new();
            for wanted in wanted {
                match pools.node_port(wanted) {
                    Ok(port) => {
                        prop_assert!(wanted.is_none_or(|wanted| wanted == port));
                        prop_assert!((30_000..30_040).contains(&port) && !taken.contains(&(port as u16)));
                        prop_assert!(!given.contains(&port));
                        given.push(port);
                    }
                    Err(_) => {
                        let is_full = given.len() + taken.len() == 40;
                        let is_refused = wanted.is_some_and(|wanted| {
                            !(30_000..30_040).contains(&wanted) || given.contains(&wanted) || taken.contains(&(wanted as u16))
                        });
                        prop_assert!(is_full || is_refused);
                    }
                }
            }
        }
    }
}
