//! Virtual servers, sets, and `kube-ipvs0`.
//!
//! Servers of others are left alone: kube-proxy's are those whose address is on its device, or which answer at a node
//! port of its sets. A connection through a virtual server lives as long as the server does, so where connections
//! are to live on, servers that have some stay until those have ended.

use portway_dataplane::{Clear, Error};
use portway_model::Family;
use portway_netlink::genl::Genl;
use portway_netlink::ipset::Ipset;
use portway_netlink::ipvs::{self, VirtualServer};
use portway_netlink::route::{Change, Rtnetlink};
use std::collections::HashSet;
use std::net::IpAddr;

/// The device that holds the addresses of all Services.
const DEVICE: &str = "kube-ipvs0";

/// kube-proxy's sets, without `KUBE-` or, for IPv6, `KUBE-6-`.
const SETS: [&str; 17] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
];

fn is_kube_proxys(set: &str) -> bool {
    let name = set.strip_prefix("KUBE-6-").or_else(|| set.strip_prefix("KUBE-"));
    name.is_some_and(|name| SETS.contains(&name))
}

fn holds_node_ports(set: &str) -> bool {
    is_kube_proxys(set) && set.contains("-NODE-PORT-") && !set.contains("HEALTH")
}

/// What there is, in words; gone afterwards if so wished.
pub fn clear(how: Clear) -> Result<Vec<String>, Error> {
    let mut ipset = Ipset::open().map_err(refused)?;
    let mut route = Rtnetlink::open().map_err(refused)?;
    let device = route.link(DEVICE).map_err(refused)?;
    let sets: Vec<String> = {
        let all = ipset.as_mut().map_or(Ok(Vec::new()), Ipset::names).map_err(refused)?;
        all.into_iter().map(|set| set.name).filter(|name| is_kube_proxys(name)).collect()
    };
    let addresses = route.addresses().map_err(refused)?;
    let on_device = |index| device.as_ref().is_some_and(|d| d.index == index);
    let vips: HashSet<IpAddr> =
        addresses.iter().filter(|a| on_device(a.link)).map(|a| a.net.addr()).collect();
    let own: HashSet<IpAddr> =
        addresses.iter().filter(|a| !on_device(a.link)).map(|a| a.net.addr()).collect();
    let mut ports = HashSet::new();
    if let Some(ipset) = &mut ipset {
        for set in sets.iter().filter(|set| holds_node_ports(set)) {
            let members = ipset.members(set).map_err(refused)?;
            ports.extend(members.into_iter().filter_map(|m| m.port));
        }
    }
    let is_ours =
        |s: &VirtualServer| vips.contains(&s.address) || own.contains(&s.address) && ports.contains(&s.port);
    let (servers, busy) = servers(is_ours)?;

    let mut found = Vec::new();
    if !servers.is_empty() {
        found.push(count(servers.len(), "virtual server"));
    }
    if device.is_some() {
        found.push(format!("device {DEVICE} with {}", count(vips.len(), "address")));
    }
    if !sets.is_empty() {
        found.push(format!("sets {}", sets.join(", ")));
    }
    if how == Clear::Look || found.is_empty() {
        return Ok(found);
    }
    if how == Clear::WhenIdle && busy > 0 {
        let words = format!(
            "{busy} connections through ipvs are still open, so its servers and addresses stay until they end"
        );
        return Err(Error::Kernel { family: Family::V4, source: words.into() });
    }
    // An address without its server answers with a reset, so it goes first.
    if let Some(device) = &device {
        route.apply(&Change::DeleteLink { link: device.index }).map_err(refused)?;
    }
    if let Some(genl) = &mut open()? {
        for server in &servers {
            ipvs::delete_service(genl, &server.key()).map_err(refused)?;
        }
    }
    if let Some(ipset) = &mut ipset {
        for set in &sets {
            ipset.destroy(set).map_err(refused)?;
        }
    }
    Ok(found)
}

fn count(n: usize, what: &str) -> String {
    let plural = match (n, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{n} {what}{plural}")
}

/// The virtual servers of kube-proxy's, and how many connections they have.
fn servers(is_ours: impl Fn(&VirtualServer) -> bool) -> Result<(Vec<VirtualServer>, u32), Error> {
    let Some(mut genl) = open()? else { return Ok((Vec::new(), 0)) };
    let mut all = ipvs::services(&mut genl).map_err(refused)?;
    all.retain(is_ours);
    let mut busy = 0;
    for server in &all {
        busy += ipvs::servers(&mut genl, &server.key()).map_err(refused)?.iter().map(|s| s.active).sum::<u32>();
    }
    Ok((all, busy))
}

/// The conversation with ipvs, if it is there: looking must not load it.
fn open() -> Result<Option<Genl>, Error> {
    if !ipvs::is_loaded() {
        return Ok(None);
    }
    ipvs::open().map_err(refused)
}

fn refused(error: portway_netlink::Error) -> Error {
    if error.is_permission() {
        return Error::Permission {
            operation: "look for what ipvs left behind".to_owned(),
            source: error.into(),
        };
    }
    Error::Kernel { family: Family::V4, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kube_proxys_sets_are_meant() {
        for ours in ["KUBE-CLUSTER-IP", "KUBE-6-LOOP-BACK", "KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-IPVS-IPS"]
        {
            assert!(is_kube_proxys(ours), "{ours}");
        }
        for other in ["KUBE-SRC-ABC", "cali40s:x", "KUBE-ROUTER-PODS", "CLUSTER-IP", "KUBE-6-"] {
            assert!(!is_kube_proxys(other), "{other}");
        }
        assert!(holds_node_ports("KUBE-NODE-PORT-TCP"));
        assert!(!holds_node_ports("KUBE-HEALTH-CHECK-NODE-PORT"));
    }
}
