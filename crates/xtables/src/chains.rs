//! The names of tables and chains, which are the same as kube-proxy's.
//!
//! The names of the chains of a Service port and of its endpoints have a hash: the first 16 characters of
//! base32(sha256(port name, protocol, endpoint)). Sixteen characters of base32 are ten bytes, which is how a name is
//! stored, because a large cluster has tens of thousands of them.

use data_encoding::BASE32;
use portway_model::{Protocol, Target};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// A table that modes have rules in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Translates destinations and sources.
    Nat,
    /// Rejects and drops packets.
    Filter,
    /// Has `KUBE-PROXY-CANARY`, and the rules of the ipvs mode that set marks.
    Mangle,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 3] = [Table::Nat, Table::Filter, Table::Mangle];

    /// The name that iptables has for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Table::Nat => "nat",
            Table::Filter => "filter",
            Table::Mangle => "mangle",
        }
    }

    /// Parses the name of a table; `None` for tables that no mode uses.
    pub fn parse(text: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|t| t.as_str() == text)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A constant chain of the iptables mode or of the ipvs mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the variants are their names")]
pub enum Fixed {
    Services,
    ExternalServices,
    NodePorts,
    Forward,
    ProxyFirewall,
    Firewall,
    ClusterIps,
    MarkMasq,
    Postrouting,
    Canary,
    LoadBalancer,
    NodePort,
    SourceRanges,
    IpvsFilter,
    IpvsOutFilter,
    IpvsSchedule,
}

impl Fixed {
    /// All of them.
    pub const ALL: [Fixed; 16] = [
        Fixed::Services,
        Fixed::ExternalServices,
        Fixed::NodePorts,
        Fixed::Forward,
        Fixed::ProxyFirewall,
        Fixed::Firewall,
        Fixed::ClusterIps,
        Fixed::MarkMasq,
        Fixed::Postrouting,
        Fixed::Canary,
        Fixed::LoadBalancer,
        Fixed::NodePort,
        Fixed::SourceRanges,
        Fixed::IpvsFilter,
        Fixed::IpvsOutFilter,
        Fixed::IpvsSchedule,
    ];

    /// The name of the chain.
    pub const fn as_str(self) -> &'static str {
        match self {
            Fixed::Services => "KUBE-SERVICES",
            Fixed::ExternalServices => "KUBE-EXTERNAL-SERVICES",
            Fixed::NodePorts => "KUBE-NODEPORTS",
            Fixed::Forward => "KUBE-FORWARD",
            Fixed::ProxyFirewall => "KUBE-PROXY-FIREWALL",
            Fixed::Firewall => "KUBE-FIREWALL",
            Fixed::ClusterIps => "KUBE-CLUSTER-IPS",
            Fixed::MarkMasq => "KUBE-MARK-MASQ",
            Fixed::Postrouting => "KUBE-POSTROUTING",
            Fixed::Canary => "KUBE-PROXY-CANARY",
            Fixed::LoadBalancer => "KUBE-LOAD-BALANCER",
            Fixed::NodePort => "KUBE-NODE-PORT",
            Fixed::SourceRanges => "KUBE-SOURCE-RANGES-FIREWALL",
            Fixed::IpvsFilter => "KUBE-IPVS-FILTER",
            Fixed::IpvsOutFilter => "KUBE-IPVS-OUT-FILTER",
            Fixed::IpvsSchedule => "KUBE-IPVS-SCHEDULE",
        }
    }
}

/// The purpose of a chain of a Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// `KUBE-SVC-`: balances over the endpoints of the cluster.
    Cluster,
    /// `KUBE-SVL-`: balances over the endpoints of this node.
    Local,
    /// `KUBE-EXT-`: applies the external traffic policy.
    External,
    /// `KUBE-FW-`: restricts a load-balancer IP to its source ranges.
    Guard,
    /// `KUBE-SEP-`: translates to one endpoint.
    Endpoint,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 5] = [Role::Cluster, Role::Local, Role::External, Role::Guard, Role::Endpoint];

    const fn prefix(self) -> &'static str {
        match self {
            Role::Cluster => "KUBE-SVC-",
            Role::Local => "KUBE-SVL-",
            Role::External => "KUBE-EXT-",
            Role::Guard => "KUBE-FW-",
            Role::Endpoint => "KUBE-SEP-",
        }
    }
}

/// A chain of one Service port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortChain {
    /// The purpose.
    pub role: Role,
    suffix: [u8; SUFFIX],
}

/// Ten bytes are sixteen characters of base32.
const SUFFIX: usize = 10;

impl PortChain {
    /// The chain of a port: `port` is `namespace/name` or `namespace/name:port`.
    pub fn of_port(role: Role, port: &str, protocol: Protocol) -> PortChain {
        PortChain { role, suffix: suffix(&[port, protocol.lower()]) }
    }

    /// The chain of an endpoint of a port.
    pub fn of_endpoint(port: &str, protocol: Protocol, endpoint: Target) -> PortChain {
        let suffix = suffix(&[port, protocol.lower(), &endpoint.to_string()]);
        PortChain { role: Role::Endpoint, suffix }
    }

