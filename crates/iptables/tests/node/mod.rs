//! The iptables mode on a node of the test cluster, with a fake kernel.

use portway_iptables::Iptables;
use portway_model::Family;
use portway_testkit::cluster::own_addresses;
use portway_xtables::Variant;
use portway_xtables::fake::Fake;

/// The mode on a new fake kernel that has the addresses of the node.
pub(crate) fn mode(family: Family, variant: Variant) -> Iptables<Fake> {
    let mut kernel = Fake::new(family, variant);
    kernel.addresses.extend(own_addresses(family));
    portway_iptables::mode::with_kernel(kernel, family)
}
