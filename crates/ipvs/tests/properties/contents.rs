//! The contents of a fake kernel as text, for comparison.

use portway_ipvs::fake::Fake;

/// The objects of a kernel. A mark is replaced by the virtual server that it selects, since its number is arbitrary.
/// Virtual servers of other programs are left out.
pub(crate) fn contents(kernel: &Fake) -> Vec<String> {
    let mut all = Vec::new();
    let server_of = |mark: u32| {
        let server = kernel.servers.iter().find(|(key, _)| key.fwmark == mark);
        server.map(|(_, s)| format!("{} {:?}", s.server.scheduler, s.targets))
    };
    for (name, set) in &kernel.sets {
        all.push(format!("set {:?}", set.spec));
        for member in &set.members {
            let mark = member.mark.map(|(mark, _)| server_of(mark));
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
