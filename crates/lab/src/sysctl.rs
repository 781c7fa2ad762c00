//! Kernel settings of a network namespace: `/proc/sys/net` of a thread that is in it.

use crate::LabError;
use std::fs;
use std::io;

/// Settings of every host, made before it has links, so that links inherit them.
///
/// Addresses are usable at once (no duplicate address detection), hosts learn no routes from other hosts (tests rely on
/// the lab's own routes), and ICMP errors are not rate-limited, because probes count refusals.
const ALL_HOSTS: &[(&str, &str)] = &[
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv6/conf/all/accept_redirects", "0"),
    ("ipv6/conf/default/accept_redirects", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
];

/// Whether new connections to the same destination may reuse ports in TIME_WAIT: without this, a steady load would run
/// out of ports. In a guest no load is that fast, and ipvs, which still has entries of the old connections, would take
/// packets of a new connection for packets of an old one.
const REUSE: &str = "ipv4/tcp_tw_reuse";

/// Settings of nodes: they forward packets.
const NODE: &[(&str, &str)] = &[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];

/// Settings that not every kernel has: bridged packets do not pass netfilter, and ICMP errors have no global rate
/// limit.
const OPTIONAL: &[(&str, &str)] = &[
    ("bridge/bridge-nf-call-iptables", "0"),
    ("bridge/bridge-nf-call-ip6tables", "0"),
    ("bridge/bridge-nf-call-arptables", "0"),
    ("ipv4/icmp_msgs_per_sec", "1000000"),
    ("ipv4/icmp_msgs_burst", "1000000"),
];

/// Makes the settings in the namespace of the calling thread.
pub(crate) fn set_up(forwards: bool) -> Result<(), LabError> {
    let node = if forwards { NODE } else { &[] };
    let reuse = [(REUSE, if crate::guest::is_inside() { "0" } else { "1" })];
    for (name, value) in ALL_HOSTS.iter().chain(&reuse).chain(node) {
        set(name, value).map_err(|source| LabError::system(format!("set net/{name} to {value}"), source))?;
    }
    for (name, value) in OPTIONAL {
        set(name, value).ok();
    }
    Ok(())
}

fn set(name: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/{name}"), value)
}
