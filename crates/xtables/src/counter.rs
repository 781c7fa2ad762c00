//! The counter of dropped invalid packets, which is in the kernel (nfacct) and read on each scrape.

use crate::INVALID_COUNTER;
use portway_dataplane::CounterSource;
use portway_netlink::{Protocol, Socket, nfacct};

/// The metric, with the name that it has in kube-proxy.
const METRIC: &str = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total";

/// Reads the counter. One that does not exist is zero.
#[derive(Debug)]
pub struct InvalidCounter;

impl CounterSource for InvalidCounter {
    fn exposition(&self) -> String {
        let read =
            Socket::open(Protocol::Netfilter).and_then(|mut s| nfacct::packets(&mut s, INVALID_COUNTER));
        let packets = read.ok().flatten().unwrap_or(0);
        format!(
            "# HELP {METRIC} Packets of the conntrack state INVALID that were dropped.\n\
             # TYPE {METRIC} counter\n{METRIC} {packets}\n"
        )
    }
}
