//! The address plan: the name and the addresses of the n-th node, pod or client.
//!
//! The digits are the same in both families: node 2 is 192.168.50.12 and fd50::12.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The maximum number of nodes; their addresses are below those of clients.
pub(crate) const NODES: usize = 189;
/// The maximum number of clients.
pub(crate) const CLIENTS: usize = 54;
/// The maximum number of pods on a node.
pub(crate) const PODS: usize = 245;

/// An address in each family.
pub(crate) type Pair = (Ipv4Addr, Ipv6Addr);
/// A network in each family.
pub(crate) type Nets = (IpNet, IpNet);

/// The default route of nodes: a router that discards packets.
pub(crate) fn discarding_router() -> Pair {
    on_fabric(1)
}

/// The n-th node, from 1.
pub(crate) fn node(n: usize) -> Pair {
    on_fabric(10 + n)
}

/// The n-th outside client, from 1.
pub(crate) fn client(n: usize) -> Pair {
    on_fabric(200 + n)
}

/// The k-th pod of the n-th node; nodes count from 1, pods from 0.
pub(crate) fn pod(n: usize, k: usize) -> Pair {
    in_pod_network(n, 10 + k)
}

/// The node's own address on the links to its pods. In IPv6 it is a link-local address, the same on all nodes.
pub(crate) fn gateway(n: usize) -> Pair {
    (in_pod_network(n, 1).0, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1))
}

/// The pod networks of the n-th node.
pub(crate) fn pod_networks(n: usize) -> Nets {
    let (v4, v6) = in_pod_network(n, 0);
    nets((v4, v6), 24, 64)
}

/// The destinations of default routes.
pub(crate) fn default_destinations() -> Nets {
    nets((Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED), 0, 0)
}

/// Addresses with the prefix length of the fabric's network.
pub(crate) fn with_fabric_prefix(pair: Pair) -> Nets {
    nets(pair, 24, 64)
}

/// Addresses as networks of one address each.
pub(crate) fn as_networks((v4, v6): Pair) -> Nets {
    (Ipv4Net::from(v4).into(), Ipv6Net::from(v6).into())
}

/// The name of the k-th pod of the n-th node: `pod1a`, `pod1b`, …, `pod1z`, `pod1aa`.
pub(crate) fn pod_name(n: usize, k: usize) -> String {
    let mut letters = Vec::new();
    let mut rest = k + 1;
    while rest > 0 {
        letters.push(char::from(b'a' + ((rest - 1) % 26) as u8));
        rest = (rest - 1) / 26;
    }
    format!("pod{n}{}", letters.iter().rev().collect::<String>())
}

fn on_fabric(host: usize) -> Pair {
    (Ipv4Addr::new(192, 168, 50, host as u8), Ipv6Addr::new(0xfd50, 0, 0, 0, 0, 0, 0, decimal(host)))
}

fn in_pod_network(n: usize, host: usize) -> Pair {
    (
        Ipv4Addr::new(10, 244, n as u8, host as u8),
        Ipv6Addr::new(0xfd10, 0x244, decimal(n), 0, 0, 0, 0, decimal(host)),
    )
}

fn nets((v4, v6): Pair, v4_length: u8, v6_length: u8) -> Nets {
    (Ipv4Net::new_assert(v4, v4_length).into(), Ipv6Net::new_assert(v6, v6_length).into())
}

/// The number whose hexadecimal digits are the decimal digits of `n` (at most four of them).
fn decimal(n: usize) -> u16 {
    let digit = |power: usize| ((n / power % 10) as u16) << (4 * power.ilog10());
    [1, 10, 100, 1000].into_iter().map(digit).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_have_the_same_digits() {
        let text = |(v4, v6): Pair| format!("{v4} {v6}");
        assert_eq!(text(node(2)), "192.168.50.12 fd50::12");
        assert_eq!(text(client(1)), "192.168.50.201 fd50::201");
        assert_eq!(text(pod(3, 0)), "10.244.3.10 fd10:244:3::10");
        assert_eq!(text(pod(12, 244)), "10.244.12.254 fd10:244:12::254");
        assert_eq!(text(gateway(1)), "10.244.1.1 fe80::1");
        let (v4, v6) = pod_networks(2);
        assert_eq!(format!("{v4} {v6}"), "10.244.2.0/24 fd10:244:2::/64");
    }

    #[test]
    fn limits_match_the_available_addresses() {
        assert!(node(NODES).0 < client(0).0);
        assert_eq!(client(CLIENTS).0.octets()[3], 254);
        assert_eq!(pod(1, PODS - 1).0.octets()[3], 254);
    }

    #[test]
    fn pod_names_continue_after_z() {
        let names: Vec<_> = [0, 1, 25, 26, 27, 52].map(|k| pod_name(1, k)).into();
        assert_eq!(names, ["pod1a", "pod1b", "pod1z", "pod1aa", "pod1ab", "pod1ba"]);
    }
}
