//! The configuration in domain types, which cannot hold an invalid value.

use super::feature_gates;
use crate::modes::{self, MODES};
use ipnet::IpNet;
use portway_dataplane::{Balancing, Mode, Scheduler, Section};
use portway_model::Family;
pub use portway_serve::LogFormat;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The configuration of the node agent, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The proxy mode.
    pub mode: ModeName,
    /// This node's name, if it is not the host name. Trimmed and in lower case.
    pub hostname_override: Option<String>,
    /// `bindAddress`. Nothing is bound to it: see [`Config::node_ip_override`].
    pub bind_address: IpAddr,
    /// The address of `/healthz` and `/livez`; `None` turns them off.
    pub healthz: Option<SocketAddr>,
    /// The address of `/metrics` and the status pages; `None` turns them off.
    pub metrics: Option<SocketAddr>,
    /// Whether the process ends if one of these addresses cannot be bound.
    pub bind_hard_fail: bool,
    /// `enableProfiling`: whether there are profiles on `/debug/pprof`.
    pub profiling: bool,
    /// `showHiddenMetricsForVersion`: accepted without effect, no metric is hidden.
    pub show_hidden_metrics_for_version: Option<String>,
    /// How to reach the API server.
    pub client: ClientSettings,
    /// How traffic from pods of this node is recognized.
    pub local_detection: LocalDetection,
    /// The node's addresses on which node ports are served.
    pub node_port_addresses: NodePortAddresses,
    /// `configSyncPeriod`, the resync period of upstream's informers: accepted without effect.
    pub config_sync_period: Duration,
    /// Kernel settings for connection tracking.
    pub conntrack: ConntrackSettings,
    /// `oom_score_adj` of this process, -1000 to 1000.
    pub oom_score_adj: i16,
    /// Logging.
    pub logging: Logging,
    /// Feature gates as given.
    pub feature_gates: BTreeMap<String, bool>,
    /// Settings of nftables mode.
    pub nftables: NftablesSettings,
    /// Settings of iptables mode.
    pub iptables: IptablesSettings,
    /// Settings of ipvs mode.
    pub ipvs: IpvsSettings,
    /// Settings of userspace mode.
    pub userspace: UserspaceSettings,
}

impl Config {
    /// Every setting at its default, except for settings that depend on others, which `resolve` derives.
    pub(super) fn defaults() -> Config {
        // The values here are placeholders: the table has the defaults.
        let mut config = Config {
            mode: ModeName::default(),
            hostname_override: None,
            bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            healthz: None,
            metrics: None,
            bind_hard_fail: false,
            profiling: false,
            show_hidden_metrics_for_version: None,
            client: ClientSettings::default(),
            local_detection: LocalDetection::None,
            node_port_addresses: NodePortAddresses::default(),
            config_sync_period: Duration::ZERO,
            conntrack: ConntrackSettings::default(),
            oom_score_adj: 0,
            logging: Logging::default(),
            feature_gates: BTreeMap::new(),
            nftables: NftablesSettings::default(),
            iptables: IptablesSettings::default(),
            ipvs: IpvsSettings::default(),
            userspace: UserspaceSettings::default(),
        };
        super::table().set_defaults(&mut config);
        config
    }

    /// The node's primary address, if `bindAddress` is set to one. Despite its name, no socket is bound to it.
    pub fn node_ip_override(&self) -> Option<IpAddr> {
        (!self.bind_address.is_unspecified()).then_some(self.bind_address)
    }

