//! The sets that the constant rules ask, by the names that administrators know from kube-proxy.
//!
//! Four are ours alone: kube-proxy's ipvs mode has nothing for what they are for.

use portway_model::{Family, Protocol};
use portway_netlink::ipset::{NewSet, SetKind};

/// A set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Set {
    /// Endpoints that may reach themselves: address, port, and the address again.
    LoopBack,
    /// Cluster IPs and their ports.
    ClusterIp,
    /// External IPs and their ports.
    ExternalIp,
    /// Those with policy Local.
    ExternalIpLocal,
    /// Load-balancer IPs and their ports.
    LoadBalancer,
    /// Those with policy Local.
    LoadBalancerLocal,
    /// Those that only some may reach.
    LoadBalancerFw,
    /// Single addresses that may.
    LoadBalancerSourceIp,
    /// Ranges that may.
    LoadBalancerSourceCidr,
    /// Node ports.
    NodePortTcp,
    /// Those with policy Local.
    NodePortLocalTcp,
    /// Node ports of UDP.
    NodePortUdp,
    /// Those with policy Local.
    NodePortLocalUdp,
    /// Node ports of SCTP, with the node's addresses.
    NodePortSctp,
    /// Those with policy Local.
    NodePortLocalSctp,
    /// Ports at which load balancers ask for health.
    HealthCheckNodePort,
    /// All addresses on our device.
    IpvsIps,
    /// This node's addresses at which node ports have servers.
    NodeIps,
    /// Frontends without endpoints: refused.
    NoEndpoints,
    /// Frontends without endpoints on this node: dropped.
    NoLocalEndpoints,
    /// Addresses and ports with policy Local, and the mark of the server that what begins on this node may use.
    ShortCut,
}

/// More than any cluster has; the kernel allocates memory for existing members only.
const MAX_ELEMENTS: u32 = 1 << 20;
/// What kube-proxy's take.
const KUBE_PROXY_MAX_ELEMENTS: u32 = 1 << 16;
/// What a set's name may have.
const NAME_LENGTH: usize = 31;

impl Set {
    /// All of them.
    pub const ALL: [Set; 21] = [
        Set::LoopBack,
        Set::ClusterIp,
        Set::ExternalIp,
        Set::ExternalIpLocal,
        Set::LoadBalancer,
        Set::LoadBalancerLocal,
        Set::LoadBalancerFw,
        Set::LoadBalancerSourceIp,
        Set::LoadBalancerSourceCidr,
        Set::NodePortTcp,
        Set::NodePortLocalTcp,
        Set::NodePortUdp,
        Set::NodePortLocalUdp,
        Set::NodePortSctp,
        Set::NodePortLocalSctp,
        Set::HealthCheckNodePort,
        Set::IpvsIps,
        Set::NodeIps,
        Set::NoEndpoints,
        Set::NoLocalEndpoints,
        Set::ShortCut,
    ];