    /// Parses the name of a chain; `None` if it is not the name of a Service port's chain.
    pub fn parse(name: &str) -> Option<PortChain> {
        let (role, rest) = Role::ALL.into_iter().find_map(|r| Some((r, name.strip_prefix(r.prefix())?)))?;
        let bytes = BASE32.decode(rest.as_bytes()).ok()?;
        Some(PortChain { role, suffix: bytes.try_into().ok()? })
    }
}

fn suffix(parts: &[&str]) -> [u8; SUFFIX] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|p| hash.update(p.as_bytes()));
    let mut suffix = [0; SUFFIX];
    suffix.copy_from_slice(&hash.finalize()[..SUFFIX]);
    suffix
}

impl fmt::Display for PortChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 16];
        BASE32.encode_mut(&self.suffix, &mut text);
        f.write_str(self.role.prefix())?;
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for PortChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Any chain.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Chain {
    /// A constant chain of a proxy.
    Fixed(Fixed),
    /// A chain of a Service port.
    Port(PortChain),
    /// A built-in chain, or one of another program.
    Other(Arc<str>),
}

impl Chain {
    /// Parses the name of a chain.
    pub fn parse(name: &str) -> Chain {
        if let Some(fixed) = Fixed::ALL.into_iter().find(|f| f.as_str() == name) {
            return Chain::Fixed(fixed);
        }
        PortChain::parse(name).map_or_else(|| Chain::Other(name.into()), Chain::Port)
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chain::Fixed(fixed) => f.write_str(fixed.as_str()),
            Chain::Port(port) => port.fmt(f),
            Chain::Other(name) => f.write_str(name),
        }
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Fixed> for Chain {
    fn from(fixed: Fixed) -> Chain {
        Chain::Fixed(fixed)
    }
}

impl From<PortChain> for Chain {
    fn from(port: PortChain) -> Chain {
        Chain::Port(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, protocol: Protocol) -> String {
        PortChain::of_port(Role::Cluster, name, protocol).to_string()
    }

    fn endpoint(name: &str, endpoint: &str) -> String {
        let at: std::net::SocketAddr = endpoint.parse().expect("an endpoint");
        PortChain::of_endpoint(name, Protocol::Tcp, Target { ip: at.ip(), port: at.port() }).to_string()
    }

    #[test]
    fn names_are_the_same_as_kube_proxys() {
        let table = [
            (port("default/kubernetes:https", Protocol::Tcp), "KUBE-SVC-NPX46M4PTMTKRN6Y"),
            (port("kube-system/kube-dns:dns", Protocol::Udp), "KUBE-SVC-TCOU7JCQXEZGVUNU"),
            (port("kube-system/kube-dns:dns-tcp", Protocol::Tcp), "KUBE-SVC-ERIFXISQEP7F7OF4"),
            (port("kube-system/kube-dns:metrics", Protocol::Tcp), "KUBE-SVC-JD5MR3NA4I4DYORP"),
            (port("default/nginx", Protocol::Tcp), "KUBE-SVC-2CMXP7HKUVJN7L6M"),
            (endpoint("default/nginx", "172.17.0.3:80"), "KUBE-SEP-C2Y64IBVPH4YIBGX"),
            (endpoint("default/nginx", "172.17.0.4:80"), "KUBE-SEP-QST3VAMBSCRN7S4W"),
            (endpoint("default/nginx", "172.17.0.5:80"), "KUBE-SEP-MRYDKJV5U7PLF5ZN"),
            (port("default/nginx-pod08", Protocol::Tcp), "KUBE-SVC-DDZHMK5AO3JF6KIZ"),
            (endpoint("default/nginx-pod08", "10.100.85.246:80"), "KUBE-SEP-ATSP76LQOJHSORE7"),
            (endpoint("default/nginx-pod08", "10.100.85.253:80"), "KUBE-SEP-FXZXKRS4RXLGILD5"),
        ];
        for (made, known) in table {
            assert_eq!(made, known);
        }
    }

    #[test]
    fn names_are_parsed_and_printed_unchanged() {
        for name in
            ["KUBE-SEP-C2Y64IBVPH4YIBGX", "KUBE-FW-NPX46M4PTMTKRN6Y", "KUBE-SERVICES", "PREROUTING", "cali-x"]
        {
            assert_eq!(Chain::parse(name).to_string(), name);
        }
        assert!(matches!(Chain::parse("KUBE-SVL-NPX46M4PTMTKRN6Y"), Chain::Port(_)));
    }

    #[test]
    fn other_names_with_a_proxy_prefix_are_not_proxy_chains() {
        for name in [
            "KUBE-SVC-",
            "KUBE-SVC-NPX46M4PTMTKRN6",
            "KUBE-SVC-npx46m4ptmtkrn6y",
            "KUBE-FWD-NPX46M4PTMTKRN6Y",
        ] {
            assert!(matches!(Chain::parse(name), Chain::Other(_)), "{name}");
        }
    }
}