    /// The configured mode.
    pub fn mode(&self) -> &'static dyn Mode {
        self.mode.mode()
    }

    /// How long an update may wait before `/healthz` reports the proxy unhealthy: twice the sync period, as upstream.
    pub fn health_timeout(&self) -> Duration {
        self.sync().period.saturating_mul(2)
    }

    /// Masquerading in the configured mode. Only nftables mode has its own section for it; the other modes use that of
    /// iptables.
    pub fn masquerade(&self) -> Masquerade {
        match self.mode().section() {
            Section::Nftables => self.nftables.masquerade,
            Section::Iptables | Section::Ipvs | Section::Userspace => self.iptables.masquerade,
        }
    }

    /// The sync periods of the configured mode.
    pub fn sync(&self) -> SyncPeriods {
        match self.mode().section() {
            Section::Nftables => self.nftables.sync,
            Section::Iptables => self.iptables.sync,
            Section::Ipvs => self.ipvs.sync,
            Section::Userspace => self.userspace.sync,
        }
    }

    /// A feature gate, as given or else at its default.
    pub fn gate(&self, name: &str, default: bool) -> bool {
        self.feature_gates.get(name).copied().unwrap_or(default)
    }

    /// The feature gates that have an effect and those that were given, with their values.
    pub fn feature_gates(&self) -> BTreeMap<String, bool> {
        let effective = feature_gates::EFFECTIVE.map(|name| (name.to_owned(), self.gate(name, true)));
        effective.into_iter().chain(self.feature_gates.clone()).collect()
    }

    /// Whether node ports are served on loopback addresses.
    ///
    /// In mode iptables `iptables.localhostNodePorts` decides, and `nodePortAddresses` has to contain 127.0.0.1, as it
    /// does by default. In the other modes `nodePortAddresses` has to name loopback addresses, and the gate must not be
    /// off.
    pub fn localhost_node_ports(&self) -> bool {
        let addresses = &self.node_port_addresses;
        if self.mode().section() == Section::Iptables {
            return self.iptables.localhost_node_ports && addresses.contains_loopback();
        }
        addresses.names_loopback() && self.gate(feature_gates::LOCALHOST_NODE_PORTS, true)
    }
}

/// The name of a mode in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeName(&'static str);

impl ModeName {
    /// The name of a mode, if the registry has that mode.
    pub fn parse(text: &str) -> Option<ModeName> {
        modes::find(text).map(|mode| ModeName(mode.name()))
    }

    /// The name as in `mode:` and `--proxy-mode`.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// The mode.
    pub fn mode(self) -> &'static dyn Mode {
        modes::find(self.0).unwrap_or(MODES[0])
    }
}

impl Default for ModeName {
    /// The first mode of the registry.
    fn default() -> ModeName {
        ModeName(MODES[0].name())
    }
}

/// How to reach the API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientSettings {
    /// The path of a kubeconfig. Without it and without `master`, the pod's service account is used.
    pub kubeconfig: Option<PathBuf>,
    /// The API server's address; overrides the kubeconfig's.
    pub master: Option<String>,
    /// `acceptContentTypes`; empty means the default.
    pub accept_content_types: String,
    /// `contentType` of requests.
    pub content_type: String,
    /// Requests per second; negative means no limit.
    pub qps: f32,
    /// Requests that may be made at once, in excess of `qps`.
    pub burst: u32,
}

/// How traffic from pods of this node is recognized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetection {
    /// Not recognized: `ClusterCIDR` without a `clusterCIDR`. Traffic from outside the cluster is not masqueraded.
    None,
    /// By source address in these ranges, at most one per family.
    ClusterCidr(Vec<IpNet>),
    /// By source address in the Node's `podCIDRs`.
    NodeCidr,
    /// By its input interface, which is this bridge.
    BridgeInterface(String),
    /// By the beginning of the name of its input interface.
    InterfaceNamePrefix(String),
}

/// The addresses of the node on which node ports are served: the union of the following, or every address if nothing is
/// chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The node's primary address of each family.
    pub primary: bool,
    /// Loopback addresses.
    pub localhost: bool,
    /// The node's addresses within these ranges; all addresses of a family that no keyword or range is of.
    pub cidrs: Vec<IpNet>,
}

