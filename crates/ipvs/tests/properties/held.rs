//! The contents of a fake kernel, so that two can be compared.

use portway_ipvs::fake::Fake;

/// What a kernel holds, without the numbers of marks: in their place stands what is behind them. Servers that are nobody's
/// are left out.
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
