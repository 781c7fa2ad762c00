//! The sets that the constant rules look up, with the names that kube-proxy gives them.
//!
//! kube-proxy does not have four of them: `KUBE-NODE-IPS`, `KUBE-NO-ENDPOINTS`, `KUBE-NO-LOCAL-ENDPOINTS` and
//! `KUBE-SHORT-CUT`.

use portway_model::{Family, Protocol};
use portway_netlink::ipset::{NewSet, SetKind};

/// A set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Set {
    /// Endpoints whose connections to themselves need masquerading: address, port, and the address again.
    LoopBack,
    /// Cluster IPs and their ports.
    ClusterIp,
    /// External IPs with policy Cluster, and their ports.
    ExternalIp,
    /// External IPs with policy Local, and their ports.
    ExternalIpLocal,
    /// All load-balancer IPs and their ports.
    LoadBalancer,
    /// Load-balancer IPs with policy Local, and their ports.
    LoadBalancerLocal,
    /// Load-balancer IPs with `loadBalancerSourceRanges`, and their ports.
    LoadBalancerFw,
    /// Load-balancer IPs whose ranges include this node: its packets to them have the same address as source.
    LoadBalancerSourceIp,
    /// Load-balancer IPs and ports with the ranges that may use them.
    LoadBalancerSourceCidr,
    /// All node ports of TCP.
    NodePortTcp,
    /// Node ports of TCP with policy Local.
    NodePortLocalTcp,
    /// All node ports of UDP.
    NodePortUdp,
    /// Node ports of UDP with policy Local.
    NodePortLocalUdp,
    /// All node ports of SCTP, with the node's addresses.
    NodePortSctp,
    /// Node ports of SCTP with policy Local, with the node's addresses.
    NodePortLocalSctp,
    /// Health-check node ports.
    HealthCheckNodePort,
    /// All addresses on `kube-ipvs0`.
    IpvsIps,
    /// This node's addresses that have virtual servers for node ports.
    NodeIps,
    /// Frontends without endpoints: rejected.
    NoEndpoints,
    /// Frontends with policy Local and without endpoints on this node: dropped.
    NoLocalEndpoints,
    /// Frontends with policy Local, with the mark of the virtual server for connections of this node and its pods.
    ShortCut,
}

/// More than any cluster has; the kernel allocates memory for existing members only.
const MAX_ELEMENTS: u32 = 1 << 20;
/// The limit of sets that kube-proxy created.
const KUBE_PROXY_MAX_ELEMENTS: u32 = 1 << 16;
/// The length limit of set names (`IPSET_MAXNAMELEN` without the terminating zero).
const NAME_LENGTH: usize = 31;

impl Set {
    /// All sets.
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

    /// The name in one family. The longest IPv6 name is truncated, as in kube-proxy.
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

    /// The set with this name, and its family.
    pub fn parse(name: &str) -> Option<(Set, Family)> {
        let named = |family: Family| Set::ALL.into_iter().find(|s| s.name(family) == name);
        Family::ALL.into_iter().find_map(|family| Some((named(family)?, family)))
    }

    /// The type of its members.
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

    /// The parameters to create it with.
    pub fn describe(self, family: Family) -> NewSet {
        NewSet {
            name: self.name(family).into(),
            kind: self.kind(),
            v6: family == Family::V6,
            marks: self.has_marks(),
            max_elements: MAX_ELEMENTS,
        }
    }

    /// The parameters that an existing set must have at least. Sets of kube-proxy hold fewer members, and are kept
    /// because kube-proxy's rules may refer to them.
    pub fn minimum(self, family: Family) -> NewSet {
        NewSet { max_elements: KUBE_PROXY_MAX_ELEMENTS, ..self.describe(family) }
    }

    /// Whether its members have marks.
    pub fn has_marks(self) -> bool {
        self == Set::ShortCut
    }

    /// Whether rules reject or drop new connections to its members. Members are added before all other changes of a
    /// transaction, and removed after virtual servers were added.
    pub fn blocks(self) -> bool {
        matches!(self, Set::NoEndpoints | Set::NoLocalEndpoints)
    }

    /// Whether its members are frontends with address, port and protocol: a virtual server with the key of one of them
    /// belongs to Portway or kube-proxy.
    pub fn holds_frontends(self) -> bool {
        matches!(
            self,
            Set::ClusterIp | Set::ExternalIp | Set::ExternalIpLocal | Set::LoadBalancer | Set::NodePortSctp
        )
    }

    /// The set of all node ports of a protocol, and the set of those with policy Local.
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
    fn names_can_be_parsed_and_are_within_the_limit() {
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
    fn set_names_of_other_programs_are_not_parsed() {
        for name in ["KUBE-SRC-ABC", "cali40s:x", "KUBE-ROUTER-PODS", "CLUSTER-IP", "KUBE-6-", "KUBE-"] {
            assert_eq!(Set::parse(name), None, "{name}");
        }
    }
}