/// [`NodePortAddresses`] for one address family, without loopback addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FamilyAddresses {
    /// Every address.
    All,
    /// The primary address, if `primary` is true, and the addresses within these ranges.
    Chosen {
        /// Whether the primary address is chosen.
        primary: bool,
        /// The ranges.
        cidrs: Vec<IpNet>,
    },
}

impl NodePortAddresses {
    /// The addresses of one family.
    pub fn of_family(&self, family: Family) -> FamilyAddresses {
        let of_family = |net: &IpNet| Family::of(net.addr()) == family;
        let cidrs: Vec<IpNet> = self.cidrs.iter().copied().filter(of_family).collect();
        let nothing_chosen = !self.primary && !self.localhost && cidrs.is_empty();
        if nothing_chosen || cidrs.iter().any(|net| net.prefix_len() == 0) {
            return FamilyAddresses::All;
        }
        FamilyAddresses::Chosen { primary: self.primary, cidrs }
    }

    /// Adds loopback addresses. A family whose addresses all are chosen because nothing else is keeps them.
    pub fn add_localhost(&mut self) {
        let all = Family::ALL.into_iter().filter(|family| self.of_family(*family) == FamilyAddresses::All);
        let all: Vec<IpNet> = all.map(all_addresses).filter(|net| !self.cidrs.contains(net)).collect();
        self.cidrs.extend(all);
        self.localhost = true;
    }

    /// Whether 127.0.0.1 is one of the addresses.
    pub fn contains_loopback(&self) -> bool {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.localhost
            || match self.of_family(Family::V4) {
                FamilyAddresses::All => true,
                FamilyAddresses::Chosen { cidrs, .. } => cidrs.iter().any(|net| net.contains(&loopback)),
            }
    }

    /// Whether loopback addresses were chosen by the keyword or by a range of their own.
    fn names_loopback(&self) -> bool {
        self.localhost || self.cidrs.iter().any(|net| net.addr().is_loopback())
    }
}

/// The range of all addresses of a family.
pub fn all_addresses(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
        Family::V6 => IpNet::new_assert(std::net::Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

/// Masquerading: the traffic concerned, and the mark of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// Masquerade all traffic to cluster IPs.
    pub all: bool,
    /// The bit of the packet mark that asks for masquerading, 0 to 31.
    pub bit: u8,
}

impl Masquerade {
    /// The packet mark; `0x4000` for bit 14.
    pub fn mark(self) -> u32 {
        1u32.checked_shl(self.bit.into()).unwrap_or(0)
    }
}

/// The time between syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncPeriods {
    /// The time between syncs if nothing changes.
    pub period: Duration,
    /// The shortest time between two syncs. `None` if it is not configured (0 means the same): the agent then chooses
    /// the pause by the duration of the last sync, where upstream has a fixed 1 s.
    pub min: Option<Duration>,
}

/// Connection tracking in the kernel. `None` and zero keep the kernel's own value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// Table entries per core; zero keeps the kernel's limit and ignores `min`.
    pub max_per_core: u32,
    /// The minimum number of table entries.
    pub min: u32,
    /// The timeout of idle established TCP connections.
    pub tcp_established: Option<Duration>,
    /// The timeout of half-closed TCP connections.
    pub tcp_close_wait: Option<Duration>,
    /// Whether TCP packets outside the window are accepted.
    pub tcp_be_liberal: bool,
    /// The timeout of UDP flows without a reply.
    pub udp: Option<Duration>,
    /// The timeout of UDP flows with replies.
    pub udp_stream: Option<Duration>,
}

impl ConntrackSettings {
    /// The default of `tcpEstablishedTimeout`.
    pub const DEFAULT_TCP_ESTABLISHED: Duration = Duration::from_secs(24 * 60 * 60);
    /// The default of `tcpCloseWaitTimeout` (for the reason see kubernetes/kubernetes#32551).
    pub const DEFAULT_TCP_CLOSE_WAIT: Duration = Duration::from_secs(60 * 60);
}

