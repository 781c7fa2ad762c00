//! The settings of a mode.

use ipnet::IpNet;
use portway_model::Family;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// The settings that a mode turns into rules, besides the plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// The bit of a packet's mark that asks for masquerading.
    pub masquerade_mark: u32,
    /// How traffic from pods is recognized.
    pub local: LocalTraffic,
    /// The addresses of node ports.
    pub node_ports: NodePortAddresses,
    /// Ranges of cluster IPs.
    pub service_cidrs: Vec<IpNet>,
    /// Serve node ports at loopback addresses too. The relay does, in every mode: no rule concerns these addresses.
    pub localhost_node_ports: bool,
    /// Drop packets in conntrack state INVALID, so that a late packet of a pod is not answered with a reset. In the
    /// iptables mode only, as in kube-proxy: such a packet need not belong to a Service.
    pub drop_invalid: bool,
    /// Leave the comments out of the rules for single endpoints. The engine of iptables sets this itself if there are
    /// many.
    pub terse: bool,
    /// No rule redirects packets from this node that have this bit in their mark.
    pub bypass_mark: Option<u32>,
    /// Settings of the ipvs mode.
    pub ipvs: IpvsSettings,
    /// Settings of the userspace mode.
    pub userspace: UserspaceSettings,
}

/// Settings of the ipvs mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// The scheduler of Services that do not select one.
    pub scheduler: Scheduler,
    /// Ranges of addresses whose virtual servers other programs manage.
    pub exclude: Vec<IpNet>,
    /// Answer ARP only for addresses of the interface that received the request.
    pub strict_arp: bool,
    /// The timeout of idle TCP connections, in seconds; `None` keeps the kernel's.
    pub tcp_timeout: Option<u32>,
    /// The timeout of TCP connections after a FIN, in seconds; `None` keeps the kernel's.
    pub tcp_fin_timeout: Option<u32>,
    /// The timeout of idle UDP flows, in seconds; `None` keeps the kernel's.
    pub udp_timeout: Option<u32>,
}

/// Settings of the userspace mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserspaceSettings {
    /// This node's addresses, the primary ones first: connections are accepted at one of each family.
    pub addresses: Vec<IpAddr>,
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// How long an endpoint may take to accept a connection, before the next one is tried.
    pub connect_timeout: Duration,
    /// The maximum number of endpoints that are tried for one connection.
    pub connect_attempts: u32,
    /// How long connections stay open after their endpoint was removed.
    pub drain_timeout: Duration,
    /// In a container: how long a stopping agent waits for open connections.
    pub stop_timeout: Duration,
    /// The idle timeout of a UDP session.
    pub udp_timeout: Duration,
    /// The maximum number of UDP sessions.
    pub udp_sessions: u32,
    /// The bit in the mark of the relay's own connections, which the rules do not redirect.
    pub bypass_mark: u32,
    /// Listen at the node ports of loopback addresses.
    pub localhost_node_ports: bool,
}

impl UserspaceSettings {
    /// Chooses a bit other than the one that asks for masquerading.
    pub fn choose_bypass_mark(masquerade_mark: u32) -> u32 {
        let preferred = 1 << 13;
        if masquerade_mark == preferred { 1 << 12 } else { preferred }
    }
}

impl Default for UserspaceSettings {
    fn default() -> Self {
        UserspaceSettings {
            addresses: Vec::new(),
            balancing: Balancing::default(),
            connect_timeout: Duration::from_secs(1),
            connect_attempts: 4,
            drain_timeout: Duration::from_secs(600),
            stop_timeout: Duration::from_secs(20),
            udp_timeout: Duration::from_secs(120),
            udp_sessions: 16_384,
            bypass_mark: UserspaceSettings::choose_bypass_mark(0),
            localhost_node_ports: false,
        }
    }
}

/// How the userspace mode chooses among endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Balancing {
    /// The endpoints in turn.
    #[default]
    RoundRobin,
    /// The endpoint with the fewest connections through this node.
    LeastConnections,
}

