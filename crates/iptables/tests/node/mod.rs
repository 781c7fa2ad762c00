//! A node in the world of tests, with this mode at work.

use portway_dataplane::world::own_addresses;
use portway_iptables::fake::Fake;
use portway_iptables::{Iptables, Variant};
use portway_model::Family;

/// The iptables mode over a kernel that is a value.
pub(crate) fn mode(family: Family, variant: Variant) -> Iptables<Fake> {
    let mut kernel = Fake::new(family, variant);
    kernel.addresses.extend(own_addresses(family));
    Iptables::with_kernel(kernel, family)
}