/// Logging.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// Text or JSON.
    pub format: LogFormat,
    /// klog's `-v`, 0 or more.
    pub verbosity: u32,
    /// Verbosity for single files, by pattern: accepted without effect.
    pub vmodule: Vec<(String, u32)>,
    /// `flushFrequency`: accepted without effect.
    pub flush_frequency: Duration,
}

/// Settings of nftables mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NftablesSettings {
    /// Masquerading.
    pub masquerade: Masquerade,
    /// The sync periods.
    pub sync: SyncPeriods,
}

/// Settings of iptables mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IptablesSettings {
    /// Masquerading.
    pub masquerade: Masquerade,
    /// Whether node ports are served on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// The sync periods.
    pub sync: SyncPeriods,
}

/// Settings of ipvs mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// The sync periods.
    pub sync: SyncPeriods,
    /// The scheduler.
    pub scheduler: Scheduler,
    /// Virtual servers with addresses in these ranges are never changed: other programs manage them.
    pub exclude_cidrs: Vec<IpNet>,
    /// Whether `arp_ignore` and `arp_announce` are set.
    pub strict_arp: bool,
    /// The timeout of idle TCP connections; zero keeps the kernel's value.
    pub tcp_timeout: Duration,
    /// The timeout of TCP connections after a FIN; zero keeps the kernel's value.
    pub tcp_fin_timeout: Duration,
    /// The timeout of idle UDP flows; zero keeps the kernel's value.
    pub udp_timeout: Duration,
}

/// Settings of userspace mode, where a relay process accepts connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserspaceSettings {
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// How long an endpoint may take to accept a connection, before the next one is tried; never zero.
    pub connect_timeout: Duration,
    /// How many endpoints are tried for one connection, 1 to 100.
    pub connect_attempts: u32,
    /// How long connections stay open after their endpoint was removed; zero closes them at once.
    pub drain_timeout: Duration,
    /// In a container: how long a stopping agent waits for open connections; zero closes them at once.
    pub stop_timeout: Duration,
    /// The idle timeout of a UDP session; never zero.
    pub udp_timeout: Duration,
    /// The maximum number of UDP sessions, 1 to 1,000,000.
    pub udp_sessions: u32,
    /// The sync periods.
    pub sync: SyncPeriods,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_without_a_range_uses_all_addresses() {
        let nets =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|t| t.parse().expect("a CIDR")).collect() };
        let cidrs = |texts: &[&str]| NodePortAddresses { cidrs: nets(texts), ..NodePortAddresses::default() };
        let chosen = |primary, texts: &[&str]| FamilyAddresses::Chosen { primary, cidrs: nets(texts) };
        let primary = NodePortAddresses { primary: true, ..NodePortAddresses::default() };
        assert_eq!(primary.of_family(Family::V4), chosen(true, &[]));
        assert_eq!(primary.of_family(Family::V6), chosen(true, &[]));
        let mixed = NodePortAddresses { primary: true, localhost: true, ..cidrs(&["10.0.0.0/8"]) };
        assert_eq!(mixed.of_family(Family::V4), chosen(true, &["10.0.0.0/8"]));
        assert_eq!(mixed.of_family(Family::V6), chosen(true, &[]));
        assert_eq!(cidrs(&["10.0.0.0/8"]).of_family(Family::V4), chosen(false, &["10.0.0.0/8"]));
        assert_eq!(cidrs(&["10.0.0.0/8"]).of_family(Family::V6), FamilyAddresses::All);
        assert_eq!(
            cidrs(&["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"]).of_family(Family::V4),
            FamilyAddresses::All
        );
        assert_eq!(cidrs(&["10.0.0.0/8", "fd00::/8"]).of_family(Family::V6), chosen(false, &["fd00::/8"]));
    }

    #[test]
    fn masquerade_bit_14_is_mark_0x4000() {
        assert_eq!(Masquerade { all: false, bit: 14 }.mark(), 0x4000);
        assert_eq!(Masquerade { all: false, bit: 31 }.mark(), 0x8000_0000);
    }
}