impl Balancing {
    /// All methods, with their names.
    pub const ALL: [(Balancing, &'static str); 2] =
        [(Balancing::RoundRobin, "round-robin"), (Balancing::LeastConnections, "least-connections")];

    /// The name.
    pub fn as_str(self) -> &'static str {
        Balancing::ALL.iter().find(|(b, _)| *b == self).map_or("", |(_, name)| name)
    }

    /// The method with this name.
    pub fn parse(text: &str) -> Option<Balancing> {
        Balancing::ALL.iter().find(|(_, name)| *name == text).map(|(b, _)| *b)
    }
}

/// How a virtual server chooses among its real servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the variants are their names")]
pub enum Scheduler {
    #[default]
    RoundRobin,
    WeightedRoundRobin,
    LeastConnection,
    WeightedLeastConnection,
    ShortestExpectedDelay,
    NeverQueue,
    SourceHashing,
    DestinationHashing,
    MaglevHashing,
    LocalityBased,
    LocalityBasedReplicated,
    Failover,
    Overflow,
}

impl Scheduler {
    /// All schedulers, with the kernel's names; the module of each is named `ip_vs_` and that name.
    pub const ALL: [(Scheduler, &'static str); 13] = [
        (Scheduler::RoundRobin, "rr"),
        (Scheduler::WeightedRoundRobin, "wrr"),
        (Scheduler::LeastConnection, "lc"),
        (Scheduler::WeightedLeastConnection, "wlc"),
        (Scheduler::ShortestExpectedDelay, "sed"),
        (Scheduler::NeverQueue, "nq"),
        (Scheduler::SourceHashing, "sh"),
        (Scheduler::DestinationHashing, "dh"),
        (Scheduler::MaglevHashing, "mh"),
        (Scheduler::LocalityBased, "lblc"),
        (Scheduler::LocalityBasedReplicated, "lblcr"),
        (Scheduler::Failover, "fo"),
        (Scheduler::Overflow, "ovf"),
    ];

    /// The kernel's name.
    pub fn as_str(self) -> &'static str {
        Scheduler::ALL.iter().find(|(s, _)| *s == self).map_or("rr", |(_, name)| name)
    }

    /// The scheduler with this name.
    pub fn parse(text: &str) -> Option<Scheduler> {
        Scheduler::ALL.iter().find(|(_, name)| *name == text).map(|(s, _)| *s)
    }

    /// All names, for messages.
    pub fn names() -> String {
        Scheduler::ALL.map(|(_, name)| name).join(", ")
    }
}

impl std::fmt::Display for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            masquerade_all: false,
            masquerade_mark: 1 << 14,
            local: LocalTraffic::Unknown,
            node_ports: NodePortAddresses::All,
            service_cidrs: Vec::new(),
            localhost_node_ports: false,
            drop_invalid: true,
            terse: false,
            bypass_mark: None,
            ipvs: IpvsSettings::default(),
            userspace: UserspaceSettings::default(),
        }
    }
}

/// How traffic from pods is recognized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    /// Not recognized: traffic from outside the cluster is not masqueraded.
    Unknown,
    /// By its source address.
    Cidrs(Vec<IpNet>),
    /// By its input interface, a bridge.
    Interface(String),
    /// By the beginning of the name of its input interface.
    InterfacePrefix(String),
}

/// The addresses of the node at which node ports are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All addresses of the node except loopback.
    All,
    /// The node's addresses within these ranges; none of a family without a range.
    Within(Vec<IpNet>),
}

impl NodePortAddresses {
    /// The ranges of one family, with overlapping and adjacent ones joined; `None` for all addresses.
    pub fn ranges(&self, family: Family) -> Option<Vec<IpNet>> {
        match self {
            NodePortAddresses::All => None,
            NodePortAddresses::Within(ranges) => Some(of_family(ranges, family)),
        }
    }

    /// Whether node ports are served at `address`, if it is one of the node's.
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            NodePortAddresses::All => !address.is_loopback(),
            NodePortAddresses::Within(ranges) => ranges.iter().any(|r| r.contains(&address)),
        }
    }
}

impl Settings {
    /// The ranges of cluster IPs of one family, with overlapping and adjacent ones joined.
    pub fn service_cidrs(&self, family: Family) -> Vec<IpNet> {
        of_family(&self.service_cidrs, family)
    }
}

fn of_family(ranges: &[IpNet], family: Family) -> Vec<IpNet> {
    let own: Vec<IpNet> =
        ranges.iter().filter(|r| Family::of(r.addr()) == family).map(IpNet::trunc).collect();
    IpNet::aggregate(&own)
}
