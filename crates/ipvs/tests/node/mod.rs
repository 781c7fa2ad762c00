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

/// What a kernel holds, without the numbers of marks: in their place stands what is behind them. Servers that are nobody's
/// are left out.
#[allow(dead_code, reason = "not every test asks")]
pub(crate) fn held(kernel: &Fake) -> Vec<String> {
    let mut all = Vec::new();
    let behind = |mark: u32| {
        let server = kernel.servers.iter().find(|(key, _)| key.fwmark == mark);
        server.map(|(_, s)| format!("{} {:?}", s.server.scheduler, s.targets))
    };
    for (name, set) in &kernel.sets {
        all.push(format!("set {:?}", set.made));
        for member in &set.members {
            let mark = member.mark.map(|(mark, _)| behind(mark));
            all.push(format!(
                "{name} {:?} {:?} {:?} {:?} {mark:?}",
                member.ip, member.port, member.ip2, member.cidr2
            ));
        }
    }
    for (key, server) in
        kernel.servers.iter().filter(|(key, s)| key.fwmark == 0 && s.server.scheduler == "rr")
    {
        all.push(format!(
            "server {key} {} {} {:?}",
            server.server.flags, server.server.timeout, server.targets
        ));
    }
    let marked = kernel.servers.keys().filter(|key| key.fwmark > 0 && key.fwmark < 0x4000).count();
    all.push(format!("{marked} by mark"));
    all.push(format!("device {} {:?}", kernel.has_device, kernel.bound));
    all
}
