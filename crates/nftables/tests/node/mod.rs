//! The nftables mode on a fake kernel with the addresses of the test cluster's node.

use portway_dataplane::Driver;
use portway_model::Family;
use portway_netlink::nft;
use portway_nftables::Nftables;
use portway_nftables::fake::Fake;
use portway_testkit::cluster::own_addresses;

/// The nftables mode on a fake kernel.
pub(crate) fn mode(family: Family) -> Driver<Nftables<Fake>> {
    let nft_family = if family == Family::V4 { nft::Family::Ipv4 } else { nft::Family::Ipv6 };
    let mut kernel = Fake::default();
    kernel.addresses.extend(own_addresses(family));
    Driver::new(Nftables::with_kernel(kernel, nft_family))
}
