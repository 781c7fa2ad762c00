//! Metrics from the kernel's packet counters, read on each scrape.

use portway_netlink::{Protocol, Socket, nfacct};
use portway_xtables::LOCALHOST_COUNTER;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use std::fmt;

/// Reads the kernel's counters on each scrape. A counter that does not exist is zero.
#[derive(Debug)]
pub(super) struct KernelCounters;

impl Collector for KernelCounters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let packets =
            Socket::open(Protocol::Netfilter).and_then(|mut s| nfacct::packets(&mut s, LOCALHOST_COUNTER));
        let counter = ConstCounter::new(packets.ok().flatten().unwrap_or(0));
        let name = "kubeproxy_iptables_localhost_nodeports_accepted_packets";
        let help = "First packets of connections to node ports at 127.0.0.1 that were accepted.";
        counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
    }
}
