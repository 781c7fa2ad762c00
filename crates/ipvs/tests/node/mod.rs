//! The ipvs mode with fake kernels, on a node of the test cluster.

use portway_dataplane::Driver;
use portway_ipvs::Ipvs;
use portway_ipvs::fake::Fake;
use portway_ipvs::mode::RENDERER;
use portway_model::Family;
use portway_testkit::cluster::own_addresses;
use portway_xtables::fake::Fake as Tables;
use portway_xtables::{Engine, Variant};

/// The mode with fake kernels for ipvs and for rules.
pub(crate) type Mode = Driver<Ipvs<Fake, Tables>>;

/// The mode with empty kernels.
pub(crate) fn mode(family: Family) -> Mode {
    let rules = Tables::new(family, Variant::Legacy);
    let rules = Driver::new(Engine::with_kernel(rules, family, RENDERER));
    Driver::new(Ipvs::with_kernel(Fake::new(own_addresses(family)), rules, family))
}