    /// Its name in one family. The longest of IPv6 is cut off, as kube-proxy does it.
    pub fn name(self, family: Family) -> &'static str {
        match family {
            Family::V4 => self.full_names().0,
            Family::V6 => {
                let name = self.full_names().1;
                name.get(..NAME_LENGTH).unwrap_or(name)
            }
        }
    }

    const fn full_names(self) -> (&'static str, &'static str) {
        macro_rules! both {
            ($name:literal) => {
                (concat!("KUBE-", $name), concat!("KUBE-6-", $name))
            };
        }
        match self {
            Set::LoopBack => both!("LOOP-BACK"),
            Set::ClusterIp => both!("CLUSTER-IP"),
            Set::ExternalIp => both!("EXTERNAL-IP"),
            Set::ExternalIpLocal => both!("EXTERNAL-IP-LOCAL"),
            Set::LoadBalancer => both!("LOAD-BALANCER"),
            Set::LoadBalancerLocal => both!("LOAD-BALANCER-LOCAL"),
            Set::LoadBalancerFw => both!("LOAD-BALANCER-FW"),
            Set::LoadBalancerSourceIp => both!("LOAD-BALANCER-SOURCE-IP"),
            Set::LoadBalancerSourceCidr => both!("LOAD-BALANCER-SOURCE-CIDR"),
            Set::NodePortTcp => both!("NODE-PORT-TCP"),
            Set::NodePortLocalTcp => both!("NODE-PORT-LOCAL-TCP"),
            Set::NodePortUdp => both!("NODE-PORT-UDP"),
            Set::NodePortLocalUdp => both!("NODE-PORT-LOCAL-UDP"),
            Set::NodePortSctp => both!("NODE-PORT-SCTP-HASH"),
            Set::NodePortLocalSctp => both!("NODE-PORT-LOCAL-SCTP-HASH"),
            Set::HealthCheckNodePort => both!("HEALTH-CHECK-NODE-PORT"),
            Set::IpvsIps => both!("IPVS-IPS"),
            Set::NodeIps => both!("NODE-IPS"),
            Set::NoEndpoints => both!("NO-ENDPOINTS"),
            Set::NoLocalEndpoints => both!("NO-LOCAL-ENDPOINTS"),
            Set::ShortCut => both!("SHORT-CUT"),
        }
    }

    /// The set of this name, and its family.
    pub fn parse(name: &str) -> Option<(Set, Family)> {
        let named = |family: Family| Set::ALL.into_iter().find(|s| s.name(family) == name);
        Family::ALL.into_iter().find_map(|family| Some((named(family)?, family)))
    }

    /// What kind of members it has.
    pub fn kind(self) -> SetKind {
        match self {
            Set::LoopBack | Set::LoadBalancerSourceIp => SetKind::IpPortIp,
            Set::LoadBalancerSourceCidr => SetKind::IpPortNet,
            Set::NodePortTcp | Set::NodePortLocalTcp | Set::NodePortUdp | Set::NodePortLocalUdp => {
                SetKind::Port
            }
            Set::HealthCheckNodePort => SetKind::Port,
            Set::IpvsIps | Set::NodeIps => SetKind::Ip,
            _ => SetKind::IpPort,
        }
    }

    /// How it is made.
    pub fn describe(self, family: Family) -> NewSet {
        NewSet {
            name: self.name(family).into(),
            kind: self.kind(),
            v6: family == Family::V6,
            marks: self.has_marks(),
            max_elements: MAX_ELEMENTS,
        }
    }

    /// What one that is there already must be. kube-proxy's take fewer members, and rules of it may use them.
    pub fn least(self, family: Family) -> NewSet {
        NewSet { max_elements: KUBE_PROXY_MAX_ELEMENTS, ..self.describe(family) }
    }

    /// Whether its members have marks.
    pub fn has_marks(self) -> bool {
        self == Set::ShortCut
    }

    /// Whether what is in it does not get through: it comes in before anything else changes, and goes out after.
    pub fn refuses(self) -> bool {
        matches!(self, Set::NoEndpoints | Set::NoLocalEndpoints)
    }

    /// Whether a server that answers at one of its members is ours.
    pub fn holds_frontends(self) -> bool {
        matches!(
            self,
            Set::ClusterIp | Set::ExternalIp | Set::ExternalIpLocal | Set::LoadBalancer | Set::NodePortSctp
        )
    }

    /// The node ports of a protocol, and which of them have policy Local.
    pub fn node_ports(protocol: Protocol) -> (Set, Set) {
        match protocol {
            Protocol::Tcp => (Set::NodePortTcp, Set::NodePortLocalTcp),
            Protocol::Udp => (Set::NodePortUdp, Set::NodePortLocalUdp),
            Protocol::Sctp => (Set::NodePortSctp, Set::NodePortLocalSctp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_fit() {
        for set in Set::ALL {
            for family in Family::ALL {
                let name = set.name(family);
                assert!(name.len() <= NAME_LENGTH, "{name}");
                assert_eq!(Set::parse(name), Some((set, family)));
            }
        }
        assert_eq!(Set::LoadBalancerSourceCidr.name(Family::V6), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
    }

    #[test]
    fn other_programs_sets_are_not_ours() {
        for name in ["KUBE-SRC-ABC", "cali40s:x", "KUBE-ROUTER-PODS", "CLUSTER-IP", "KUBE-6-", "KUBE-"] {
            assert_eq!(Set::parse(name), None, "{name}");
        }
    }
}
