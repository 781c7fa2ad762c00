//! What a mode is told besides the plans.

use ipnet::IpNet;
use portway_model::Family;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// The node's settings, in terms a mode can turn into rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Masquerade everything that goes to a cluster IP.
    pub masquerade_all: bool,
    /// The bit of a packet's mark that asks for masquerading.
    pub masquerade_mark: u32,
    /// How traffic of pods is told from other traffic.
    pub local: LocalTraffic,
    /// Where node ports answer.
    pub node_ports: NodePortAddresses,
    /// Ranges of cluster IPs.
    pub service_cidrs: Vec<IpNet>,
    /// Node ports answer at 127.0.0.1 too; only the iptables mode can, and only in IPv4.
    pub localhost_node_ports: bool,
    /// Drop what conntrack calls invalid, lest a pod's late packet be answered with a reset.
    pub drop_invalid: bool,
    /// What this node sends with this bit in its mark goes where it wants: no rule leads it elsewhere.
    pub bypass_mark: Option<u32>,
    /// What only the ipvs mode asks for.
    pub ipvs: IpvsSettings,
    /// What only the userspace mode asks for.
    pub userspace: UserspaceSettings,
}

/// What only the ipvs mode asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// How Services are balanced that do not say.
    pub scheduler: Scheduler,
    /// Addresses at which virtual servers belong to other programs.
    pub exclude: Vec<IpNet>,
    /// Keep this machine from answering ARP for addresses that are not on the link asked.
    pub strict_arp: bool,
    /// How long a TCP connection may be silent, in seconds; none leaves the kernel's.
    pub tcp_timeout: Option<u32>,
    /// How long one may take to close.
    pub tcp_fin_timeout: Option<u32>,
    /// How long a UDP flow may be silent.
    pub udp_timeout: Option<u32>,
}

/// What only the userspace mode asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserspaceSettings {
    /// This node's addresses, its primary ones first: connections are accepted at one of each family.
    pub addresses: Vec<IpAddr>,
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// How long an endpoint may take to accept a connection, before the next one is tried.
    pub connect_timeout: Duration,
    /// How many endpoints are tried for one connection, at most.
    pub connect_attempts: u32,
    /// How long connections may go on whose endpoint has left.
    pub drain_timeout: Duration,
    /// How long connections may go on when the agent is told to stop.
    pub stop_timeout: Duration,
    /// How long a UDP session may be silent.
    pub udp_timeout: Duration,
    /// How many UDP sessions there may be.
    pub udp_sessions: u32,
    /// The bit in the mark of the relay's own connections, by which the rules know not to redirect them.
    pub bypass_mark: u32,
}

impl UserspaceSettings {
    /// A bit that is not the one which asks for masquerading.
    pub fn bypass_mark_beside(masquerade_mark: u32) -> u32 {
        let usual = 1 << 13;
        if masquerade_mark == usual { 1 << 12 } else { usual }
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
            bypass_mark: UserspaceSettings::bypass_mark_beside(0),
        }
    }
}

/// How the userspace mode chooses among endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Balancing {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest connections through this node.
    LeastConnections,
}

impl Balancing {
    /// All of them, with their names.
    pub const ALL: [(Balancing, &'static str); 2] =
        [(Balancing::RoundRobin, "round-robin"), (Balancing::LeastConnections, "least-connections")];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Balancing::ALL.iter().find(|(b, _)| *b == self).map_or("", |(_, name)| name)
    }

    /// Reads it.
    pub fn parse(text: &str) -> Option<Balancing> {
        Balancing::ALL.iter().find(|(_, name)| *name == text).map(|(b, _)| *b)
    }
}

/// How a virtual server chooses among those behind it.
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
    /// All of them, with the kernel's names; the module of each is `ip_vs_` and that.
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

    /// The kernel's name for it.
    pub fn as_str(self) -> &'static str {
        Scheduler::ALL.iter().find(|(s, _)| *s == self).map_or("rr", |(_, name)| name)
    }

    /// Reads it.
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
            bypass_mark: None,
            ipvs: IpvsSettings::default(),
            userspace: UserspaceSettings::default(),
        }
    }
}

/// How traffic of pods is told from other traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    /// It is not: nothing is masqueraded for coming from outside.
    Unknown,
    /// By its source address.
    Cidrs(Vec<IpNet>),
    /// By the bridge it comes in on.
    Interface(String),
    /// By the beginning of the name of the interface it comes in on.
    InterfacePrefix(String),
}

/// Where node ports answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// At all addresses of the node but loopback.
    All,
    /// At the node's addresses within these ranges; a family without a range answers at none.
    Within(Vec<IpNet>),
}

impl NodePortAddresses {
    /// The ranges of one family, without overlaps or neighbours; `None` for all addresses.
    pub fn ranges(&self, family: Family) -> Option<Vec<IpNet>> {
        match self {
            NodePortAddresses::All => None,
            NodePortAddresses::Within(ranges) => Some(of_family(ranges, family)),
        }
    }

    /// Whether a node port answers at `address`, if it is one of the node's.
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            NodePortAddresses::All => !address.is_loopback(),
            NodePortAddresses::Within(ranges) => ranges.iter().any(|r| r.contains(&address)),
        }
    }
}

impl Settings {
    /// The ranges of cluster IPs of one family, without overlaps or neighbours.
    pub fn service_cidrs(&self, family: Family) -> Vec<IpNet> {
        of_family(&self.service_cidrs, family)
    }
}

impl Settings {
    /// Whether node ports answer at the loopback address of a family.
    pub fn answers_at_loopback(&self, family: Family) -> bool {
        let v4 = family == Family::V4 && self.localhost_node_ports;
        let ranges = || self.node_ports.ranges(family);
        v4 && ranges().is_none_or(|r| r.iter().any(|r| r.contains(&IpAddr::from([127, 0, 0, 1]))))
    }
}

fn of_family(ranges: &[IpNet], family: Family) -> Vec<IpNet> {
    let own: Vec<IpNet> =
        ranges.iter().filter(|r| Family::of(r.addr()) == family).map(IpNet::trunc).collect();
    IpNet::aggregate(&own)
}
