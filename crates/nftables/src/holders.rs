//! The Services that the rules in the kernel serve at cluster IPs, as an earlier run left them.

use crate::TABLE;
use crate::mode::nft_family;
use crate::rules::TableNames;
use portway_model::{Family, ServiceName};
use portway_netlink::nft::{Element, list};
use portway_netlink::{Protocol, Socket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The cluster IPs in the kernel, with their Services; none if there is no table.
pub(crate) fn holders() -> Vec<(IpAddr, ServiceName)> {
    let Ok(mut socket) = Socket::open(Protocol::Netfilter) else { return Vec::new() };
    let names = TableNames::default();
    let mut of_family = |family| {
        let elements = list::elements(&mut socket, nft_family(family), TABLE, &names.cluster_ips);
        elements.unwrap_or_default().iter().filter_map(holder).collect::<Vec<_>>()
    };
    Family::ALL.into_iter().flat_map(&mut of_family).collect()
}

/// The address of an element, and the Service in its comment.
fn holder(element: &Element) -> Option<(IpAddr, ServiceName)> {
    let key = element.key.as_slice();
    let ip = match (<[u8; 4]>::try_from(key), <[u8; 16]>::try_from(key)) {
        (Ok(octets), _) => IpAddr::V4(Ipv4Addr::from(octets)),
        (_, Ok(octets)) => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    let (namespace, name) = element.comment_text()?.split_once('/')?;
    Some((ip, ServiceName::new(namespace, name)))
}
