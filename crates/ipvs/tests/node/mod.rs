//! A node in the world of tests, with this mode at work.

use portway_dataplane::world::own_addresses;
use portway_iptables::fake::Fake as Tables;
use portway_iptables::{Iptables, Variant};
use portway_ipvs::Ipvs;
use portway_ipvs::fake::Fake;
use portway_model::Family;

/// The mode over kernels that are values.
pub(crate) type Mode = Ipvs<Fake, Tables>;

/// One in which nothing was ever done.
pub(crate) fn mode(family: Family) -> Mode {
    let rules = Tables::new(family, Variant::Legacy);
    let rules = Iptables::beside_with_kernel(rules, family, portway_ipvs::rules::base);
    Ipvs::with_kernel(Fake::new(own_addresses(family)), rules, family)
}
