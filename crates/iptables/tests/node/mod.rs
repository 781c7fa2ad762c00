//! A node in the cluster of tests, with this mode at work.

use portway_iptables::Iptables;
use portway_model::Family;
use portway_testkit::cluster::own_addresses;
use portway_xtables::Variant;
use portway_xtables::fake::Fake;

/// The iptables mode over a kernel that is a value.
pub(crate) fn mode(family: Family, variant: Variant) -> Iptables<Fake> {
    let mut kernel = Fake::new(family, variant);
    kernel.addresses.extend(own_addresses(family));
    portway_iptables::mode::with_kernel(kernel, family)
}
